"""Fetching a group's state from a peer: comparing what it announces with what is here, asking for what differs.

While one list of ranges is compared the next one is on its way, and several chunks of what differs, so that a round
trip of 50 ms costs no more than to read the records. What comes is put in its place in the order of the walk. All of it
is made in slices of milliseconds between other work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from jetcluster.clock import Clock
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.mesh.core import MeshCore
from jetcluster.ordered import OrderedSet
from jetcluster.records import dataclass
from jetcluster.replica.exports import ASK_RANGES, ASK_READ, CHUNK_BYTES, RANGES, READ, SLICE, Spans, rest
from jetcluster.store.rocks_snapshot import Snapshot
from jetcluster.store.transfer import END, START, Range, Taker, WantedRange, decode_ranges, encode_places

if TYPE_CHECKING:
    from jetcluster.replica.snapshot_owner import SnapshotOwner

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
