"""The stage of a run: three nodes and an edge that mirrors them over a leaf link, with means of harm, under load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from chaos.local_cluster import LocalCluster
from chaos.plants import Plant
from jetcluster import faults
from testkit.client import Client, ClientError, create_stream
from testkit.harness import TOP, HarnessError, Node, eventually, find_server, free_ports

NEEDS = frozenset({"links", "shim", "drill", "drill-store", "disk"})
SLOW = 0.7
"""Seconds of each journal write of the slow node, while it is slow."""
EDGE_BYTES = 32 << 20
"""The edge's max_file_store."""
FEW_SAMPLES = 200
"""Samples that one scrape of the edge may have, while its plant is switched on."""
ACKS_IN_FLIGHT = 50
"""max_ack_pending of the consumer."""
WITHIN = 60.0
_DIFFER = """
from pathlib import Path
from jetcluster.replica import drift
SWITCH = Path(os.environ["JETCLUSTER_PLANT_SWITCH"])
def odd(replicas, gid):
    replica = replicas.get(gid)
    return replica is not None and len(replica.group.peers) == 2 and SWITCH.exists()
def flipped(digest):
    return bytes([digest[0] ^ 1]) + digest[1:]
ask, notice = drift.HashVotes._ask, drift.DriftCheck._on_notice
async def asked(self, peer, gid, points):
    answers = await ask(self, peer, gid, points)
    return [flipped(one) for one in answers] if odd(self._replicas, gid) else answers
def noticed(self, peer, payload):
    entries = [(gid, index, flipped(digest) if odd(self._replicas, gid) else digest)
               for gid, index, digest in drift._ENTRY.iter_unpack(payload)]
    notice(self, peer, b"".join(drift._ENTRY.pack(*one) for one in entries))
replace(drift.HashVotes, "_ask", asked)
replace(drift.DriftCheck, "_on_notice", noticed)
"""
_STUCK = """
from jetcluster.cluster import consumer_watch
from jetcluster.consumer.owner.pull_dispatch import PullDispatch
STUCK = Path(os.environ["JETCLUSTER_PLANT_STUCK"])
deliver = PullDispatch.deliver
def held(self, now):
    if not STUCK.exists():
        deliver(self, now)
replace(PullDispatch, "deliver", held)
replace(consumer_watch, "LOOK_SECONDS", 5.0)
"""
_CUT = f"""
from pathlib import Path
from jetcluster.monitor import exposition
SWITCH = Path(os.environ["JETCLUSTER_PLANT_SWITCH"])
class Most(int):  # of a number and an instance of a class made from it, Python asks the latter first
    def __lt__(self, other):
        return ({FEW_SAMPLES} if SWITCH.exists() else int(self)) < other
replace(exposition, "MAX_SAMPLES", Most(exposition.MAX_SAMPLES))
"""
PLANTED = (_DIFFER + _STUCK, _CUT)


class Switch:
    """A file: what it switches lasts while the file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on(self) -> None:
        self.path.touch()

    def off(self) -> None:
        self.path.unlink(missing_ok=True)


class Stage:
    """Use as an async context manager."""

    def __init__(self) -> None:
        self.local = LocalCluster(3, needs=NEEDS, monitor=True)
        self.root = self.local.root
        self.nodes = self.local.cluster.nodes
        self.leaf: Any = None
        """The proxy of the leaf link."""
        self.slow = Switch(self.root / "slow")
        self.differ = {node.name: Switch(self.root / f"{node.name}-differs") for node in self.nodes}
        self.stuck = Switch(self.root / "stuck")
        self.cut = Switch(self.root / "cut")
        self.paused: Node | None = None
        self.acking = True
        """False: the workers of the consumer do not acknowledge."""
        self._leaf_port, port, http = free_ports(3)
        edge = find_server("jetcluster")
        assert edge is not None
        self.edge = Node("edge", edge, self.root / "edge", port, [])
        self.edge.http_port = http
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def missing(self) -> str:
        """Why this machine cannot give the stage; "" when it can."""
        return "; ".join(f"{need}: {self.local.missing[need]}" for need in sorted(NEEDS & self.local.missing.keys()))

    @property
    def targets(self) -> dict[str, list[str]]:
        """Addresses of /metrics by job."""
        nodes = [f"127.0.0.1:{node.http_port}" for node in self.nodes]
        return {"jetcluster": nodes, "jetcluster-edge": [f"127.0.0.1:{self.edge.http_port}"]}

    async def __aenter__(self) -> Stage:
        for node in self.nodes:
            text = 'jetstream { domain: hub }\nlame_duck_duration: "60s"\n'
            if node is self.nodes[0]:
                text += f'leafnodes {{ listen: "127.0.0.1:{self._leaf_port}", no_advertise: true }}\n'
            self.configure(node, text)
            node.args += ["-c", str(node.root / "server.conf")]
            node.env |= _planted(_DIFFER + _STUCK, self.differ[node.name], self.root / "plant")
            node.env["JETCLUSTER_PLANT_STUCK"] = str(self.stuck.path)
        self.nodes[1].env[faults.VARIABLE] += f";journal.write=delay:{SLOW}@{self.slow.path}"
        await self.local.__aenter__()
        try:
            await self._set_up()
        except BaseException as error:
            await self.__aexit__(type(error))
            raise
        self._tasks = [asyncio.create_task(_again(work)) for work in (self._write, self._read, self._work, self._batch)]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.edge.kill9()
        await self.local.__aexit__(kind)

    def configure(self, node: Node, text: str) -> None:
        (node.root / "server.conf").write_text(text)

    async def _set_up(self) -> None:
        assert self.local.links is not None
        proxy, self.leaf = await self.local.links.proxy("leaf", self._leaf_port)
        await self._start_edge(f"nats-leaf://127.0.0.1:{proxy}")
        await self._streams()

    async def _start_edge(self, hub: str) -> None:
        edge = self.edge
        jetstream = f"jetstream {{ domain: edge, max_file_store: {EDGE_BYTES} }}"
        self.configure(edge, f'{jetstream}\nleafnodes {{ reconnect: "500ms", remotes [ {{ url: "{hub}" }} ] }}')
        edge.args = ["-a", "127.0.0.1", "-p", str(edge.port), "-n", edge.name, "-js", "-sd", str(edge.store),
                     "-m", str(edge.http_port), "-c", str(edge.root / "server.conf")]  # fmt: skip
        edge.env |= _planted(_CUT, self.cut, self.root / "plant-cut")
        await edge.start()

    # -- what is on it

    async def _streams(self) -> None:
        async with self.connected() as client:
            await create_stream(client, "ORDERS", ["orders.>"], 3, allow_atomic=True, max_msgs=50_000)
            config = {"durable_name": "worker", "ack_policy": "explicit", "max_ack_pending": ACKS_IN_FLIGHT,
                      "ack_wait": int(5e9)}  # fmt: skip
            await client.api("CONSUMER.CREATE.ORDERS.worker", {"stream_name": "ORDERS", "config": config})
        await self.make_pair()
        async with await self.edge.connect() as client:
            mirror = {"name": "ORDERS", "external": {"api": "$JS.hub.API"}}
            config = {"name": "ORDERS", "mirror": mirror, "num_replicas": 1, "storage": "file", "allow_direct": True,
                      "mirror_direct": True, "max_msgs": 50_000}  # fmt: skip
            await client.api("STREAM.CREATE.ORDERS", config)

    @contextlib.asynccontextmanager
    async def connected(self, *others: Node) -> AsyncIterator[Client]:
        """A client of the first node that takes it, `others` aside. Raises HarnessError."""
        for node in self.nodes:
            if node.alive and node not in others:
                try:
                    client = await node.connect(within=3.0)
                except (ClientError, OSError, TimeoutError):
                    continue
                async with client:
                    yield client
                return
        raise HarnessError("no node takes a client")

    async def api(self, subject: str, body: object = None, *others: Node) -> dict[str, Any]:
        """An answer of the stream API, in time: tried again meanwhile. Raises HarnessError."""
        found: dict[str, Any] = {}

        async def answered() -> bool:
            try:
                async with self.connected(*others) as client:
                    found.update(await client.api(subject, body, within=5.0))
            except (ClientError, TimeoutError) as error:
                found["last"] = error
                return False
            return True

        try:
            await eventually(answered, WITHIN, f"{subject} is not answered", every=0.3)
        except HarnessError as error:
            raise HarnessError(f"{error}: {found.get('last')}") from None
        return found

    async def leader(self, stream: str) -> Node:
        found = ""

        async def leads() -> bool:
            nonlocal found
            found = (await self.api(f"STREAM.INFO.{stream}")).get("cluster", {}).get("leader") or ""
            return bool(found)

        await eventually(leads, WITHIN, f"{stream} has no leader", every=0.3)
        return self.local.cluster.node(found)

    async def make_pair(self) -> None:
        await self.api(
            "STREAM.CREATE.PAIR", {"name": "PAIR", "subjects": ["pair"], "num_replicas": 2, "max_msgs": 1000}
        )

    async def follower_in_pair(self) -> Node:
        """Raises HarnessError."""
        leader = await self.leader("PAIR")
        peers = (await self.api("STREAM.INFO.PAIR"))["cluster"]["replicas"]
        return next(node for node in self.nodes if node is not leader and node.name in {peer["name"] for peer in peers})

    async def current(self, stream: str, replicas: int = 2) -> None:
        await self.local.cluster.wait_current(stream, replicas=replicas, within=WITHIN)

    # -- load

    async def _write(self) -> None:
        async with self.connected() as client:
            for number in itertools.count():
                await client.request(f"orders.{number % 50}", os.urandom(256), within=3.0)
                await client.request("pair", b"%d" % number, within=3.0)
                await asyncio.sleep(0.005)

    async def _read(self) -> None:
        """Direct Gets of every node, also of the edge's mirror, and requests of the API, some of which are refused."""
        for node in [*self.nodes, self.edge]:
            with contextlib.suppress(ClientError, OSError, TimeoutError):
                async with await node.connect(within=2.0) as client:
                    for number in range(40):
                        body = b'{"last_by_subj":"orders.%d"}' % number
                        await client.request("$JS.API.DIRECT.GET.ORDERS", body, within=2.0)
                    await client.api("STREAM.NAMES", {}, within=2.0)
                    with contextlib.suppress(ClientError):
                        await client.api("STREAM.INFO.NOBODY", within=2.0)
        await asyncio.sleep(0.5)

    async def _work(self) -> None:
        """The worker of the consumer."""
        async with self.connected() as client:
            while True:
                ask = b'{"batch":100,"expires":500000000}'
                for msg in await client.gather("$JS.API.CONSUMER.MSG.NEXT.ORDERS.worker", ask, within=5.0):
                    if self.acking and not msg.status:
                        client.publish(msg.reply.decode(), b"+ACK")

    async def _batch(self) -> None:
        async with self.connected() as client:
            for number in itertools.count():
                for place in (1, 2, 3):
                    headers = {"Nats-Batch-Id": f"b{os.getpid()}-{number}", "Nats-Batch-Sequence": str(place)}
                    if place == 3:
                        headers["Nats-Batch-Commit"] = "1"
                    client.publish("orders.batch", b"part", headers=headers)
                await client.flush(3.0)
                await asyncio.sleep(0.3)


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    """For ever: faults end a work, and it begins anew."""
    while True:
        with contextlib.suppress(ClientError, HarnessError, OSError, TimeoutError):
            await work()
        await asyncio.sleep(0.2)


def _planted(code: str, switch: Switch, folder: Path) -> dict[str, str]:
    plant = Plant("", "", frozenset(), "", code)
    return plant.environment(folder, TOP) | {"JETCLUSTER_PLANT_SWITCH": str(switch.path)}


def each_file(node: Node) -> Iterator[Path]:
    """Table files of a node's data, the largest first."""
    yield from sorted((node.store / "jetstream" / "data").glob("*.sst"), key=lambda path: -path.stat().st_size)
