"""`LeafLink`: a leaf link with its parts, the interest of both ends (`SentInterest`: of this one) and its messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from jetcluster.budget import BusyError, Steps, exhaust
from jetcluster.config.options import LeafRemoteOptions
from jetcluster.model.subjects import MAX_TOKENS
from jetcluster.protocol import leaf, writer
from jetcluster.protocol.connection_states import ConnectionEvent
from jetcluster.protocol.interest import RemotePeer
from jetcluster.server.accounts.accounts import RETRY_SECONDS
from jetcluster.server.accounts.leaf_delivery import deliver_from_leaf
from jetcluster.server.accounts.remote_peers import Wanted
from jetcluster.server.accounts.subscription import LeafPeer, is_marked, passes
from jetcluster.server.client.connection import text_of
from jetcluster.server.leaf.connection import ACK, LOOP_DELAY_SECONDS, LeafConnection, LinkParts
from jetcluster.server.leaf.handshake import Handshake
from jetcluster.server.leaf.input import LeafInput
from jetcluster.server.leaf.rules import API_PARTS

log = logging.getLogger("jetcluster.server")

MAX_DIRECT_SUBJECTS: Final = 4096
"""Subjects announced in one turn of the loop when a link joins; more are announced in steps."""
SUBJECTS_PER_STEP: Final = 256
MAX_INTEREST = 1_000_000
"""Largest interest of the other end, in subjects and queue groups."""
VIOLATION_LOG_SECONDS = 10.0
"""Pause between two log lines about refused messages of one link."""
_ACK_DOTS = 8


class SentInterest:
    """The interest announced on one link. `send` queues lines for the other end."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._counts: dict[tuple[bytes, bytes | None], int] = {}
        """Members by subject and queue."""
        self._noting = True
        """True while `_counts` is being filled and nothing has been announced."""

    def change(self, subject: bytes, queue: bytes | None, change: int) -> None:
        """Adds `change` members (negative: removes), and announces the new number if the other end needs it."""
        before, after = self._note(subject, queue, change)
        if before != after and not self._noting and (queue is not None or not before or not after):
            self._send(leaf.interest(subject, queue, after))

    def _note(self, subject: bytes, queue: bytes | None, change: int) -> tuple[int, int]:
        """Counts members; returns their numbers before and after."""
        key = (subject, queue)
        before = self._counts.get(key, 0)
        after = before + change
        assert after >= 0 or self._noting, key  # a member may end before `all_of` has counted it
        if after:
            self._counts[key] = after
        else:
            self._counts.pop(key, None)
        return before, after

    def all_of(self, wanted: Iterable[tuple[bytes, bytes | None, int]], is_over: Callable[[], bool]) -> Steps[None]:
        """Announces all `wanted` interest, (subject, queue, members), of a link that joins, and changes meanwhile."""
        for number, (subject, queue, members) in enumerate(wanted, 1):
            self._note(subject, queue, members)
            if not number % SUBJECTS_PER_STEP:
                yield
                if is_over():
                    return
        self._noting = False  # from here on changes are sent at once, and the lines below use the current counts
        counts, keys = self._counts, list(self._counts)
        for start in range(0, len(keys), SUBJECTS_PER_STEP):
            lines = [
                leaf.interest(*key, counts[key]) for key in keys[start : start + SUBJECTS_PER_STEP] if key in counts
            ]
            self._send(b"".join(lines))
            yield
            if is_over():
                return


class LeafLink(LeafConnection):
    """A leaf link with its parts: the handshake, the input, the rules and the announced interest."""

    def __init__(self, own: LinkParts, remote: LeafRemoteOptions | None = None, url: str = "") -> None:
        super().__init__(own, remote, url)
        self._parts = own.server
        self._links = own.links
        self._handshake = Handshake(self, own)
        self._input = self.reader = LeafInput(self, own.server, self._handshake)
        self._sent_interest = SentInterest(self.send)
        self._violations = 0
        self._quiet_until = 0.0
        """Monotonic seconds from which the next violation is logged."""

    # ---- beginning and end

    def opened(self) -> None:
        self._handshake.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake.lost(exc)
        self._input.finish()
        super().connection_lost(exc)

    def ended(self) -> None:
        self._input.end()
        if self.router is not None:
            self._parts.removals.of_leaf(self.router, self)
        if self.was_up:
            log.info("Leafnode connection closed: %s account: %s", self.close_reason, self.account)
        if self in self._links:
            self._links.remove(self)
        if not self.over.done():
            self.over.set_result(None)

    def answered(self) -> None:
        self._input.go_on()

    def recheck(self) -> None:
        self._handshake.recheck()

    def take_turn(self, quantum: int) -> None:
        self._input.take_turn(quantum)

    def run_command(self, kind: int, subject: bytes, queue: bytes, weight: list[bytes]) -> None:
        if kind == leaf.PING:
            self.send(writer.PONG)
        elif kind == leaf.PONG:
            self.pong_received()
        elif kind == leaf.INTEREST:
            self._wants(subject, queue or None, int(weight[0]))
        elif kind == leaf.GONE:
            self._wants(subject, queue or None, 0)
        else:
            self._handshake.command(kind, subject)

    def join(self) -> None:
        self.disarm("auth")
        router = self.router = self._parts.accounts[self.account]
        self.advance(ConnectionEvent.JOIN)
        self._take_over()
        wanted = router.peers.add_leaf(self)
        if len(wanted) <= MAX_DIRECT_SUBJECTS:
            exhaust(self._announcing(wanted, router.leaf_links))
        else:
            self._announce(wanted, list(router.leaf_links))
        log.info("Leafnode connection created for account: %s, remote: %s", self.account, self.remote_name)

    def _take_over(self) -> None:
        """Closes an older link from the same server, which may reconnect before its old link is found dead."""
        self.was_up = True
        for other in list(self._links):
            same = (other.peer_id, other.account, other.remote_cluster) == (
                self.peer_id,
                self.account,
                self.remote_cluster,
            )
            if same and not other.solicited and not self.solicited:
                other.close("Duplicate Remote LeafNode Connection")
        self._links.append(self)

    def _announcing(self, wanted: Iterable[Wanted], links: Sequence[LeafPeer]) -> Steps[None]:
        """Returns the steps that announce `wanted`. `links`: the leaf links at that time, as one may end meanwhile."""
        own = [self._leaf.loop_mark(self.account), *self._api_subjects()]
        passing = ((subject, queue, n) for source, subject, queue, n in wanted if self._passes(source, subject, links))
        return self._sent_interest.all_of(
            chain([(subject, None, 1) for subject in own], passing), lambda: not self.joined
        )

    def _announce(self, wanted: list[Wanted], links: list[LeafPeer]) -> None:
        try:
            self._parts.budget.start(self, self._announcing(wanted, links), lambda _: None, self._announce_failed)
        except BusyError:
            self.arm("tell", RETRY_SECONDS, self._announce, wanted, links)

    def _announce_failed(self, error: Exception) -> None:
        log.error("leafnode cid %d: internal error, closing the link", self.cid, exc_info=error)
        self.abort("Internal Error")

    def _api_subjects(self) -> list[bytes]:
        domain = self.server.options.domain.encode()
        if not domain or not self._leaf.has_jetstream(self.account):
            return []
        return [b"$JS.%b.API.%b" % (domain, part) for part in API_PARTS]

    # ---- interest of this end

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        assert self.router is not None
        if self._passes(source, subject, self.router.leaf_links):
            self._sent_interest.change(subject, queue, change)

    def _passes(self, source: RemotePeer | None, subject: bytes, links: Sequence[LeafPeer]) -> bool:
        assert self.rules is not None
        return passes(source, self, links) and self.rules.may_announce(subject)

    # ---- interest of the other end

    def _wants(self, subject: bytes, queue: bytes | None, count: int) -> None:
        router, rules = self.router, self.rules
        if router is None or rules is None:
            self.refuse("Protocol Violation", "Authorization Violation")
            return
        if subject == self._leaf.loop_mark(self.account):
            self.retry_after = LOOP_DELAY_SECONDS
            text = f'Loop detected for leafnode account="{self.account}". Delaying attempt to reconnect for 30s'
            self.refuse("Protocol Violation", text)
            return
        if count and not (rules.may_want(subject, queue) and (queue is None or not is_marked(queue))):
            log.debug("leafnode cid %d: may not subscribe to %r", self.cid, subject)
            return
        if count and subject.count(b".") >= MAX_TOKENS:
            return
        if count and self.wanted >= MAX_INTEREST:
            self.refuse("Maximum Subscriptions Exceeded", "maximum subscriptions exceeded")
            return
        self.wanted += router.peers.set_leaf_interest(self, subject, queue, count)

    # ---- messages

    def take_message(self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes) -> None:
        router, rules = self.router, self.rules
        if router is None or rules is None:
            self.refuse("Protocol Violation", "Authorization Violation")
            return
        self.in_msgs += 1
        self.in_bytes += len(headers) + len(payload)
        shown = subject
        if reply.startswith(ACK) and b"@" in reply:
            reply, shown = split_ack(reply, subject)
        refused = rules.first_refused(subject, shown, reply, headers)
        if refused is not None:
            self._report_violation(refused)
            return
        if shown is subject and subject.startswith(b"$JS."):
            # Publishes to another domain's buckets: `$JS.<domain>.API.$KV.<bucket>.<key>`.
            subject = shown = self._without_domain(subject)
        deliver_from_leaf(router, self, subject, shown, reply, queues, headers, payload)

    def _report_violation(self, subject: bytes) -> None:
        """Logs a refused message and sends an -ERR, as nats-server does, but at most every VIOLATION_LOG_SECONDS."""
        self._violations += 1
        now = self.server.clock.monotonic()
        if self.remote is not None or now < self._quiet_until:
            return
        self._quiet_until = now + VIOLATION_LOG_SECONDS
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


def split_ack(reply: bytes, subject: bytes) -> tuple[bytes, bytes]:
    """Splits `$JS.ACK.<stream>.<consumer>.<numbers>@<subject>` into (reply, subject to show), or returns `subject` for
    the latter if there is none. Names may contain "@", so the separator is the first one after the eighth dot."""
    at = -1
    for _ in range(_ACK_DOTS):
        at = reply.find(b".", at + 1)
        if at < 0:
            return reply, subject
    mark = reply.find(b"@", at)
    return (reply, subject) if mark < 0 or mark == len(reply) - 1 else (reply[:mark], reply[mark + 1 :])
