"""`Client`: a client's connection with its parts: the session, the login, and the commands."""

from __future__ import annotations

from jetcluster.protocol import writer
from jetcluster.protocol.connection_states import BEING_CHECKED, ConnectionEvent
from jetcluster.protocol.parser import Parser
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.client.commands import Commands
from jetcluster.server.client.connection import ClientConnection, Entrance
from jetcluster.server.client.login import Login


class Client(ClientConnection):
    """One connection of a client, from its first INFO until its last message is processed."""

    commands_type: type[Commands] = Commands

    def __init__(self, parts: ServerParts, cid: int, entrance: Entrance) -> None:
        super().__init__(parts.state, parts.sockets, cid, entrance)
        options = parts.state.options
        parser = Parser(options.max_payload, options.max_control_line)
        self._clients = parts.clients
        self.login = Login(self, parts, parser)
        self.commands = self.reader = self.commands_type(self, parts, parser, self.login)
        self._lost: tuple[Exception | None] | None = None
        """The exception of `connection_lost`, while input received before it waits for turns."""

    # ---- beginning and end

    def greeting(self) -> bytes:
        """Returns the first INFO, for a port that sends it before the transport exists; `ip` and `port` are set."""
        self.advance(ConnectionEvent.GREET)
        return writer.info(self.first_info())

    def opened(self) -> None:
        self.login.begin()

    def ended(self) -> None:
        self.commands.end()
        self._clients.forget(self)
        self.login.drop_subscriptions()

    def connection_lost(self, exc: Exception | None) -> None:
        self.holds.add("over")  # the transport is gone: it must not be paused or resumed
        if self.state in BEING_CHECKED:
            self.commands.forget()  # input after a CONNECT that is not authenticated yet
        if self.commands.has_input and not self.close_reason:
            self._lost = (exc,)  # messages it published before are still delivered, in turns as usual
            self.is_lost = True
            self._depart()
        else:
            super().connection_lost(exc)

    def _depart(self) -> None:
        """Drops the subscriptions, output and timers: the client can receive nothing more."""
        self.blocked = True
        self.disarm_all()
        self.login.drop_subscriptions()
        self._silence()
        self._clients.departs(self)
        self.sockets.discard(self)

    def _silence(self) -> None:
        self.out.clear()
        self.pending = 0

    def arm(self, name: str, delay: float, callback: object, *args: object) -> None:
        if not self.is_lost:
            super().arm(name, delay, callback, *args)

    # ---- turns and changes

    def take_turn(self, quantum: int) -> None:
        waits = self.commands.take_turn(quantum)
        if self._lost is not None:
            self._silence()
            if not waits:
                super().connection_lost(*self._lost)

    def answered(self) -> None:
        self.commands.go_on()

    def reconfigured(self, *, new_pings: bool) -> None:
        self.login.reconfigured(new_pings=new_pings)
