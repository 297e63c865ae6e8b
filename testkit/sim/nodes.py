"""A whole cluster on one loop: nodes as `node.node_jetstream` wires them, without ports for clients.

`Cluster` starts, crashes, wipes and cuts off nodes. A crash loses what was not synced to the disk and what was not
flushed in the data store, as a power failure does. Nothing takes time but the network and timers, so that a test may
call into each node; nodes whose processes are apart, take time and are paused are in `machine`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jetcluster.auth.authenticator import Authenticator
from jetcluster.budget import LoopBudget
from jetcluster.clock import Rng
from jetcluster.config.options import ClusterOptions, JetStreamOptions, Options, WorkerOptions
from jetcluster.health.usage import ProcessUsage
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.identity import NodeIdentity, load_identity, save_identity
from jetcluster.meta.state import Assignment
from jetcluster.model.limits import AccountLimits
from jetcluster.model.machines import tags_of
from jetcluster.model.stream import StreamConfig
from jetcluster.node.node_jetstream import GUARDED_FOLDERS, Endings, NodeJetStream
from jetcluster.node.platform import SystemPlatform
from jetcluster.raft.config import JournalOptions, RaftConfig
from jetcluster.raft.journal.journal import Journal
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.server.server import Server
from testkit.sim.layout import ROUTE_PORT
from testkit.sim.shared import MeshNetwork, SimMesh, Strides, VirtualLoop
from testkit.twins.journal import InlineWriter, JournalDisk
from testkit.twins.log import ListLog
from testkit.twins.mem_kv import CrashKv
from testkit.twins.time import SeededRng

ACCOUNT = "$G"
NO_LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}
MEMORY = 8 << 30
STORE = Path("/data/jetstream")
Message = tuple[bytes, bytes, bytes]
"""(subject, headers, payload)."""

SMALL_LOG = JournalOptions(
    segment_bytes=1 << 16, reserve_bytes=0, node_retain_bytes=1 << 20, retain_bytes=2048, retain_entries=16
)
"""Forgets soon, so that a follower that was away needs a snapshot."""


class SkewedClock:
    """A node's own clocks: the wall clock may be off."""

    def __init__(self, cluster: Cluster, name: str, loop: VirtualLoop) -> None:
        self._cluster = cluster
        self._name = name
        self.monotonic = self.uptime = loop.monotonic
        self._time_ns = loop.time_ns

    def time_ns(self) -> int:
        return self._time_ns() + int(self._cluster.ahead.get(self._name, 0.0) * 1e9)


class ToldUsage(ProcessUsage):
    """`jetcluster.health.usage.Usage` of a node that uses as much of a core as a test says."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.share = 0.0
        self._monotonic = monotonic

    def cpu_seconds(self) -> float:
        return self.share * self._monotonic()


class SharedPlatform(SystemPlatform):
    """`jetcluster.node.platform.Platform` of one node among others on the loop."""

    def __init__(self, node: Node, rng: Rng) -> None:
        self.clock = SkewedClock(node.cluster, node.name, node.cluster.loop)
        self.rng = rng
        self.files = node.disk.machine.files
        self.stopwatch = self.clock.monotonic
        self.usage = node.usage = ToldUsage(self.clock.monotonic)
        self._node = node

    def physical_memory(self) -> int:
        return MEMORY

    def memory_trouble(self) -> Callable[[], str]:
        return lambda: ""

    def open_writer(self, loop: asyncio.AbstractEventLoop) -> Any:
        return self._node.writer

    def journal_options(self, directory: Path, sync_interval: float | None) -> JournalOptions:
        return self._node.cluster.options

    def raft_config(self) -> RaftConfig:
        return self._node.cluster.config or RaftConfig()

    def open_store(self, path: Path, *, salvage: bool = False, owner_flushes: bool = False, seal: Any = None) -> Any:
        return self._node.kv


class NoApis:
    """In the place of `AccountApis`: tests that are about the API make their own."""

    def start(self, *_: object) -> None:
        pass

    async def stop(self) -> None:
        pass


class SharedJetStream(NodeJetStream):
    """`NodeJetStream` with its mesh on the shared network, and without limits and API."""

    def __init__(self, node: Node, options: Options, server: Server, platform: SharedPlatform) -> None:
        endings = Endings(node.log.fatal, node.fatal.append, lambda: node.log.fatal("start again"))
        super().__init__(options, server, platform, node.log, endings)  # type: ignore[arg-type]
        self._network = node.cluster.network
        self._apis = NoApis()  # type: ignore[assignment]

    def _make_mesh(self, me: NodeInfo, sign: Callable[[bytes], bytes] | None) -> MeshCore:
        if not self._options.is_clustered:
            return super()._make_mesh(me, sign)
        return SimMesh(self._network, me, sign, self._rng, self)

    def _limits(self, account: str) -> AccountLimits:
        return AccountLimits()


class Node:
    """One node's process."""

    def __init__(self, cluster: Cluster, name: str, disk: JournalDisk, kv: CrashKv) -> None:
        loop = cluster.loop
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.kv = kv
        self.log = ListLog()
        self.alive = True
        self.fatal: list[BaseException] = []
        self.usage: ToldUsage
        rng = SeededRng(next(cluster.seeds))
        platform = SharedPlatform(self, rng)
        options = Options(
            server_name=name,
            cluster=ClusterOptions("C", port=ROUTE_PORT if cluster.clustered else 0),
            jetstream=JetStreamOptions(True, str(STORE.parent), sync_interval=cluster.options.sync_interval),
        )
        if (place := cluster.places.get(name)) is not None:
            options.worker, options.server_tags = place, tags_of(place.machine, place.index)
        options.server_tags = [*options.server_tags, *cluster.tags.get(name, "").split()]
        self.writer = InlineWriter(loop)
        self.options = options
        server = self.server = Server(options, Authenticator(options, rng=rng), platform.clock, rng, loop)
        server.budget = LoopBudget(Strides(), loop)
        self.part = SharedJetStream(self, options, server, platform)
        self.accounts = server.accounts
        self.bus = self.accounts[ACCOUNT]
        loop.finish(self.part.start())
        assert self.part.jetstream is not None
        self.js = self.part.jetstream
        self.services = self.js.services
        self.mesh: Any = self.part.mesh
        self.me = self.mesh.me.peer_id
        self.raft: Any = self.services.network.raft
        self.journal: Journal = self.raft.journal

    @property
    def identity(self) -> NodeIdentity:
        """The identity in its store, with that of the cluster."""
        return load_identity(STORE, self.name, guarded=GUARDED_FOLDERS, files=self.disk.machine.files)

    def replica(self, stream: str) -> StreamReplica:
        assignment = self.js.assignment(ACCOUNT, stream)
        assert assignment is not None, f"{self.name} knows no {stream}"
        return self.js.replicas[assignment.gid]

    def has(self, stream: str) -> bool:
        assignment = self.js.assignment(ACCOUNT, stream)
        return assignment is not None and assignment.gid in self.js.replicas

    # ---- as a client of this node

    async def request(
        self, subject: bytes, payload: bytes = b"", seconds: float = 2.0, headers: bytes = b""
    ) -> Message:
        """The first reply; TimeoutError when there is none."""
        replies = await self.requests(subject, [payload], seconds, headers)
        return replies[0]

    async def requests(
        self, subject: bytes, payloads: list[bytes], seconds: float = 2.0, headers: bytes = b""
    ) -> list[Message]:
        """One reply for each."""
        got: list[Message] = []
        done = asyncio.Event()

        def take(reply_subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
            got.append((reply_subject, headers, payload))
            if len(got) >= len(payloads):
                done.set()

        inbox = b"_INBOX.%d" % next(self.cluster.inboxes)
        subscription = self.bus.subscribe(inbox, take)
        try:
            for payload in payloads:
                if not self.bus.ask(subject, payload, inbox, headers):
                    raise NoRespondersError(subject)
            async with asyncio.timeout(seconds):
                await done.wait()
        finally:
            self.bus.unsubscribe(subscription)
        return got

    async def publish(self, subject: bytes, payload: bytes = b"x", headers: bytes = b"") -> dict[str, Any]:
        """The PubAck."""
        _, status, body = await self.request(subject, payload, headers=headers)
        if not body:
            raise NoRespondersError(status)
        ack: dict[str, Any] = json.loads(body)
        return ack

    async def publish_again(self, subject: bytes, payload: bytes = b"x", headers: bytes = b"") -> dict[str, Any]:
        """The PubAck; sent again while the leadership moves, as clients do."""
        while True:
            try:
                ack = await self.publish(subject, payload, headers)
            except (NoRespondersError, TimeoutError):
                await asyncio.sleep(0.02)
                continue
            if "seq" in ack:
                return ack
            await asyncio.sleep(0.02)

    async def get(self, stream: bytes, seq: int) -> Message:
        return await self.request(b"$JS.API.DIRECT.GET." + stream, b'{"seq":%d}' % seq)

    def reads(self, stream: str) -> bool:
        """Does this node's own replica answer Direct Get?"""
        return self.has(stream) and self.replica(stream).reads.own.joined


class NoRespondersError(Exception):
    pass


class Cluster:
    """`names`: those started at once. `expected` is how many nodes the routes name."""

    def __init__(
        self,
        names: Iterable[str] = "ABC",
        *,
        options: JournalOptions | None = None,
        config: RaftConfig | None = None,
        clustered: bool = True,
        expected: int = 0,
        workers: int = 0,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """`workers`: so many on each machine of `names`, called A0, A1, ...; `tags`: of some nodes, spaces between."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clustered = clustered
        self.options = options or JournalOptions(segment_bytes=1 << 20, reserve_bytes=0)
        self.config = config
        self.tags = tags or {}
        machines = list(names)
        self.places = {
            f"{machine}{index}": WorkerOptions(
                index, workers, machine, (), "", {}, secret="" if machines[1:] else "alone"
            )
            for machine in machines
            for index in range(workers)
        }
        self.network = MeshNetwork(loop, rng=SeededRng(42), expected=expected or len(machines))
        self.seeds = itertools.count(1)
        self.inboxes = itertools.count(1)
        self.ahead: dict[str, float] = {}
        """Seconds by which the wall clock of a node is ahead."""
        self.nodes: dict[str, Node] = {}
        for name in self.places or machines:
            self.add(name)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def __iter__(self) -> Iterator[Node]:
        return iter([node for node in self.nodes.values() if node.alive])

    async def __aenter__(self) -> Cluster:
        await self.until(lambda: self.meta_leader() is not None, what="a meta leader")
        members = {node.me for node in self}
        await self.until(lambda: all(members <= node.js.meta.machine.nodes.keys() for node in self), what="all nodes")
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self:
            await self.stop(node.name)

    # ---- nodes

    def add(self, name: str, cluster_id: str = "") -> Node:
        """A node that never was there before, or one that lost its store, or with one of another cluster."""
        disk = JournalDisk(folder=STORE / "journal")
        if cluster_id:
            rng, files = SeededRng(next(self.seeds)), disk.machine.files
            made = load_identity(STORE, name, guarded=GUARDED_FOLDERS, rng=rng, files=files)
            save_identity(STORE, replace(made, cluster=cluster_id), files)
        node = self.nodes[name] = Node(self, name, disk, CrashKv())
        return node

    def crash(self, names: Iterable[str]) -> None:
        """Power failure of one or more nodes: unsynced journal bytes and unflushed data are gone."""
        for name in names:
            node = self.nodes[name]
            node.alive = False
            node.disk.crash(SeededRng(next(self.seeds)))
            self._vanish(node)

    def _vanish(self, node: Node) -> None:
        if isinstance(node.mesh, SimMesh):
            node.mesh.stop_now()
        if (ticker := node.js._ticker) is not None:
            ticker.cancel()
        node.js.scrubber.stop()
        tasks = [*node.js.background.tasks, *node.services.network.catchup._pulls.values()]
        joining = [member.joining for r in node.js.replicas.values() for member in r.reads.memberships]
        tasks += [task for task in joining if task is not None]
        for task in [*tasks, *([node.js.flusher.running] if node.js.flusher.running is not None else [])]:
            task.cancel()
        node.js._stopped = True
        node.services.commits.stop()
        node.raft.close()
        node.journal._closed = True

    def restart(self, names: Iterable[str]) -> Node:
        """After `crash` or `stop`, with the same stores; the last of them."""
        for name in names:
            old = self.nodes[name]
            assert not old.alive
            node = self.nodes[name] = Node(self, name, old.disk, old.kv.crashed())
        return node

    async def flush(self) -> None:
        """Flushes the data of all running nodes."""
        for node in self:
            await node.js.flusher.flush()

    async def stop(self, name: str) -> None:
        """SIGTERM."""
        node = self.nodes[name]
        node.alive = False
        await node.part.stop()

    def isolate(self, name: str) -> None:
        self.network.isolate(self.nodes[name].me)

    def heal(self) -> None:
        self.network.heal_all()

    # ---- waiting

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0, what: str = "condition") -> None:
        end = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < end, f"{what} not reached within {seconds} s"
            await asyncio.sleep(0.001)

    async def never(self, condition: Callable[[], bool], seconds: float, what: str = "condition") -> None:
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            assert not condition(), f"{what} within {seconds} s"
            await asyncio.sleep(0.01)

    # ---- the meta group and streams

    def meta_leader(self) -> Node | None:
        return next((node for node in self if node.js.meta.leading), None)

    async def create(self, name: str, replicas: int = 3, *, ask: str = "", **config: Any) -> Assignment:
        node = self.nodes[ask] if ask else next(iter(self))
        body = self.stream_body({"name": name, "subjects": [name.lower()], "num_replicas": replicas, **config})
        result = await node.js.meta_request("stream_create", body)
        return await self.ready(node, result)

    async def update(self, name: str, replicas: int = 3, *, ask: str = "", **config: Any) -> Assignment:
        node = self.nodes[ask] if ask else next(iter(self))
        body = self.stream_body({"name": name, "subjects": [name.lower()], "num_replicas": replicas, **config})
        return await self.ready(node, await node.js.meta_request("stream_update", body))

    def stream_body(self, config: dict[str, Any]) -> dict[str, Any]:
        config = {"allow_direct": True, **config}
        wire = StreamConfig.model_validate(config).normalised(AccountLimits()).to_wire()
        request = f"q{next(self.inboxes)}"
        return {"request": request, "account": ACCOUNT, "config": wire, "limits": NO_LIMITS}

    async def ready(self, node: Node, result: dict[str, Any]) -> Assignment:
        assignment = Assignment.from_dict(result["assignment"])
        await node.js.stream_request(assignment, "ready", {"revision": assignment.revision})
        return assignment

    async def delete(self, name: str, *, ask: str = "") -> int:
        """Returns the gid."""
        node = self.nodes[ask] if ask else next(iter(self))
        body = {"request": f"q{next(self.inboxes)}", "account": ACCOUNT, "name": name}
        result = await node.js.meta_request("stream_delete", body)
        await node.js.settle(int(result["revision"]))
        return int(result["removed"])

    def leader(self, stream: str) -> Node:
        return next(node for node in self if node.has(stream) and node.replica(stream).leading)

    def followers(self, stream: str) -> list[Node]:
        return [node for node in self if node.has(stream) and not node.replica(stream).leading]

    async def led(self, stream: str) -> Node:
        def leads() -> bool:
            return any(node.has(stream) and node.replica(stream).leading for node in self)

        await self.until(leads, what=f"a leader of {stream}")
        await asyncio.sleep(0.01)  # its interest is on the way to the others
        await self.until(leads, what=f"a leader of {stream}")
        return self.leader(stream)

    async def equal(self, stream: str, *names: str) -> None:
        """Until the replicas (of `names`, or all) hold the same."""
        chosen = [self.nodes[name] for name in names] or self.holders(stream)

        def same() -> bool:
            if not all(node.has(stream) for node in chosen):
                return False
            found = {
                (r.machine.applied_index, r.machine.hash, r.store.state, r.installing)
                for r in (node.replica(stream) for node in chosen)
            }
            return len(found) == 1 and not next(iter(found))[3]

        await self.until(same, what=f"equal replicas of {stream}")

    async def all_read(self, stream: str) -> None:
        members = self.holders(stream)
        await self.until(lambda: all(node.reads(stream) for node in members), what=f"all replicas of {stream} answer")

    def holders(self, stream: str) -> list[Node]:
        """The running nodes that have a replica, or will have one once they know of it."""
        known = [found for node in self if (found := node.js.assignment(ACCOUNT, stream)) is not None]
        peers = max(known, key=lambda found: found.revision).peers
        return [node for node in self if node.has(stream) or node.me in peers]
