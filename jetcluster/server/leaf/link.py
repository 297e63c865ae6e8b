"""`LeafLink`: a leaf link that takes part in an account: what its two ends tell each other that they want (`Told`),
and the messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from jetcluster.budget import BusyError, Steps, exhaust
from jetcluster.config.options import LeafRemoteOptions
from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.protocol import leaf, writer
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.connection_states import ConnectionEvent
from jetcluster.protocol.interest import RemotePeer
from jetcluster.protocol.valve import Valve
from jetcluster.server.accounts.accounts import RETRY_SECONDS
from jetcluster.server.accounts.leaf_delivery import deliver_from_leaf
from jetcluster.server.accounts.remote_peers import Wanted
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import LeafPeer, is_marked, passes
from jetcluster.server.client.connection import text_of
from jetcluster.server.leaf.connection import LOOP_DELAY, LeafConnection, LinkParts
from jetcluster.server.leaf.rules import API_PARTS

TOLD_AT_ONCE: Final = 4096
"""Subjects that are told in one turn of the loop when a link joins; more in steps."""
TOLD_PER_STEP: Final = 256
log = logging.getLogger("jetcluster.server")
MAX_INTEREST = 1_000_000
"""Subjects that the other end may want."""
VIOLATION_PAUSE = 10.0
"""Seconds between two lines about what a link's other end must not publish."""
_ACK_DOTS = 8
_ACK = b"$JS.ACK."


class Told:
    """One per link. `send` queues lines for the other end."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._counts: dict[tuple[bytes, bytes | None], int] = {}
        """Members by subject and queue."""
        self._noting = True
        """`_counts` is being made, and the other end has been told nothing yet."""

    def change(self, subject: bytes, queue: bytes | None, change: int) -> None:
        """Members came, or went; tells it where the other end has to know."""
        before, after = self._note(subject, queue, change)
        if before != after and not self._noting and (queue is not None or not before or not after):
            self._send(leaf.interest(subject, queue, after))

    def _note(self, subject: bytes, queue: bytes | None, change: int) -> tuple[int, int]:
        """Members before and after."""
        key = (subject, queue)
        before = self._counts.get(key, 0)
        after = before + change
        assert after >= 0 or self._noting, key  # what ends may end before it was noted
        if after:
            self._counts[key] = after
        else:
            self._counts.pop(key, None)
        return before, after

    def all_of(self, wanted: Iterable[tuple[bytes, bytes | None, int]], is_over: Callable[[], bool]) -> Steps[None]:
        """Tells what is `wanted`, (subject, queue, members), when the link joins, and what changes meanwhile."""
        for number, (subject, queue, members) in enumerate(wanted, 1):
            self._note(subject, queue, members)
            if not number % TOLD_PER_STEP:
                yield
                if is_over():
                    return
        self._noting = False  # from here on changes are told at once; what follows them tells how it is by then
        counts, keys = self._counts, list(self._counts)
        for start in range(0, len(keys), TOLD_PER_STEP):
            lines = [leaf.interest(*key, counts[key]) for key in keys[start : start + TOLD_PER_STEP] if key in counts]
            self._send(b"".join(lines))
            yield
            if is_over():
                return


class LeafLink(LeafConnection, LeafPeer):
    """See above: the one `LeafPeer`."""

    def __init__(self, own: LinkParts, remote: LeafRemoteOptions | None = None, url: str = "") -> None:
        super().__init__(own, remote, url)
        self.valve = Valve()
        """Never closed: publishers are stalled instead (`congested`)."""
        self._told = Told(self.send)
        self._router: Router | None = None
        self._violations = 0
        self._quiet_until = 0.0
        """The monotonic time from which the next violation is told."""

    def ended(self) -> None:
        self._forget_input()
        if self._router is not None:
            self.parts.removals.of_leaf(self._router, self)
        if self.was_up:
            log.info("Leafnode connection closed: %s account: %s", self.close_reason, self.account)
        if self in self._links:
            self._links.remove(self)
        if not self.over.done():
            self.over.set_result(None)

    def _command(self, kind: int, a: bytes, b: bytes, weight: list[bytes]) -> None:
        if kind == leaf.PING:
            self.send(writer.PONG)
        elif kind == leaf.PONG:
            self.pong_received()
        elif kind == leaf.INTEREST:
            self._wants(a, b or None, int(weight[0]))
        elif kind == leaf.GONE:
            self._wants(a, b or None, 0)
        else:
            self._handshake_command(kind, a)

    def _join(self) -> None:
        """Both ends know each other: the link becomes a part of its account."""
        self.disarm("auth")
        router = self._router = self.parts.accounts[self.account]
        self.advance(ConnectionEvent.JOIN)
        self._take_over()
        wanted = router.peers.add_leaf(self)
        if len(wanted) <= TOLD_AT_ONCE:
            exhaust(self._telling(wanted, router.leaf_links))
        else:
            self._tell(wanted, list(router.leaf_links))
        log.info("Leafnode connection created for account: %s, remote: %s", self.account, self.remote_name)

    def _telling(self, wanted: Iterable[Wanted], links: Sequence[LeafPeer]) -> Steps[None]:
        """`links`: those there were when it was `wanted`, as one that ends meanwhile is no leaf link any more."""
        own = [self._leaf.loop_mark(self.account), *self._api_subjects()]
        passing = ((subject, queue, n) for source, subject, queue, n in wanted if self._passes(source, subject, links))
        return self._told.all_of(chain([(subject, None, 1) for subject in own], passing), lambda: not self.joined)

    def _tell(self, wanted: list[Wanted], links: list[LeafPeer]) -> None:
        try:
            self.parts.budget.start(self, self._telling(wanted, links), lambda _: None, self._not_told)
        except BusyError:
            self.arm("tell", RETRY_SECONDS, self._tell, wanted, links)

    def _not_told(self, error: Exception) -> None:
        log.error("leafnode cid %d: internal error, closing the link", self.cid, exc_info=error)
        self.abort("Internal Error")

    def _api_subjects(self) -> list[bytes]:
        domain = self.server.options.domain.encode()
        if not domain or not self._leaf.has_jetstream(self.account):
            return []
        return [b"$JS.%b.API.%b" % (domain, part) for part in API_PARTS]

    # ---- what this end wants

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        assert self._router is not None
        if self._passes(source, subject, self._router.leaf_links):
            self._told.change(subject, queue, change)

    def _passes(self, source: RemotePeer | None, subject: bytes, links: Sequence[LeafPeer]) -> bool:
        assert self._rules is not None
        return passes(source, self, links) and self._rules.may_tell(subject)

    # ---- what the other end wants

    def _wants(self, subject: bytes, queue: bytes | None, count: int) -> None:
        router, rules = self._router, self._rules
        if router is None or rules is None:
            self._refused("Protocol Violation", "Authorization Violation")
            return
        if subject == self._leaf.loop_mark(self.account):
            self.retry_after = LOOP_DELAY
            text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
            self._refused("Protocol Violation", text)
            return
        if count and not (rules.may_want(subject, queue) and (queue is None or not is_marked(queue))):
            log.debug("leafnode cid %d: may not subscribe to %r", self.cid, subject)
            return
        if count and subject.count(b".") >= MAX_TOKENS:
            return
        if count and self.wanted >= MAX_INTEREST:
            self._refused("Maximum Subscriptions Exceeded", "maximum subscriptions exceeded")
            return
        self.wanted += router.peers.set_leaf_interest(self, subject, queue, count)

    # ---- messages

    def _message(self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes) -> None:
        router, rules = self._router, self._rules
        if router is None or rules is None:
            self._refused("Protocol Violation", "Authorization Violation")
            return
        self.in_msgs += 1
        self.in_bytes += len(headers) + len(payload)
        shown = subject
        if reply.startswith(_ACK) and b"@" in reply:
            reply, shown = split_ack(reply, subject)
        refused = rules.first_refused(subject, shown, reply, headers)
        if refused is not None:
            self._tell_violation(refused)
            return
        if shown is subject and subject.startswith(b"$JS."):
            # Publishes to another domain's buckets: `$JS.<domain>.API.$KV.<bucket>.<key>`.
            subject = shown = self._without_domain(subject)
        deliver_from_leaf(router, self, subject, shown, reply, queues, headers, payload)

    def may_deliver_to(self, subject: bytes) -> bool:
        router, rules = self._router, self._rules
        return router is None or rules is None or not router.is_guarded(subject) or rules.may_deliver_to(subject)

    def _tell_violation(self, subject: bytes) -> None:
        """Says in the log, and to the other end, what must not come in; as nats-server does, but not for each."""
        self._violations += 1
        now = self.server.clock.monotonic()
        if self.remote is not None or now < self._quiet_until:
            return
        self._quiet_until = now + VIOLATION_PAUSE
        text = text_of(subject)
        log.error(
            'leafnode cid %d: Publish Violation on "%s" - Check other side configuration (%d so far)',
            self.cid, text, self._violations,
        )  # fmt: skip
        self.send(writer.err(f'Permissions Violation for Publish to "{text}"'))

    def _without_domain(self, subject: bytes) -> bytes:
        prefix = b"$JS.%b.API." % self.server.options.domain.encode()
        if subject.startswith((prefix + b"$KV.", prefix + b"$OBJ.")):
            return subject[len(prefix) :]
        return subject

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        assert self._rules is not None
        if self.close_reason or not self._rules.may_go(subject):
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
            marked = b"%b@%b" % (reply, subject) if subject != target and reply.startswith(_ACK) else reply
            self.send_msg(account, target, marked, queues, headers, payload)

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        # Nobody can be asked beyond the link; what waits on it is known here.
        if self._router is not None:
            self._router.peers.backlog.told(self, target, mark, 0)

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


def split_ack(reply: bytes, subject: bytes) -> tuple[bytes, bytes]:
    """(reply, subject to show) of `$JS.ACK.<stream>.<consumer>.<numbers>@<subject>`; names may contain "@", so it is
    the first one behind the eighth dot. `subject` when there is none."""
    at = -1
    for _ in range(_ACK_DOTS):
        at = reply.find(b".", at + 1)
        if at < 0:
            return reply, subject
    mark = reply.find(b"@", at)
    return (reply, subject) if mark < 0 or mark == len(reply) - 1 else (reply[:mark], reply[mark + 1 :])
