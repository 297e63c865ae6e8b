"""`LeafConnection`: a leaf link's connection as its account's router and monitoring see it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from jetcluster.config.options import LeafRemoteOptions
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.protocol import leaf, writer
from jetcluster.protocol.bus import Origin, Outgoing, Valve
from jetcluster.protocol.connection_states import JOINED
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import LeafPeer
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.connection import Connection
from jetcluster.server.leaf.rules import LeafLogins, LeafRules
from jetcluster.server.leaf.state import LeafState

log = logging.getLogger("jetcluster.server")

LOOP_DELAY_SECONDS = 30.0
"""Pause before the next attempt after one that closed a loop of links."""
PING_SECONDS = 10.0
"""Longest `ping_interval` of a leaf link without one of its own: a cut leaves no trace but silence, and mirrors wait
for a new link."""
ACK = b"$JS.ACK."


class LinkParts(NamedTuple):
    """The parts of a server that its leaf links use."""

    server: ServerParts
    state: LeafState
    logins: LeafLogins
    links: list[LeafConnection]
    """Links that have joined their accounts."""


class LeafConnection(Connection, LeafPeer):
    """A leaf link; `link.LeafLink` adds its parts. `url` holds the credentials for the hub, "" at the accepting end."""

    def __init__(self, own: LinkParts, remote: LeafRemoteOptions | None, url: str) -> None:
        super().__init__(own.server.state, own.server.sockets, own.server.new_cid())
        self._leaf = own.state
        self.remote = remote
        self.url = url
        self.peer_id = ""
        """The other end's server id."""
        self.remote_name = ""
        self.remote_domain = ""
        self.remote_cluster = b""
        self.spoke = remote is not None and not remote.hub
        self.wanted = 0
        """Size of the other end's interest, in subjects and queue groups."""
        self.retry_after = 0.0
        """Shortest pause in seconds before the next attempt to connect, after a detected loop."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.nonce = b""
        self.secure = False
        """True once the link has TLS."""
        self.rules: LeafRules | None = None
        """None until CONNECT."""
        self.router: Router | None = None
        """None until the link joins its account."""
        self.was_up = False
        """True once the link has joined."""
        self.valve = Valve()
        """Never closed: publishers are stalled instead (`congested`)."""

    @property
    def ping_interval(self) -> float:
        return self._leaf.options.ping_interval or min(super().ping_interval, PING_SECONDS)

    @property
    def ping_max(self) -> int:
        return self._leaf.options.ping_max or super().ping_max

    @property
    def joined(self) -> bool:
        """True while the link is part of its account."""
        return self.state is JOINED

    @property
    def solicited(self) -> bool:
        return self.remote is not None

    def join(self) -> None:
        """Adds the link to its account after the handshake."""
        raise NotImplementedError

    def answered(self) -> None:
        """Processes the input that waited for the end of a slow login."""
        raise NotImplementedError

    def recheck(self) -> None:
        """See `Handshake.recheck`."""
        raise NotImplementedError

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        raise NotImplementedError

    def wait_at(self, valve: Valve) -> None:
        """Does nothing: a link is not paused for its messages. See `bus.Waiter`."""

    def run_command(self, kind: int, subject: bytes, queue: bytes, weight: list[bytes]) -> None:
        """Runs a command other than a message; `subject` is its first field (`protocol.leaf`)."""
        raise NotImplementedError

    def take_message(self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes) -> None:
        """Routes a message from the other end."""
        raise NotImplementedError

    def own_info(self) -> bytes:
        return writer.info(self._leaf.info_for(self.cid, self.account, self.nonce))

    def send_info(self) -> None:
        """Sends INFO to the other end, which has connected here."""
        self.send(self.own_info())

    def refuse(self, reason: str, text: str) -> None:
        log.warning("leafnode cid %d: %s", self.cid, text, extra=FROM_STRANGERS)
        self.close(reason, text)

    # ---- output

    def may_deliver_to(self, subject: bytes) -> bool:
        router, rules = self.router, self.rules
        return router is None or rules is None or not router.is_guarded(subject) or rules.may_deliver_to(subject)

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        assert self.rules is not None
        if self.close_reason or not self.rules.may_go(subject):
            return
        if not self.out:
            self.wake()
        size = len(headers) + len(payload)
        line = leaf.message_line(subject, reply, queues, len(headers), size)
        self.out += (line, headers, payload, writer.CRLF)
        self.out_msgs += 1
        self.out_bytes += size
        self.pending += size + len(line) + 2
        if self.pending > self.congestion_mark:
            self.congested(self)

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        for subject, reply, headers, payload in messages:
            # As in nats-server, the ack subject carries the subject that the last server shows.
            marked = b"%b@%b" % (reply, subject) if subject != target and reply.startswith(ACK) else reply
            self.send_msg(account, target, marked, queues, headers, payload)

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        # The leaf protocol cannot ask the other end; the backlog of the link itself counts as it is (`pending`).
        if self.router is not None:
            self.router.peers.backlog.answered(self, target, mark, 0)

    def congested(self, origin: Origin) -> None:
        # In the next turn: this may be called while the router iterates over its links.
        if "slow" not in self._timers and not self.close_reason:
            self.arm("slow", 0.0, self._look_again)

    def _look_again(self) -> None:
        self.disarm("slow")
        if self.pending > self.congestion_mark:
            super().congested(self)

    def stall(self) -> None:
        """Does nothing: a slow client must not delay all messages of the link, and is closed instead."""
