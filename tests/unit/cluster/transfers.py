"""Two nodes and one group whose state is a few records, which the tests of catch-up share; and a whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from jetcluster.raft.membership import Config
from jetcluster.replica.catchup import CatchUp
from jetcluster.replica.exports import READ, Cut, SnapshotOwner
from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KeyValue, KvDamagedError, KvFullError, MemSnapshot
from jetcluster.store.transfer import Giver, Taker
from testkit.sim.nodes import Cluster
from testkit.sim.shared import DELAY, MeshNetwork, SimMesh, VirtualLoop
from testkit.twins.log import ListLog
from testkit.twins.mem_kv import MemKv
from testkit.twins.time import SeededRng

GID = 5
CONFIG = Config(("A", "B"), ("L",), 3, ("X", "Y"))
SIDE = keys.stream_prefix(keys.SIDE, GID)


class Kv(MemKv):
    """Fails when a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.fail_after = 0

    def commit(self) -> int:
        if self.error is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise self.error
        return super().commit()


class Unreadable(MemSnapshot):
    """Fails at the record with value `bad`."""

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for key, value in super().scan(start, end):
            if value == b"bad":
                raise KvDamagedError("Corruption")
            yield key, value


class Owner:
    """A replica whose state is a list of values, each a record and, as the tests set it up, a range."""

    def __init__(self, index: int = 0, *values: bytes) -> None:
        self.index = index
        self.kv = Kv()
        self.set(*values)
        self.log: list[str] = []
        self.fetched: list[tuple[str, int]] = []
        self.room = 1 << 20
        self.keeps_state = False
        self.wants_state = True
        self.taken = 0
        """Bytes that came and were not abandoned."""

    def set(self, *values: bytes) -> None:
        self.kv.delete_range(SIDE, SIDE + b"\xff")
        for number, value in enumerate(values):
            self.kv.put(SIDE + b"%04d" % number, value)

    @property
    def values(self) -> list[bytes]:
        return [value for _, value in self.kv.scan(SIDE, SIDE + b"\xff")]

    def export_failed(self, error: DamagedError) -> None:
        self.log.append("export failed")

    @property
    def state_index(self) -> int:
        return self.index

    def snapshot_export(self) -> Cut:
        snapshot = Unreadable(list(self.kv.scan(b"", b"\xff")))
        size = sum(8 + 4 + len(value) for value in self.values)
        return Cut(self.index, 1, CONFIG, Giver(snapshot, GID), size, 10 * len(self.values))

    def snapshot_fetched(self, peer: str, index: int) -> None:
        self.fetched.append((peer, index))

    def snapshot_begin(self) -> Taker:
        self.log.append("begin")
        return Taker(self.kv, GID)

    async def snapshot_room(self, size: int) -> None:
        if self.taken + size > self.room:
            raise KvFullError("no room")
        self.taken += size

    async def snapshot_abandon(self) -> None:
        self.log.append("abandon")
        self.set()
        self.taken = 0

    async def snapshot_end(self, index: int, term: int, config: Config) -> None:
        assert config == CONFIG, "as of the state, and whole"
        self.log.append("end")
        self.index = index


class Pair:
    """A has state, B wants it."""

    def __init__(self, a: Owner, b: Owner, delay: float = DELAY) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        loop.clock.slowness = 1.0  # for tests that wait turn by turn: else time would stand still
        self.network = MeshNetwork(loop)
        self.meshes: list[SimMesh] = []
        self.sides: list[CatchUp] = []
        self.logs = [ListLog(), ListLog()]
        for name, owner, log in (("A", a, self.logs[0]), ("B", b, self.logs[1])):
            mesh = self.network.mesh(name, name * 8)
            owners: dict[int, SnapshotOwner] = {GID: owner}
            self.sides.append(CatchUp(mesh, loop, SeededRng(1), owners, log))
            mesh.start_now()
            self.meshes.append(mesh)
        for _, link in self.network.tcp.links():
            link.delay = delay

    @property
    def ids(self) -> tuple[str, str]:
        return self.meshes[0].me.peer_id, self.meshes[1].me.peer_id

    async def pull(self, index: int = 1) -> None:
        await asyncio.sleep(0.1)
        self.sides[1].pull(GID, self.ids[0], index)
        await self.settled()

    async def settled(self) -> None:
        while self.sides[1].running(GID):
            await asyncio.sleep(0.001)

    def ended(self) -> dict[str, Any]:
        """Values of the log line about the last transfer that came to its end."""
        return [values for _, event, values in self.logs[1].lines if event == "caught up from a snapshot"][-1]


async def begun(source: Owner, target: Owner) -> Pair:
    """Something has come."""
    pair = Pair(source, target)
    await asyncio.sleep(0.1)
    pair.sides[1].pull(GID, pair.ids[0], 1)
    while not target.taken:
        await asyncio.sleep(0)
    return pair


class Others:
    """Other work on the loop, which counts its turns."""

    def __init__(self) -> None:
        self.turns = 0
        self._task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def __enter__(self) -> Others:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()


class Answers:
    """Stands in for `call` of the mesh of B: `change` is given the number of each chunk asked for (from 1), the call
    itself, and gives the answer."""

    def __init__(self, pair: Pair, change: Callable[[int, Awaitable[bytes]], Awaitable[bytes]]) -> None:
        self._call = pair.meshes[1].call
        self._change = change
        self._asked = 0
        pair.meshes[1].call = self  # type: ignore[method-assign, assignment]

    async def __call__(self, peer: str, method: str, payload: bytes, timeout: float = 5.0) -> bytes:
        if method != READ:
            return await self._call(peer, method, payload, timeout)
        self._asked += 1
        return await self._change(self._asked, self._call(peer, method, payload, timeout))


async def whole(cluster: Cluster, stream: str) -> None:
    """The nodes that run are the members of the meta group and of the stream, and nobody else is."""
    members, first = {node.me for node in cluster}, next(iter(cluster))
    meta = first.js.meta
    assert meta.group is not None
    group = meta.group
    await cluster.until(lambda: set(group.peers) == members, what="the meta group has its members")
    await cluster.until(lambda: meta.machine.nodes.keys() == members, what="lost ids are forgotten")
    await cluster.until(lambda: set(first.replica(stream).group.peers) == members, what="the stream has its voters")
    await cluster.equal(stream)
