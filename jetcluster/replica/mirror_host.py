"""A replica's links to upstreams, and its reads on behalf of a mirror's upstream: wiring for `jetcluster.mirror`.

Links run while the replica leads. Every replica of a mirror answers Direct Gets for the upstream (`MirroredStream`)
while the log says that the mirror is close to it. An unreachable upstream does not change that, so reads go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from jetcluster import native
from jetcluster.meta.state import Assignment
from jetcluster.mirror.link import CURRENT_MESSAGES
from jetcluster.mirror.links import Links
from jetcluster.mirror.ports import LastSequence, LinkDependencies, Pace, Paces
from jetcluster.model.times import rfc3339
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.raft.api import RaftError
from jetcluster.replica.reads.confirm import UNLED_SECONDS, confirmed_last, origin_last, tell
from jetcluster.replica.reads.waits import Read
from jetcluster.replica.repair import Failures
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import sourced
from jetcluster.stream.apply.sourced import Cursor
from jetcluster.stream.read.freshness import FreshnessError
from jetcluster.stream.read.get_request import GetRequest, MalformedRequest
from jetcluster.stream.rules import DEFAULT, STRONG, WEAK, StreamRules, short_hash

PARTIAL = ("filter_subject", "subject_transforms", "opt_start_seq", "opt_start_time", "consumer")
"""Fields of a mirror's link that make it omit or change messages of the upstream."""
MAX_LAG_MESSAGES = 8192
"""Messages that a mirror may lack before it leaves its upstream's group."""


class MirrorHost:
    """The links of one replica, and their `mirror.ports.LinkTarget`."""

    def __init__(self, replica: ReplicaState, domain: str, link_paces: Paces, failures: Failures) -> None:
        self._place = domain, replica.network.cluster_name
        self._known = replica.known
        runtime = self._runtime = replica.runtime
        self._replica = replica
        self._failures = failures
        self._propose = replica.propose_data
        self.report_damage = replica.report_damage
        rooms = (replica.bus, runtime.clock, runtime.timers, runtime.rng, runtime.log)
        around = LinkDependencies(*rooms, self, link_paces)
        self.links = Links(around, replica.assignment.name)

    @property
    def rules(self) -> StreamRules:
        return self._replica.machine.rules

    @property
    def store(self) -> BlockStore:
        return self._replica.store

    def cursor(self, key: bytes) -> Cursor | None:
        return self._replica.machine.cursor(key)

    def propose(self, command: bytes) -> int | None:
        try:
            return self._propose(command)
        except RaftError as error:
            self._runtime.log.debug("proposal refused", stream=self._replica.assignment.name, error=str(error))
            return None

    @property
    def origin(self) -> bytes:
        assignment = self._replica.assignment
        parts = (*self._place, assignment.account, assignment.name, assignment.created_ns)
        return "/".join(map(str, parts)).encode()

    def knows(self, name: str) -> bool:
        return self._known.machine.assignment(self._replica.assignment.account, name) is not None

    def begin(self) -> None:
        self._guarded(self.links.begin)

    def configure(self) -> None:
        self._guarded(self.links.configure)

    def tick(self) -> None:
        self._guarded(self.links.tick)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run `work`; an impossible link must not stop the stream."""
        try:
            work()
        except DamagedError as error:
            self.report_damage(error)
        except Exception as error:  # noqa: BLE001 - an upstream's name and answers are beyond this node's control
            self._failures.failed("links of the stream fail", error)

    def applied(self, index: int, result: object) -> None:
        """Note a result inside apply, which may be before `propose` has returned; the links handle it later."""
        if self.links.by_key:
            self._runtime.timers.call_soon(self.links.applied, index, result)


class MirroredStream:
    """The upstream of a mirror, as a `reads.membership.AskedStream`. The mirror's replica joins the upstream's queue
    group while the mirror is current. It leaves when the mirror lags far, or when this node has a replica of the
    upstream that answers, which holds all that its clients were acked.

    For an upstream in the same cluster its leader is asked for the last sequence, and the answer waits until the mirror
    has it, except for messages by sequence, which never change, unless the upstream is `strong`. Without a leader the
    mirror answers those who were told of nothing that it lacks, and others with 503 (`ReadConfirmations`). Answers for
    an upstream elsewhere, or a deleted one, are as old as the mirror.

    A mirror does not answer for a stream that merely has the upstream's name: one of this account where the upstream is
    elsewhere, or one that was created anew."""

    answers_unled = True
    may_change = True
    role = "mirror"

    def __init__(self, replica: ReplicaState, domain: str, looks: Pace) -> None:
        self.looks: Pace | None = looks
        self._known = replica.known
        self._replica = replica
        self._domain = domain
        self._unled_until = 0.0
        """Nobody leads the upstream, as far as all nodes said; they are asked again after this time."""
        self._proves = True
        """The origin elsewhere proved what it answered last, or was not asked yet."""

    @property
    def name(self) -> str:
        mirror = self._replica.machine.rules.mirror
        return str(mirror["name"]) if mirror is not None else ""

    @property
    def is_another(self) -> bool:
        """True when the stream that has the upstream's name here is not the one that was mirrored."""
        mirror, found = self._replica.machine.rules.mirror, self._namesake
        if mirror is None or found is None:
            return False
        return bool(mirror.get("external")) or self.is_replaced

    @property
    def is_replaced(self) -> bool:
        """True when the upstream, of this cluster, was created anew: nobody knows any more how old the mirror is."""
        upstream = self._upstream
        if upstream is None:
            return False
        cursor = self._replica.machine.cursor(sourced.MIRROR)
        return cursor is not None and cursor.identity not in (b"", _identity(upstream.created_ns))

    def allows(self, joined: bool) -> bool:
        if not self._replica.machine.rules.mirror_direct or self.is_another or not self.is_copied_whole:
            return False  # it would answer "not found" for messages that it omits by design
        upstream = self._upstream
        here = self._known.replicas.get(upstream.gid) if upstream is not None else None
        if here is not None and here.answers_reads:
            return False
        cursor = self._replica.machine.cursor(sourced.MIRROR)
        return cursor is not None and cursor.lag < (MAX_LAG_MESSAGES if joined else CURRENT_MESSAGES)

    @property
    def is_copied_whole(self) -> bool:
        rules = self._replica.machine.rules
        if rules.mirror is None or rules.subject_transform is not None:
            return False
        return not any(rules.mirror.get(field) for field in PARTIAL)

    def confirms(self, origin: Origin, payload: bytes) -> bool:
        if self._upstream is None or (consistency := self.consistency) == WEAK:
            return False
        return consistency == STRONG or not self._has(payload)

    def unconfirmed(self, origin: Origin, messages: Sequence[Outgoing]) -> int:
        """Only requests that compiled code reads are counted where it matters what they ask for."""
        if self._upstream is None or self.consistency == WEAK:
            return len(messages)
        plain, contains = native.plain_get, self._replica.store.contains
        if plain is None or self.consistency == STRONG:
            return 0
        for count, message in enumerate(messages):
            wanted = plain(message[3])
            if not isinstance(wanted, int) or not contains(wanted):
                return count
        return len(messages)

    async def confirmed(self) -> int | None:
        """Return the last sequence of the upstream."""
        upstream = self._upstream
        if upstream is None:
            found_elsewhere = await self._elsewhere()
            return found_elsewhere.seq if found_elsewhere is not None and found_elsewhere.proven else None
        network, now = self._replica.network, self._replica.runtime.clock.monotonic
        if network.leaders.get(upstream.gid) is None and now() < self._unled_until:
            return None
        found = await confirmed_last(network, upstream.gid)
        if found is None and network.leaders.get(upstream.gid) is None:
            self._unled_until = now() + UNLED_SECONDS
        return found

    async def heard(self) -> int | None:
        """Return the last sequence of the upstream, by the word of an origin elsewhere if need be."""
        if self.is_replaced:
            return None
        if self._upstream is not None:
            return await self.confirmed()
        found = await self._elsewhere()
        return found.seq if found is not None else None

    async def _elsewhere(self) -> LastSequence | None:
        found = await origin_last(self._replica)
        if found is not None:
            self._proves = found.proven
        return found

    async def tell(self, reads: list[Read]) -> None:
        """Set `told` of reads: the last sequence of the upstream that their requesters were told of."""
        upstream = self._upstream
        if upstream is not None:
            await tell(self._replica, upstream, self._domain, reads)

    @property
    def consistency(self) -> str:
        upstream = self._upstream
        return DEFAULT if upstream is None else upstream.config.get("read_consistency") or DEFAULT

    @property
    def provable(self) -> bool:
        return self._proves or self._upstream is not None

    def knows_all_told(self, origin: Origin) -> bool:
        return False

    def reached(self) -> int:
        return self._replica.store.last_seq

    def _has(self, payload: bytes) -> bool:
        """True when the request is for one message by its sequence, and the mirror has it."""
        try:
            request = GetRequest.decode(payload) if payload else None
        except (MalformedRequest, FreshnessError):
            return False
        if request is None or request.given not in (["seq"], ["seq", "no_hdr"]):
            return False
        return self._replica.store.contains(request.seq)

    @property
    def _namesake(self) -> Assignment | None:
        """The stream of this account and cluster, other than the mirror, that has the upstream's name."""
        mirror, own = self._replica.machine.rules.mirror, self._replica.assignment
        found = self._known.machine.assignment(own.account, str(mirror["name"])) if mirror is not None else None
        return found if found is not None and found.gid != own.gid else None

    @property
    def _upstream(self) -> Assignment | None:
        """The upstream, if it is of this cluster and account."""
        mirror = self._replica.machine.rules.mirror
        return None if mirror is None or mirror.get("external") else self._namesake


@lru_cache(maxsize=1024)
def _identity(created_ns: int) -> bytes:
    """The identity that a link gives to an upstream created at this time (`sourced.Cursor`)."""
    return short_hash(rfc3339(created_ns).encode())
