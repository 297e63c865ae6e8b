"""A whole cluster in one process: real Raft, journal, stores, routers and mesh code; disks and sockets are twins.

`Cluster` starts, crashes, wipes and cuts off nodes. A crash loses what was not synced to the journal's disk and what
was not flushed in the data store, as a power failure does.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from jetcluster.budget import LoopBudget
from jetcluster.cluster.jetstream import JetStream
from jetcluster.mesh.identity import NodeKey, new_id
from jetcluster.mesh.interest import MeshInterest
from jetcluster.meta.state import Assignment
from jetcluster.model.advisory import Advisories
from jetcluster.model.limits import AccountLimits
from jetcluster.model.stream import StreamConfig
from jetcluster.raft.config import JournalOptions, RaftConfig
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.node import RaftNode
from jetcluster.replica.account_quota import AccountQuota
from jetcluster.replica.catchup import CatchUp
from jetcluster.replica.leaders import LeaderTable
from jetcluster.replica.services import Events, Knowledge, Network, Runtime, Services, Settings
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.replica.turn_commit import TurnCommit
from jetcluster.server.accounts.accounts import Accounts
from jetcluster.store.kv import KeyValue, KvDamagedError, KvError, KvFullError
from jetcluster.stream.log.levels import LEVEL
from testkit.sim.shared import MeshNetwork, Strides, VirtualLoop
from testkit.twins.journal import InlineWriter, JournalDisk
from testkit.twins.mem_kv import MemKv, SortedKeys
from testkit.twins.time import SeededRng

ACCOUNT = "$G"
NO_LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}
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
        self.monotonic = loop.monotonic
        self._time_ns = loop.time_ns

    def time_ns(self) -> int:
        return self._time_ns() + int(self._cluster.ahead.get(self._name, 0.0) * 1e9)


class CrashKv(MemKv):
    """A `MemKv` that remembers what was flushed: `crashed()` is what a restart after a power failure finds."""

    def __init__(self, values: dict[bytes, bytes] | None = None, rotten: set[bytes] | None = None) -> None:
        super().__init__()
        self.rotten = set(rotten or ())
        """Keys whose values on the disk fail their checksum."""
        self.broken = False
        """Commits and flushes fail, with `error`."""
        self.error: KvError = KvFullError("IO error: No space left on device")
        self.sick = False
        """The disk below takes nothing."""
        self.waiting = False
        """Commits have to wait, and what piles up is too much."""
        self.flushed: dict[bytes, bytes] = dict(values or {})
        for key, value in self.flushed.items():
            self._keys.add(key)
            self._values[key] = value

    def commit(self) -> int:
        if self.broken:
            self.unwritable = str(self.error)
            self.on_held()
            raise self.error
        self.unwritable = ""
        if self.waiting:
            self.on_held()
            return self.commits
        return super().commit()

    async def probe(self) -> None:
        if self.sick:
            raise KvError("IO error: Input/output error")

    @property
    def open_bytes(self) -> int:
        return int(self.waiting)

    @property
    def overloaded(self) -> bool:
        return self.waiting

    def flush_now(self) -> None:
        super().flush_now()
        self.flushed = dict(self._values)

    def crashed(self) -> CrashKv:
        return CrashKv(self.flushed, self.rotten)

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return super().get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.rotten.discard(key)
        super().put(key, value)

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for key in self.rotten:
            if start <= key < end:
                self._check(key)
        return super().scan(start, end)

    def _check(self, key: bytes) -> None:
        if key in self.rotten:
            self.damage = "Corruption: block checksum mismatch"
            raise KvDamagedError(self.damage)

    def close(self) -> None:
        self.flush_now()
        self._values, self._keys = {}, SortedKeys()


class ListLog:
    """A log that keeps its lines, as (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def _add(self, level: str, event: str, values: dict[str, Any]) -> None:
        self.lines.append((level, event, values))

    def debug(self, event: str, **values: Any) -> None:
        self._add("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._add("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._add("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        self._add("error", event, values)

    def events(self, *levels: str) -> list[str]:
        return [event for level, event, _ in self.lines if level in levels]


class Node:
    """One node's process."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        peer_id: str | None,
        disk: JournalDisk,
        kv: CrashKv,
        saved: tuple[str, bool] = ("", False),
    ) -> None:
        """`saved` is what node.json keeps of the cluster: its id, and whether the node is a member."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.kv = kv
        self.log = ListLog()
        self.alive = True
        self.fatal: list[BaseException] = []
        rng = SeededRng(next(cluster.seeds))
        self.saved = saved
        peer_id = peer_id or new_id(cluster.network.rng)
        key = NodeKey(hashlib.sha256(peer_id.encode()).digest())
        self.mesh = cluster.network.mesh(
            name,
            peer_id,
            sign=key.sign,
            cluster_id=saved[0],
            key=key.public,
            sync_interval=cluster.options.sync_interval or 0.0,
        )
        self.me = self.mesh.me.peer_id
        self.accounts = Accounts(rng)
        self.bus = self.accounts[ACCOUNT]
        MeshInterest(self.mesh, self.accounts, loop, loop)
        self.journal = Journal(disk, InlineWriter(loop), loop, rng, cluster.options, self.fatal.append)
        self.journal.open()
        clock = SkewedClock(cluster, name, loop)
        self.raft = RaftNode(
            self.me, self.journal, self.mesh, clock, rng, loop, cluster.config, self._report, level=LEVEL
        )
        self.mesh.on_raft = self.raft.on_frame
        self.mesh.on_read_end = self.raft.end_of_batch
        replicas: dict[int, StreamReplica] = {}
        cluster_name, groups = "C" if cluster.clustered else "", self.raft.groups
        leaders = LeaderTable(self.mesh, lambda gid: groups[gid].leader if gid in groups else None)
        catchup = CatchUp(self.mesh, loop, rng, {}, self.log)
        known = Knowledge(replicas)
        quota = AccountQuota(
            self.mesh, self.raft.health.time, self.log, lambda: known.machine.nodes,
            lambda: [replica.holding() for replica in replicas.values()],
        )  # fmt: skip
        self.services = Services(
            Runtime(self.raft.health.time, rng, loop, self.log, LoopBudget(Strides(), loop)),
            Network(self.me, name, cluster_name, self.mesh, self.raft, leaders, catchup),
            TurnCommit(kv, loop, self.log, self.raft.turns),
            known,
            Events(lambda account: self.accounts[account], Advisories(self.raft.health.time, rng, name), "$SYS"),
            Settings(quota),
        )
        self.js = JetStream(
            self.services,
            replicas,
            account_limits=lambda account: AccountLimits(),
            expected_nodes=lambda: cluster.expected,
            settled=lambda: self.mesh.settled,
            save_cluster=self._save_cluster,
        )
        self.mesh.start_now()
        self.js.start()

    def _save_cluster(self, cluster_id: str, member: bool) -> None:
        self.saved = (cluster_id, member)

    def _report(self, gid: int, text: str) -> None:
        self.log.warning(text, gid=gid)
        self.js.group_reported(gid)

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
        names: str = "ABC",
        *,
        options: JournalOptions | None = None,
        config: RaftConfig | None = None,
        clustered: bool = True,
        expected: int = 0,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clustered = clustered
        self.options = options or JournalOptions(segment_bytes=1 << 20, reserve_bytes=0)
        self.config = config
        self.network = MeshNetwork(loop, rng=SeededRng(42))
        self.seeds = itertools.count(1)
        self.inboxes = itertools.count(1)
        self.expected = expected or len(names)
        self.ahead: dict[str, float] = {}
        """Seconds by which the wall clock of a node is ahead."""
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.nodes[name] = Node(self, name, None, JournalDisk(), CrashKv())

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

    def add(self, name: str) -> Node:
        """A node that never was there before, or one that lost its store."""
        node = self.nodes[name] = Node(self, name, None, JournalDisk(), CrashKv())
        return node

    def crash(self, name: str) -> None:
        """Power failure: unsynced journal bytes and unflushed data are gone."""
        node = self.nodes[name]
        node.alive = False
        node.disk.crash(SeededRng(next(self.seeds)))
        self._vanish(node)

    def _vanish(self, node: Node) -> None:
        node.mesh.stop_now()
        if node.js._ticker is not None:
            node.js._ticker.cancel()
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

    def restart(self, name: str) -> Node:
        """After `crash` or `stop`, with the same store."""
        old = self.nodes[name]
        assert not old.alive
        node = self.nodes[name] = Node(self, name, old.me, old.disk, old.kv.crashed(), old.saved)
        return node

    async def stop(self, name: str) -> None:
        """SIGTERM, in the order of node.node_jetstream."""
        node = self.nodes[name]
        node.alive = False
        await node.js.transfer_leaderships(0.5)
        await node.js.stop()
        await node.mesh.stop()
        node.raft.close()
        node.journal.close()
        if not node.kv.broken:
            node.kv.close()

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
        await self.until(
            lambda: any(node.has(stream) and node.replica(stream).leading for node in self),
            what=f"a leader of {stream}",
        )
        await asyncio.sleep(0.01)  # its interest is on the way to the others
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
