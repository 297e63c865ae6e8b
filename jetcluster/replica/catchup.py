"""Catch-up of a replica whose next log entry is in no peer's journal any more.

The replica pulls: it opens a snapshot at a peer, fetches the records that differ from its own, makes them durable, and
only then lets its Raft group continue after the snapshot's index. The peer answers from a fixed view of its store
(`exports.py`) and goes on serving; a leader keeps its log meanwhile. Nothing on its side grows with the stream's size.

While one list of ranges is compared, the next list and several chunks of differing records are on their way, so a round
trip of 50 ms costs no more than reading the records. Chunks are stored in the order of the walk, and all work is done
in slices of milliseconds.

A transfer that was broken off (a lost link, a restart of either side, another leader) effectively resumes: the ranges
already fetched are equal by then. The same holds for a second transfer, when the log after the state was discarded
meanwhile.

`Room` makes room on the disk for a new state where it does not fit beside the old one.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from jetcluster.cancelling import cancelled
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
    SLICE_BYTES,
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
"""Time for which an unreachable peer is asked again; less than the peer keeps the export."""
TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 0.2
STORE_RETRY_SECONDS = 0.05
"""Delay before a chunk for which the store had no room is tried again."""
MAX_CHUNKS_AHEAD = 4
"""Chunks requested at a time."""


@dataclass(slots=True)
class Pull:
    """One transfer to this node (for monitoring)."""

    gid: int
    peer: str
    began: float
    size: int
    """Estimated bytes to compare."""
    messages: int
    """Messages in those bytes."""
    compared: int = 0
    """Bytes that are equal to the peer's by now, fetched or not."""
    fetched: int = 0
    """Bytes that had to be fetched."""
    stalled: bool = False
    """The peer is unreachable."""

    @property
    def missing(self) -> int:
        """Estimated messages that may still have to be fetched."""
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
        """Make the taker's store equal to the peer's. `begin` returns the taker; it is called after the first answer,
        because it gives up a state, which must not happen for a peer that refuses. Without `begin` ranges are only
        announced: the peer can read them. Raises MeshError, DamagedError, KvError, and the errors of `begin`."""
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
            await cancelled(self._tasks)

    async def _compare(self, owner: SnapshotOwner, taker: Taker, found: list[Range]) -> None:
        for one in found:
            if self._view is None:
                self._view = taker.view()
            wanted = taker.compare(one, self._view)
            if wanted is None:
                self._pull.compared += one.size
            else:
                self._want(wanted)
                while len(self._under_way) > MAX_CHUNKS_AHEAD:
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
        """Store the oldest requested chunk."""
        batch, task = self._under_way.popleft()
        data = await self._end(task)
        self._view = None  # RocksDB frees deleted rows only when no view pins them
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
            await asyncio.sleep(STORE_RETRY_SECONDS)
            taker.commit()

    async def _pause(self, cost: int) -> None:
        """Yield to other work after enough bytes."""
        self._work += cost
        if self._work >= SLICE_BYTES:
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
        """Return the records of `spans`, requested chunk by chunk; one chunk is the usual case."""
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
                answer = await self._mesh.call(self._pull.peer, method, payload, TIMEOUT_SECONDS)
            except MeshRefusedError:
                raise
            except MeshError:
                if self._clock.monotonic() >= until:
                    raise
            else:
                self._pull.stalled = False
                return answer
            self._pull.stalled = True
            await asyncio.sleep(RETRY_SECONDS)


def _spans(batch: list[WantedRange]) -> Spans:
    """The places of ascending ranges, with neighbours merged."""
    found: Spans = []
    for one in (wanted.range for wanted in batch):
        if found and found[-1][1] == one.start and found[-1][0][0] == one.start[0]:
            found[-1] = (found[-1][0], one.end)
        else:
            found.append((one.start, one.end))
    return found


FULL_SECONDS = 30.0
"""Time for which a state that did not fit on the disk is not fetched again, unless it has shrunk by half."""


class CatchUp:
    """Serves this node's snapshots and pulls those of peers, one pull per group at a time."""

    def __init__(self, mesh: MeshCore, clock: Clock, rng: Rng, owners: dict[int, SnapshotOwner], log: Log) -> None:
        self._mesh = mesh
        self._clock = clock
        self.owners = owners
        self._log = log
        self._troubles = Troubles(clock, log)
        self._exports = Exports(mesh, clock, rng, owners, log, self._troubles)
        self._pulls: dict[int, asyncio.Task[None]] = {}
        self._stopped = False
        self.transfers: dict[int, Pull] = {}
        """The running pulls by group."""
        self._too_large: dict[int, tuple[int, float]] = {}
        """Group -> size of a state that did not fit, and the time until which it is not fetched."""

    def pull(self, gid: int, peer: str, index: int) -> None:
        """Start to bring group `gid` to at least `index` from `peer`. While a pull is running this does nothing, except
        that a pull from another peer that is unreachable ends, so that the next call can start."""
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
        """Transfers to this node and their age in seconds (for monitoring)."""
        now = self._clock.monotonic()
        return [(pull, now - pull.began) for _, pull in sorted(self.transfers.items())]

    def missing(self, gid: int, peer: str) -> int | None:
        """Estimated messages that `peer` lacks while it fetches the group's state from here; None when it does not."""
        return self._exports.missing(gid, peer)

    @property
    def exports(self) -> int:
        """Number of open exports (for monitoring); each pins a view of the data store."""
        return len(self._exports)

    def forget(self, gid: int) -> None:
        """End the pull and the exports of a replica that goes away, before their next step."""
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
        await cancelled(self._pulls.values())
        self._exports.clear()

    async def _pull(self, gid: int, peer: str, index: int) -> None:
        """Never raises: the group asks again (`on_snapshot_needed`). A partial import is marked and never served."""
        try:
            await self._fetch(self.owners[gid], gid, peer, index)
        except MeshError as error:
            self._troubles.failed(gid, peer, error)
            await asyncio.sleep(RETRY_SECONDS)
        except (DamagedError, KvError) as error:
            self._log.error("catch-up failed", gid=gid, peer=peer, error=str(error) or repr(error))
            await asyncio.sleep(RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - no caller awaits this task; silence would look like a slow peer
            self._log.error("catch-up failed", gid=gid, peer=peer, error=repr(error))
            await asyncio.sleep(RETRY_SECONDS)
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
            # Other streams need the remaining space: neither keep a part of the state nor fetch it over and over.
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
        """Give up the old state, now that the peer has answered: both sides understand each other."""
        if refused := _overtaken(owner, opened):
            raise MeshError(refused)
        return owner.snapshot_begin()

    async def _transfer(
        self, owner: SnapshotOwner, gid: int, peer: str, opened: Opened, begin: Callable[[], Taker] | None
    ) -> Pull:
        """Run one transfer; without `begin` it only shows that the peer can read all of its state."""
        pull = Pull(gid, peer, self._clock.monotonic(), opened.size, opened.messages)
        self.transfers[gid] = pull
        try:
            await Transfer(self._mesh, self._clock, pull, opened.id).run(owner, begin)
        finally:
            self._mesh.notify(peer, CLOSE, opened.id.encode())
        return pull


def _overtaken(owner: SnapshotOwner, opened: Opened) -> str:
    return "the log was faster" if opened.index < owner.state_index or not owner.wants_state else ""


SETTLE_SECONDS: Final = 2.0
"""RocksDB frees deleted rows after their last reader and the next compaction, which needs space of its own."""
LOOK_SECONDS: Final = 0.05


class Room:
    """Room for one import. It frees the replaced rows once, and gives up those still to be replaced once."""

    def __init__(self, kv: RocksKv, store: BlockStore, taker: Taker, name: str) -> None:
        """`name`: the stream's, for the log."""
        self._name = name
        self._kv = kv
        self._store = store
        self._taker = taker
        self.reclaimed = 0

    async def make(self, size: int) -> None:
        """Return when `size` bytes fit on the disk. Raises KvFullError, KvError."""
        while not await self._fits(size):
            if self.reclaimed == 2:
                spare = self._kv.spare_bytes
                raise KvFullError(f"there is no room for the state of {self._name}: {spare} bytes are left")
            # The disk is filled by rows replaced so far, alone or together with those that may be replaced later.
            if self.reclaimed:
                self._taker.give_up_rest()
            self.reclaimed += 1
            await self._store.reclaim()

    async def _fits(self, size: int) -> bool:
        """True when `size` bytes fit, now or soon after rows were given up."""
        for _ in range(round(SETTLE_SECONDS / LOOK_SECONDS) if self.reclaimed else 0):
            if self._kv.spare_bytes >= size:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return self._kv.spare_bytes >= size
