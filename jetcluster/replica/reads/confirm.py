"""Reads that wait until this replica has applied the commit index that it knows, or the leader's.

A leader sends its followers the commit index before it acks, on the same ordered link. So when a client that was acked
through this node reads here, the node already knows that index, though its own fsync of the entry may be in progress.
Waiting for it (a millisecond) gives every connection read-your-writes and monotonic reads without asking the leader.
nats-server's followers answer with the state before the write.

This holds whoever leads now: an index that any leader reported as committed stays committed, also after this replica
has left that term, campaigns, has just taken over, or cannot take the leader's entries (`Receiver.hear`,
`RaftGroup.told_index`). No client of this node can have been acked more. So a replica without a known leader answers
once it has applied that index; until then its readers wait, and after MAX_WAIT_SECONDS another replica is asked. A
replica joins the group only after its leader confirmed the commit index, or when it leads (`Membership`): what it knew
before a restart is forgotten.

Two kinds of replicas may know less than the client was acked. They ask a leader first, once for all waiting requests,
and a majority confirms that it leads. This costs a round trip, which a read on a node with a replica does not pay.

- A replica on another node than the client's, whose link to the leader may be slower, asks the stream's leader for the
  commit index (`stream.commit`). Clients whose node has no current replica meet such replicas.
- A mirror that answers for its upstream in the same cluster asks the upstream's leader for its last sequence
  (`stream.last`). A request for a message by sequence that the mirror has is answered without: later messages never
  change that answer.

When no leader says, or none within PATIENCE_SECONDS, a mirror still answers those who were told of nothing that it
lacks (`Bus.told`): reads go on when an upstream is lost with its node. A client of another node is asked for there
(`tell`). Others wait for a leader, or for the messages on their way, and get a 503 after MAX_SECONDS.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from jetcluster.clock import TimerHandle
from jetcluster.mesh.api import MeshError
from jetcluster.meta.state import Assignment
from jetcluster.mirror.links import Links
from jetcluster.mirror.ports import LastSequence
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.records import NamedTuple
from jetcluster.replica.reads.waits import MAX_SECONDS, Call, Read, ReadAround, ReadRoom, ReadWaits, report
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.stream.lead.answers import PubAcks

if TYPE_CHECKING:
    from jetcluster.raft.api import RaftGroup
    from jetcluster.replica.services import Network

COMMIT_METHOD = "stream.commit"
LAST_METHOD = "stream.last"
TOLD_METHOD = "stream.told"
ORIGIN_METHOD = "stream.origin"
RETRY_SECONDS = 0.05
ASK_SECONDS = 2.0
PATIENCE_SECONDS = 0.25
"""A question for a leader may take so long before reads are answered that need no leader."""
UNLED_SECONDS = 1.0
"""A mirror that found no leader of its upstream asks all nodes for one again after this time."""
MAX_PROOFS = 64
"""Answers of a leader that this replica may wait to reach."""
MAX_ASKED_REPLIES = 256
"""Reply subjects of one question to another node."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TOLD = struct.Struct("<QHH")
_ORIGIN = struct.Struct("<Q?")
_BLANK = b" "
_ANY_AGE = 1 << 62
"""Nanoseconds, for a stream of the future by this node's clock: no ack is taken for one of an earlier stream."""


class ToldStream(NamedTuple):
    """A stream as `Bus.told` knows it."""

    account: str
    stream: bytes
    age: int
    """Nanoseconds since it was created, by the cluster's time."""


async def confirmed_commit(network: Network, group: RaftGroup) -> int | None:
    """The leader's commit index, proven to be current after this call began; None when no leader can prove it now."""
    return await _ask(network, group.leader, COMMIT_METHOD, group.gid)


async def confirmed_last(network: Network, gid: int) -> int | None:
    """The last sequence of a stream at its proven leader; None when no leader can prove it now."""
    if network.leaders.get(gid) is None:
        await network.leaders.wait(gid, RETRY_SECONDS)
    return await _ask(network, network.leaders.get(gid), LAST_METHOD, gid)


async def _ask(network: Network, leader: str | None, method: str, gid: int) -> int | None:
    if leader is None:
        return None
    try:
        (found,) = _U64.unpack(await network.mesh.call(leader, method, _U32.pack(gid), ASK_SECONDS))
    except (MeshError, struct.error):
        return None
    return int(found)


async def origin_last(replica: ReplicaState) -> LastSequence | None:
    """The last sequence of a mirror's origin elsewhere, asked by the mirror's leader after this call began; None when
    the origin does not say."""
    network, group = replica.network, replica.group
    if group.leader is None:
        return None
    try:
        answer = await network.mesh.call(group.leader, ORIGIN_METHOD, _U32.pack(group.gid), ASK_SECONDS)
        return LastSequence(*_ORIGIN.unpack(answer))
    except (MeshError, struct.error):
        return None


async def answer_origin(links: Links) -> bytes:
    """Answer the question of `origin_last` where the mirror's link is. Raises MeshError."""
    answer: asyncio.Future[LastSequence | None] = asyncio.get_running_loop().create_future()

    def told(found: LastSequence | None) -> None:
        if not answer.done():
            answer.set_result(found)

    links.ask_origin(told)
    found = await answer
    if found is None:
        raise MeshError("the origin does not say")
    return _ORIGIN.pack(*found)


async def tell(replica: ReplicaState, stream: Assignment, domain: str, reads: Sequence[Read]) -> None:
    """Set `told` of reads: the last sequence of the stream that PubAcks told their requesters of. Other nodes are asked
    for their clients; unchanged where one does not say."""
    acks = PubAcks(stream.name, domain or None)
    age = replica.runtime.clock.time_ns() - stream.created_ns
    found = ToldStream(stream.account, acks.stream, age if age >= 0 else _ANY_AGE)
    by_origin: dict[Origin | None, list[Read]] = {}
    for read in reads:
        by_origin.setdefault(read.origin, []).append(read)
    await asyncio.gather(*[_told_at(replica, found, some) for some in by_origin.values()])


async def _told_at(replica: ReplicaState, stream: ToldStream, reads: Sequence[Read]) -> None:
    """Do `tell` for reads of one origin."""
    origin = reads[0].origin
    peer = getattr(origin, "peer_id", "") if origin is not None and origin.kind == "peer" else ""
    if not peer:
        for read in reads:
            read.told = replica.bus.told(read.reply, stream.stream, stream.age)
        return
    account = stream.account.encode()
    head = _TOLD.pack(stream.age, len(account), len(stream.stream)) + account + stream.stream
    for place in range(0, len(reads), MAX_ASKED_REPLIES):
        some = reads[place : place + MAX_ASKED_REPLIES]
        body = head + _BLANK.join([read.reply for read in some])
        try:
            answer = await replica.network.mesh.call(peer, TOLD_METHOD, body, PATIENCE_SECONDS)
        except MeshError:
            return
        if len(answer) == len(some) * _U64.size:
            for read, (seq,) in zip(some, _U64.iter_unpack(answer), strict=True):
                read.told = seq


def answer_told(bus: Callable[[str], Bus], payload: bytes) -> bytes:
    """Answer the question of `tell` at the clients' node. Raises MeshError."""
    try:
        age, account_size, stream_size = _TOLD.unpack_from(payload)
        place = _TOLD.size + account_size
        account, stream = payload[_TOLD.size : place].decode(), payload[place : place + stream_size]
    except (struct.error, UnicodeDecodeError) as error:
        raise MeshError(f"malformed question: {error}") from error
    router = bus(account)
    replies = payload[place + stream_size :].split(_BLANK)
    return b"".join([_U64.pack(router.told(reply, stream, age)) for reply in replies])


class ReadConfirmations:
    """Reads that wait for a leader's confirmation."""

    def __init__(
        self,
        around: ReadAround,
        ask: Callable[[], Awaitable[int | None]],
        reached: Callable[[], int],
        tell: Callable[[list[Read]], Awaitable[None]] | None = None,
        clock_drift: float = 0.0,
        others: Callable[[], bool] | None = None,
    ) -> None:
        """`ask` returns the index that this replica must reach before it answers, None when no leader says; `reached`
        returns the index that it has reached. `tell` sets `told` of reads, in the measure of `reached`, for what may be
        answered without a leader. `clock_drift`: share by which this node's clock may be slow. `others`: see
        `ReadWaits`; reads that are not `strict` stay where there are none. None: none stay."""
        self._clock, self._timers, self._due = around.clock, around.timers, around.due
        self._ask = ask
        self._reached = reached
        self._tell = tell
        self._clock_drift = clock_drift
        self._room = ReadRoom(around.memory)
        self._stay = others is not None
        self.waits = ReadWaits(around, self._room, others or (lambda: True))
        self._coming: list[Read] = []
        self._asked: list[Read] = []
        """The reads for which the question in progress was asked; later reads need a newer answer."""
        self._unled: list[Read] = []
        """Reads that wait for a leader after one was asked in vain."""
        self._came = asyncio.Event()
        """A read is in `_coming`."""
        self._proofs: deque[tuple[float, int]] = deque()
        """When a leader was asked that then answered, and its answer, which this replica has not reached; both grow."""
        self._proven: float | None = None
        self._looked = 0.0
        """When those in `_unled` were last looked at."""
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._patience: TimerHandle | None = None
        """Ends when reads that need no leader are answered although one was asked."""
        self._meanwhile: asyncio.Task[None] | None = None
        """Answers them."""

    def hold(
        self,
        answer: Call,
        give_up: Call,
        refuse: Call,
        origin: Origin | None = None,
        reply: bytes = b"",
        *,
        strict: bool = False,
        size: int = 0,
    ) -> bool:
        """Call `answer` once this replica has all that is committed by now, `give_up` when that takes too long, or
        `refuse` when no leader has answered for MAX_SECONDS. False, and nothing is called, where there is no room.
        `origin`, `reply`: the requester and the subject of the answer. `strict`: it needs a leader in any case. `size`:
        bytes of the request."""
        return self.take(Read(origin, reply, answer, give_up, refuse, strict=strict, size=size))

    def take(self, read: Read) -> bool:
        """Do `hold`."""
        if not self._room.enter(read):
            return False
        read.deadline = self._clock.monotonic() + MAX_SECONDS
        read.stays = self._stay and not read.strict
        self._coming.append(read)
        self._came.set()
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_SECONDS, self._expire)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return True

    @property
    def proven_at(self) -> float | None:
        """The `uptime` up to which this replica provably has all that was committed; None without a proof."""
        proofs, reached = self._proofs, self._reached()
        while proofs and proofs[0][1] <= reached:
            self._proven = proofs.popleft()[0]
        return self._proven

    def since(self, began: float) -> float:
        """Return the seconds since that `uptime`, at most: this node's clock may be slow within its bound, and counts
        also while its machine is suspended."""
        return (self._clock.uptime() - began) / (1 - self._clock_drift)

    def look(self) -> None:
        """Ask once, for a new proof, unless a question is in progress. Reads that come meanwhile wait for the next."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        me = self._task
        began = self._clock.uptime()
        wanted = await self._question()
        if self._task is me:
            self._prove(began, wanted)
            await self._run()

    def _prove(self, began: float, wanted: int | None) -> None:
        if wanted is None:
            return
        proofs = self._proofs
        while proofs and (proofs[-1][1] >= wanted or len(proofs) >= MAX_PROOFS):
            proofs.pop()  # the newest: an earlier one is reached first, or none ever is while the stream grows
        proofs.append((began, wanted))

    def advanced(self) -> None:
        """Note that the replica has advanced."""
        self.waits.applied(self._reached())

    def clear(self) -> None:
        """Refuse or give up on all reads now."""
        self._proofs.clear()
        self._proven = None
        waiting = self._asked + self._coming + self._unled
        self._asked, self._coming, self._unled = [], [], []
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._end_patience()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for read in waiting:
            read.leave()
            read.refuse()
        self._due.clear()
        self.waits.clear()

    async def _run(self) -> None:
        me = self._task
        try:
            while (self._coming or self._unled) and self._task is me:
                try:
                    await self._turn()
                except Exception as error:  # noqa: BLE001 - a defect: they are asked for again, or refused late
                    report("reads could not be confirmed", error)
                    if self._task is not me:
                        return
                    self._unled += self._asked
                    self._asked = []
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            if self._task is me:
                self._task = None

    async def _turn(self) -> None:
        """Ask once, for all reads that have come."""
        self._asked, self._coming = self._coming, []
        self._came.clear()
        began = self._clock.uptime()
        wanted = await self._patiently()
        self._prove(began, wanted)
        if wanted is None:
            await self._answer_unled(self._asked)
            self._unled += self._asked
            self._asked = []
            await self._pause()
        else:
            asked, self._asked, self._unled = self._asked + self._unled, [], []
            self._confirmed(asked, wanted)

    async def _question(self) -> int | None:
        """Return the leader's answer, None also when asking failed in a way that nobody foresaw."""
        try:
            return await self._ask()
        except Exception as error:  # noqa: BLE001 - a defect
            report("a leader could not be asked", error)
            return None

    async def _patiently(self) -> int | None:
        """Return the leader's answer; meanwhile, reads that need none are answered after PATIENCE_SECONDS. Most answers
        come before that: a timer costs a third of a task."""
        if self._tell is None:
            return await self._question()
        me = self._task
        self._await_patience()
        try:
            return await self._question()
        finally:
            if self._task is me:  # `clear` has ended it before, and a newer question may have its own
                self._end_patience()

    def _await_patience(self) -> None:
        self._patience = self._timers.call_later(PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._meanwhile = asyncio.get_running_loop().create_task(self._answer_meanwhile())

    async def _answer_meanwhile(self) -> None:
        me = self._meanwhile
        try:
            await self._answer_unled(self._asked)
            await self._answer_unled(self._coming)
        except Exception as error:  # noqa: BLE001 - a defect: they wait for the leader
            report("reads could not be answered without a leader", error)
        if self._meanwhile is me:  # an answer may have led to `clear`
            self._await_patience()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._meanwhile is not None:
            self._meanwhile.cancel()
            self._meanwhile = None

    async def _pause(self) -> None:
        """Return when the leader should be asked again, or a read has come that may need none."""
        if self._tell is None or not self._unled:
            await asyncio.sleep(RETRY_SECONDS if self._unled else 0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._came.wait()
        if (now := self._clock.monotonic()) - self._looked >= RETRY_SECONDS:
            self._looked = now
            await self._answer_unled(self._unled)

    async def _answer_unled(self, reads: list[Read]) -> None:
        """Answer those of a list whose requesters were told of nothing that this replica lacks, and remove them."""
        if self._tell is None or not reads:
            return
        reads[:] = [part for read in reads for part in _parts(read)]
        unknown = [read for read in reads if read.told is None and not read.strict]
        if unknown:
            await self._tell(unknown)
        reached = self._reached()
        due = [read for read in reads if read.told is not None and read.told <= reached]
        reads[:] = [read for read in reads if read.told is None or read.told > reached]
        self._due.add(due)
        self._due.answer()

    def _confirmed(self, asked: list[Read], wanted: int) -> None:
        if wanted <= self._reached():
            self._due.add(asked)
            self._due.answer()
            return
        for read in asked:
            self.waits.add(wanted, read)

    def _expire(self) -> None:
        """Refuse reads that have waited too long, also while a question is in progress: it may never be answered."""
        self._timer = None
        now = self._clock.monotonic()
        late: list[Read] = []
        for reads in (self._unled, self._asked, self._coming):
            late += [read for read in reads if read.deadline <= now]
            reads[:] = [read for read in reads if read.deadline > now]
        if left := self._unled + self._asked + self._coming:
            first = min(read.deadline for read in left)
            self._timer = self._timers.call_later(first - now, self._expire)
        for read in late:
            read.leave()
            read.refuse()


def _parts(read: Read) -> list[Read]:
    """The reads that one stands for; itself where nobody needs to know who asks."""
    if read.parts is None or read.strict:
        return [read]
    found = read.parts()
    for part in found:
        part.deadline, part.room, part.stays = read.deadline, read.room, read.stays
    return found
