"""Bringing up a replica whose next log entry no peer's journal holds any more.

The replica pulls: it opens a snapshot at a peer, fetches what differs from what it has, makes that durable, and only
then tells its Raft group to continue after the snapshot's index. The peer gives what it is asked for from a fixed view
of its store (`exports.py`) and keeps serving; what it does also keeps its log from being forgotten, if it leads.
Nothing on its side grows with the stream's size.

While one list of ranges is compared the next one is on its way, and several chunks of what differs, so that a round
trip of 50 ms costs no more than to read the records. What comes is put in its place in the order of the walk. All of it
is made in slices of milliseconds between other work.

A transfer that is broken off, by a link that is lost for long, a restart of either side or another leader, goes on
where it was: what has come is equal by then. So does the next one, when the log that follows the state was forgotten
meanwhile.

`Room` makes room on the disk for a state that is installed over another one, where both do not fit.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from jetcluster.clock import Clock, Rng
from jetcluster.logs import Log
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.mesh.core import MeshCore
from jetcluster.ordered import OrderedSet
from jetcluster.records import dataclass
from jetcluster.replica.exports import (
    ASK_RANGES,
    ASK_READ,
    CHUNK_BYTES,
    CLOSE,
    OPEN,
    RANGES,
    READ,
    SLICE,
    Exports,
    Opened,
    SnapshotOwner,
    Spans,
    Troubles,
    rest,
)
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvError, KvFullError
from jetcluster.store.rocks import Snapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import END, START, Range, Taker, WantedRange, decode_ranges, encode_places

RESUME_SECONDS = 25.0
"""A peer out of reach is asked again for so long; less than it keeps the export."""
TIMEOUT = 10.0
RETRY_PAUSE = 0.2
STORE_PAUSE = 0.05
"""Until what the store had no room for is tried again."""
AHEAD = 4
"""Chunks asked for at a time."""


@dataclass(slots=True)
class Pull:
    """One transfer to this node (for monitoring)."""

    gid: int
    peer: str
    began: float
    size: int
    """About as many bytes are to be compared."""
    messages: int
    """In all of them."""
    compared: int = 0
    """Bytes that are here as the peer has them, whether they were or had to come."""
    fetched: int = 0
    """Bytes that had to come."""
    stalled: bool = False
    """The peer is out of reach."""

    @property
    def missing(self) -> int:
        """Messages that may still have to come, about."""
        return rest(self.messages, self.compared, self.size)


class Transfer:
    """One walk through export `export_id` of `pull.peer`."""

    def __init__(self, mesh: MeshCore, clock: Clock, pull: Pull, export_id: str) -> None:
        self._mesh = mesh
        self._clock = clock
        self._pull = pull
        self._id = export_id.encode()
        self._tasks: OrderedSet[asyncio.Task[bytes]] = OrderedSet()
        self._wanted: list[WantedRange] = []
        self._wanted_bytes = 0
        self._under_way: deque[tuple[list[WantedRange], asyncio.Task[bytes]]] = deque()
        self._view: Snapshot | None = None
        self._work = 0

    async def run(self, owner: SnapshotOwner, begin: Callable[[], Taker] | None) -> None:
        """Makes what the taker writes to equal to the peer's; without one all is only announced, which shows that the
        peer can read it. `begin` gives the taker, and is called when the first announcement has come: what gives up a
        state must not do so for a peer that says no. Raises MeshError, DamagedError, KvError, and what `begin` does."""
        place = START
        taker: Taker | None = None
        try:
            ahead = self._begin(self._ask_ranges(place))
            while place != END:
                found = decode_ranges(place, await self._end(ahead))
                if not found:
                    raise MeshError(f"{self._pull.peer} announced nothing")
                if begin is not None and taker is None:
                    taker = begin()
                place = found[-1].end
                if place != END:
                    ahead = self._begin(self._ask_ranges(place))
                if taker is not None:
                    await self._compare(owner, taker, found)
            if taker is not None:
                await self._drain(owner, taker)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _compare(self, owner: SnapshotOwner, taker: Taker, found: list[Range]) -> None:
        for one in found:
            if self._view is None:
                self._view = taker.view()
            wanted = taker.compare(one, self._view)
            if wanted is None:
                self._pull.compared += one.size
            else:
                self._want(wanted)
                while len(self._under_way) > AHEAD:
                    await self._take(owner, taker)
            await self._pause(one.cost)

    async def _drain(self, owner: SnapshotOwner, taker: Taker) -> None:
        self._ask_wanted()
        while self._under_way:
            await self._take(owner, taker)

    def _want(self, wanted: WantedRange) -> None:
        if self._wanted and self._wanted_bytes + wanted.range.size > CHUNK_BYTES:
            self._ask_wanted()
        self._wanted.append(wanted)
        self._wanted_bytes += wanted.range.size

    def _ask_wanted(self) -> None:
        if self._wanted:
            task = self._begin(self._read(_spans(self._wanted), self._wanted_bytes))
            self._under_way.append((self._wanted, task))
            self._wanted, self._wanted_bytes = [], 0

    async def _take(self, owner: SnapshotOwner, taker: Taker) -> None:
        """The oldest of what was asked for."""
        batch, task = self._under_way.popleft()
        data = await self._end(task)
        self._view = None  # what is deleted can be freed only while nobody looks at it
        await owner.snapshot_room(len(data))
        at = 0
        for wanted in batch:
            size = wanted.range.size
            taker.take(wanted, data[at : at + size])
            at += size
            self._pull.compared += size
            self._pull.fetched += size
            await self._pause(wanted.range.cost)
        taker.commit()
        while taker.overloaded:
            await asyncio.sleep(STORE_PAUSE)
            taker.commit()

    async def _pause(self, cost: int) -> None:
        """Lets others work now and then."""
        self._work += cost
        if self._work >= SLICE:
            self._work = 0
            await asyncio.sleep(0)

    # -- requests

    def _begin(self, request: Coroutine[Any, Any, bytes]) -> asyncio.Task[bytes]:
        task = asyncio.get_running_loop().create_task(request)
        self._tasks.add(task)
        return task

    async def _end(self, task: asyncio.Task[bytes]) -> bytes:
        try:
            return await task
        finally:
            if task.done():
                self._tasks.discard(task)

    async def _ask_ranges(self, place: bytes) -> bytes:
        return await self._call(RANGES, ASK_RANGES.pack(self._id, self._pull.compared) + place)

    async def _read(self, spans: Spans, size: int) -> bytes:
        """All of `spans`, a chunk at a time; usually it is one."""
        places = encode_places([place for span in spans for place in span])
        chunks: list[bytes] = []
        got = 0
        while got < size:
            chunks.append(await self._call(READ, ASK_READ.pack(self._id, got) + places))
            if not chunks[-1]:
                raise MeshError(f"{self._pull.peer} gave {got} bytes of {size}")
            got += len(chunks[-1])
        if got != size:
            raise MeshError(f"{self._pull.peer} gave {got} bytes instead of {size}")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _call(self, method: str, payload: bytes) -> bytes:
        """Raises MeshError."""
        until = self._clock.monotonic() + RESUME_SECONDS
        while True:
            try:
                answer = await self._mesh.call(self._pull.peer, method, payload, TIMEOUT)
            except MeshRefusedError:
                raise
            except MeshError:
                if self._clock.monotonic() >= until:
                    raise
            else:
                self._pull.stalled = False
                return answer
            self._pull.stalled = True
            await asyncio.sleep(RETRY_PAUSE)


def _spans(batch: list[WantedRange]) -> Spans:
    """The places of ascending ranges, neighbours as one span."""
    found: Spans = []
    for one in (wanted.range for wanted in batch):
        if found and found[-1][1] == one.start and found[-1][0][0] == one.start[0]:
            found[-1] = (found[-1][0], one.end)
        else:
            found.append((one.start, one.end))
    return found


FULL_SECONDS = 30.0
"""A state that did not fit on the disk is not fetched again for so long, unless it is half as large by then."""


class CatchUp:
    """Serves this node's snapshots and pulls those of peers. One pull per group at a time."""

    def __init__(self, mesh: MeshCore, clock: Clock, rng: Rng, owners: dict[int, SnapshotOwner], log: Log) -> None:
        self._mesh = mesh
        self._clock = clock
        self._owners = owners
        self._log = log
        self._troubles = Troubles(clock, log)
        self._exports = Exports(mesh, clock, rng, owners, log, self._troubles)
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._stopped = False
        self.transfers: dict[int, Pull] = {}
        """The running pulls, by group, with what they have received."""
        self._too_large: dict[int, tuple[int, float]] = {}
        """Group -> the size of a state that did not fit, and until when that counts."""

    def pull(self, gid: int, peer: str, index: int) -> None:
        """Starts to bring group `gid` to at least `index` from `peer`. While a pull is running it does nothing, but for
        one that waits for another peer that is out of reach: that ends, so that the next call finds none."""
        task = self._pulls.get(gid)
        if task is not None:
            running = self.transfers.get(gid)
            if running is not None and running.stalled and running.peer != peer:
                task.cancel()
        elif not self._stopped:
            task = asyncio.get_running_loop().create_task(self._pull(gid, peer, index), name=f"catch-up {gid}")
            self._pulls[gid] = task
            task.add_done_callback(lambda _: self._pulls.pop(gid, None))

    def running(self, gid: int) -> bool:
        return gid in self._pulls

    def progress(self) -> list[tuple[Pull, float]]:
        """The transfers to this node and how many seconds each runs (for monitoring)."""
        now = self._clock.monotonic()
        return [(pull, now - pull.began) for _, pull in sorted(self.transfers.items())]

    def missing(self, gid: int, peer: str) -> int | None:
        """Messages that `peer`, which fetches the state of the group from here, lacks, about; None when it does not
        fetch it."""
        return self._exports.missing(gid, peer)

    @property
    def exports(self) -> int:
        """Snapshots being read here (for monitoring); each pins a view of the data store."""
        return len(self._exports)

    def forget(self, gid: int) -> None:
        """The replica goes away: its pull ends before it takes another step, nobody reads its state any more."""
        self._too_large.pop(gid, None)
        self._troubles.over(gid)
        task = self._pulls.get(gid)
        if task is not None:
            task.cancel()
        self._exports.forget(gid)

    def tick(self) -> None:
        self._exports.tick()

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._pulls.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._exports.clear()

    async def _pull(self, gid: int, peer: str, index: int) -> None:
        """Never raises: the group asks again (`on_snapshot_needed`) as long as it cannot go on. A half import is marked
        as such in the store and is never served."""
        try:
            await self._fetch(self._owners[gid], gid, peer, index)
        except MeshError as error:
            self._troubles.failed(gid, peer, error)
            await asyncio.sleep(RETRY_PAUSE)
        except (DamagedError, KvError) as error:
            self._log.error("catch-up failed", gid=gid, peer=peer, error=str(error) or repr(error))
            await asyncio.sleep(RETRY_PAUSE)
        except Exception as error:  # noqa: BLE001 - nobody awaits this task; silence would look like a slow peer
            self._log.error("catch-up failed", gid=gid, peer=peer, error=repr(error))
            await asyncio.sleep(RETRY_PAUSE)
        finally:
            self.transfers.pop(gid, None)

    async def _fetch(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> None:
        opened = await self._open(owner, gid, peer, index)
        if owner.keeps_state:
            await self._transfer(owner, gid, peer, opened, None)
            opened = await self._open(owner, gid, peer, index)
        try:
            pull = await self._transfer(owner, gid, peer, opened, partial(self._begin, owner, opened))
            await owner.snapshot_end(opened.index, opened.term, opened.config)
        except KvFullError:
            # Others need what is left: no half of it is kept, and no whole one fetched again and again.
            self._too_large[gid] = opened.size, self._clock.monotonic() + FULL_SECONDS
            await owner.snapshot_abandon()
            raise
        self._too_large.pop(gid, None)
        self._troubles.over(gid)
        took = round(self._clock.monotonic() - pull.began, 3)
        figures = {"compared": pull.compared, "fetched": pull.fetched, "seconds": took}
        self._log.info("caught up from a snapshot", gid=gid, peer=peer, index=opened.index, **figures)

    async def _open(self, owner: SnapshotOwner, gid: int, peer: str, index: int) -> Opened:
        request = json.dumps({"gid": gid, "index": max(index, owner.state_index)}).encode()
        opened = Opened.decode(await self._mesh.call(peer, OPEN, request))
        size, until = self._too_large.get(gid, (0, 0.0))
        refused = _overtaken(owner, opened)
        if not refused and opened.size > size // 2 and self._clock.monotonic() < until:
            refused = "there is no room for it yet"
        if refused:
            self._mesh.notify(peer, CLOSE, opened.id.encode())
            raise MeshError(refused)
        return opened

    def _begin(self, owner: SnapshotOwner, opened: Opened) -> Taker:
        """The peer has shown that it gives what it opened, and that the two sides understand each other."""
        if refused := _overtaken(owner, opened):
            raise MeshError(refused)
        return owner.snapshot_begin()

    async def _transfer(
        self, owner: SnapshotOwner, gid: int, peer: str, opened: Opened, begin: Callable[[], Taker] | None
    ) -> Pull:
        """Without `begin` it is only seen that the peer can read all of it."""
        pull = Pull(gid, peer, self._clock.monotonic(), opened.size, opened.messages)
        self.transfers[gid] = pull
        try:
            await Transfer(self._mesh, self._clock, pull, opened.id).run(owner, begin)
        finally:
            self._mesh.notify(peer, CLOSE, opened.id.encode())
        return pull


def _overtaken(owner: SnapshotOwner, opened: Opened) -> str:
    return "the log was faster" if opened.index < owner.state_index or not owner.wants_state else ""


SETTLE: Final = 2.0
"""Seconds. RocksDB deletes files some time after what was in them is gone: when nobody reads them and no compaction
is at work, which also needs space meanwhile."""
LOOK: Final = 0.05


class Room:
    """One per import: what it replaced is freed once, and what it might still replace is given up once."""

    def __init__(self, kv: RocksKv, store: BlockStore, taker: Taker, name: str) -> None:
        """`name`: of the stream, for the log."""
        self._name = name
        self._kv = kv
        self._store = store
        self._taker = taker
        self.reclaimed = 0

    async def make(self, size: int) -> None:
        """Returns when `size` bytes fit on the disk. Raises KvFullError, KvError."""
        while not await self._fits(size):
            if self.reclaimed == 2:
                spare = self._kv.spare_bytes
                raise KvFullError(f"there is no room for the state of {self._name}: {spare} bytes are left")
            # What was replaced so far fills the disk, or is in the way together with what may be replaced later.
            if self.reclaimed:
                self._taker.give_up_rest()
            self.reclaimed += 1
            await self._store.reclaim()

    async def _fits(self, size: int) -> bool:
        """Also soon, once something was given up."""
        for _ in range(round(SETTLE / LOOK) if self.reclaimed else 0):
            if self._kv.spare_bytes >= size:
                return True
            await asyncio.sleep(LOOK)
        return self._kv.spare_bytes >= size
