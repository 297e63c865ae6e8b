"""`LeafConnection`: the connection of a leaf link as the router of its account and monitoring know it: who is at the
other end, and what is sent there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from jetcluster.config.options import LeafRemoteOptions
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
"""Seconds before the next attempt when the last one closed a circle of links."""
ACK = b"$JS.ACK."


class LinkParts(NamedTuple):
    """The parts of a server that its leaf links use."""

    server: ServerParts
    state: LeafState
    logins: LeafLogins
    links: list[LeafConnection]
    """Those that take part in their accounts."""


class LeafConnection(Connection, LeafPeer):
    """A leaf link, whose parts `link.LeafLink` puts together. `url` has the credentials for the other end, "" at the
    accepting end."""

    def __init__(self, own: LinkParts, remote: LeafRemoteOptions | None, url: str) -> None:
        super().__init__(own.server.state, own.server.sockets, own.server.new_cid())
        self._leaf = own.state
        self.remote = remote
        self.url = url
        self.peer_id = ""
        """Server id of the other end."""
        self.remote_name = ""
        self.remote_domain = ""
        self.remote_cluster = b""
        self.spoke = remote is not None and not remote.hub
        self.wanted = 0
        """Subjects and queue groups the other end wants."""
        self.retry_after = 0.0
        """Seconds the other end, or a loop, tells this one to wait before it connects again."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.nonce = b""
        self.secure = False
        """True once the link has TLS."""
        self.rules: LeafRules | None = None
        """None until the ends know each other."""
        self.router: Router | None = None
        """None until the link takes part in its account."""
        self.was_up = False
        """True once the link has taken part."""
        self.valve = Valve()
        """Never closed: publishers are stalled instead (`congested`)."""

    @property
    def joined(self) -> bool:
        """True while the link takes part in its account."""
        return self.state is JOINED

    @property
    def solicited(self) -> bool:
        return self.remote is not None

    def join(self) -> None:
        """Both ends know each other: the link becomes a part of its account."""
        raise NotImplementedError

    def answered(self) -> None:
        """It is known now who the other end is: what was read meanwhile is worked on."""
        raise NotImplementedError

    def recheck(self) -> None:
        """Is the other end still who it was? With other permissions it has to connect anew."""
        raise NotImplementedError

    def take_turn(self, quantum: int) -> None:
        """See `fairness.Governed`."""
        raise NotImplementedError

    def wait_at(self, valve: Valve) -> None:
        """A link is not held for what it brings: see `valve.Waiter`."""

    def run_command(self, kind: int, subject: bytes, queue: bytes, weight: list[bytes]) -> None:
        """Runs a command that brings no message, whose first field may be another than a subject (`protocol.leaf`)."""
        raise NotImplementedError

    def take_message(self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes) -> None:
        """Routes a message of the other end."""
        raise NotImplementedError

    def own_info(self) -> bytes:
        return writer.info(self._leaf.info_for(self.cid, self.account, self.nonce))

    def tell_info(self) -> None:
        """Tells the other end, which has connected here, what this one is."""
        self.send(self.own_info())

    def refuse(self, reason: str, text: str) -> None:
        log.warning("leafnode cid %d: %s", self.cid, text)
        self.close(reason, text)

    # ---- what goes to the other end

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
            # As nats-server does: the ack subject carries the subject that the last server is to show.
            marked = b"%b@%b" % (reply, subject) if subject != target and reply.startswith(ACK) else reply
            self.send_msg(account, target, marked, queues, headers, payload)

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        # Nobody can be asked beyond the link; what waits on it is known here.
        if self.router is not None:
            self.router.peers.backlog.told(self, target, mark, 0)

    def congested(self, origin: Origin) -> None:
        # In the next turn: this may be in the middle of the router telling its links of a change.
        if "slow" not in self._timers and not self.close_reason:
            self.arm("slow", 0.0, self._look_again)

    def _look_again(self) -> None:
        self.disarm("slow")
        if self.pending > self.congestion_mark:
            super().congested(self)

    def stall(self) -> None:
        """One slow client must not hold up everything that comes over the link: it is closed instead."""
