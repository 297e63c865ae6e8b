"""Complete nodes live in the simulation as they do outside: they start, stop, reload, join, and come back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.store.rocks import failure_of
from testkit.sim.deployment import Deployment
from testkit.sim.layout import Server, cluster, with_leaf
from testkit.sim.loop import SimLoop
from testkit.sim.machine import OF_DISK
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.run import warm_up

ALONE = Server("n1", "10.0.0.1", cluster="")
PASSING = (Disconnected, NoResponders, ApiError, TimeoutError)


class Rig:
    """A deployment whose servers have started, and a client's process."""

    def __init__(self, servers: tuple[Server, ...], *, ahead: dict[str, float] | None = None, off: str = "") -> None:
        """`ahead`: seconds that machines' wall clocks are. `off`: a machine that is not started."""
        warm_up()
        self.deployment = Deployment(1, servers)
        for name, seconds in (ahead or {}).items():
            self.deployment.machines[name].clock.wall_ahead = seconds
        for name, machine in self.deployment.machines.items():
            if name != off:
                machine.start()
        self.loop: SimLoop = self.deployment.client("client")

    def do(self, work: Callable[[], Awaitable[Any]], most: float = 60.0) -> Any:
        """Does the work again and again until it succeeds."""

        async def insist() -> Any:
            while True:
                try:
                    return await work()
                except PASSING:
                    await asyncio.sleep(0.2)

        task = self.deployment.spawn(self.loop, insist())
        self.deployment.run_until_done(task, most)
        return task.result()

    def session(self, *nodes: str) -> Session:
        async def connect() -> Session:
            session = Session("-".join(nodes), self.deployment.addresses(*nodes))
            await session.connect()
            return session

        return self.do(connect)

    def stream(self, session: Session, **config: Any) -> dict[str, Any]:
        body = {"name": "S", "subjects": ["s"], "num_replicas": 3, "allow_direct": True, **config}
        return self.do(lambda: session.api("STREAM.CREATE.S", body))

    def publish(self, session: Session, text: bytes) -> int:
        return int(self.do(lambda: session.js_publish("s", text))["seq"])

    def get(self, session: Session, seq: int) -> bytes:
        found = self.do(lambda: session.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq))
        return bytes(found.payload)

    def replicas(self, session: Session) -> set[str]:
        """Names of the servers with one that is current."""
        info = self.do(lambda: session.api("STREAM.INFO.S"))["cluster"]
        return {info["leader"], *(one["name"] for one in info.get("replicas", ()) if one["current"])}


def test_a_node_stops_cleanly_and_comes_back_with_what_it_had() -> None:
    rig = Rig((ALONE,))
    session = rig.session("n1")
    rig.stream(session, num_replicas=1)
    assert rig.publish(session, b"one") == 1
    machine = rig.deployment.machines["n1"]
    machine.signal(signal.SIGTERM)
    rig.deployment.run(5.0)
    assert machine.exits == [0] and not machine.runs
    machine.start()
    assert rig.get(session, 1) == b"one"
    assert rig.publish(session, b"two") == 2
    assert rig.deployment.failures == []


def test_a_reload_takes_over_a_changed_configuration() -> None:
    rig = Rig((ALONE,))
    rig.session("n1")
    server = rig.deployment.servers["n1"]
    rig.deployment.servers["n1"] = replace(server, config="max_payload: 2000")
    rig.deployment.machines["n1"].signal(signal.SIGHUP)
    rig.deployment.run(1.0)
    assert rig.session("n1").info["max_payload"] == 2000


def test_a_lame_duck_sends_its_clients_away_and_ends() -> None:
    rig = Rig(cluster(3, config="lame_duck_duration: 31s, lame_duck_grace_period: 1s"))
    session = rig.session("n1", "n2", "n3")
    rig.stream(session)
    rig.publish(session, b"one")
    rig.deployment.machines["n1"].signal(signal.SIGUSR2)
    rig.deployment.run(45.0)
    assert rig.deployment.machines["n1"].exits == [0]
    assert rig.publish(session, b"two") == 2 and session.info["server_name"] != "n1"


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_new_cluster_waits_for_a_third_clock_where_two_differ(ahead: float) -> None:
    rig = Rig(cluster(3), ahead={"n1": ahead}, off="n3")
    rig.deployment.run(20.0)
    rig.deployment.machines["n3"].start()
    rig.deployment.run(5.0)
    session = rig.session("n2")
    rig.stream(session)
    assert rig.publish(session, b"one") == 1
    info = rig.do(lambda: session.api("STREAM.INFO.S"))["cluster"]
    assert info["leader"] != "n1" and len(info["replicas"]) == 2


def test_a_message_that_takes_seconds_to_come_over_deposes_no_leader() -> None:
    """Heartbeats are behind it; its own bytes say that the leader lives."""
    rig = Rig(cluster(3, config="max_payload: 8MB"))
    session = rig.session("n1", "n2", "n3")
    rig.stream(session)
    rig.publish(session, b"one")
    rig.deployment.run(1.0)
    ips = [server.ip for server in rig.deployment.servers.values()]
    for ends in ((one, other) for one in ips for other in ips if one != other):
        rig.deployment.network.link(*ends).rate = 2e6
    terms = {(one.machine.name, one.gid): one.group.term for one in replicas(rig.deployment)}
    ack = rig.do(lambda: session.js_publish("s", b"x" * (7 << 20), seconds=30.0))
    assert ack["seq"] == 2
    assert {(one.machine.name, one.gid): one.group.term for one in replicas(rig.deployment)} == terms


def test_a_node_that_is_added_takes_replicas() -> None:
    rig = Rig(cluster(3))
    session = rig.session("n1")
    rig.stream(session)
    rig.publish(session, b"one")
    rig.deployment.add(Server("n4", "10.0.0.4")).start()
    rig.deployment.run(5.0)
    rig.do(lambda: session.api("STREAM.CREATE.R", {"name": "R", "subjects": ["r"], "num_replicas": 3,
                                                     "placement": {"cluster": "sim"}}))  # fmt: skip
    there = rig.session("n4")
    assert rig.get(there, 1) == b"one"
    assert rig.deployment.failures == []


def test_a_node_with_an_empty_disk_takes_its_old_place() -> None:
    rig = Rig(cluster(3))
    session = rig.session("n1")
    rig.stream(session)
    for number in range(20):
        rig.publish(session, b"%d" % number)
    machine = rig.deployment.machines["n3"]
    machine.kill()
    machine.new_disk()
    machine.start()
    rig.deployment.run(30.0)
    assert rig.replicas(session) == {"n1", "n2", "n3"}
    assert rig.get(rig.session("n3"), 20) == b"19"


def test_a_server_without_jetstream_serves_its_clients_all_the_same() -> None:
    rig = Rig(cluster(3, plain=1))
    session = rig.session("n4")
    rig.stream(session)
    assert rig.publish(session, b"one") == 1 and rig.get(session, 1) == b"one"


def test_a_leaf_has_its_own_streams_and_mirrors_those_of_its_hub() -> None:
    rig = Rig(with_leaf(3, 1))
    hub, leaf = rig.session("n1"), rig.session("l1")
    rig.stream(hub)
    rig.publish(hub, b"of the hub")
    upstream = {"name": "S", "external": {"api": "$JS.hub.API"}}
    rig.do(lambda: leaf.api("STREAM.CREATE.M", {"name": "M", "mirror": upstream, "num_replicas": 1}))

    async def mirrored() -> bytes:
        answer = await leaf.api("STREAM.MSG.GET.M", {"seq": 1})
        return str(answer["message"]["data"]).encode()

    assert rig.do(mirrored) == b"b2YgdGhlIGh1Yg=="
    for machine in rig.deployment.machines.values():
        machine.kill()
        machine.start()
    rig.publish(hub, b"more")
    rig.do(lambda: leaf.api("STREAM.MSG.GET.M", {"seq": 2}))
    assert rig.deployment.failures == []


@pytest.mark.parametrize(
    ("error", "of_disk"),
    [
        (failure_of(Exception("Corruption: block checksum mismatch: stored = 1, computed = 2")), True),
        (failure_of(Exception("IO error: While fsync: /data/1.sst")), True),
        (KeyError(3), False),
    ],
)
def test_a_logged_error_of_rocksdb_is_one_of_the_disk(error: Exception, of_disk: bool) -> None:
    """Such an error is excused on a machine whose disk has failed, wherever it comes up."""
    assert bool(OF_DISK.search(f"catch-up failed: {error}")) is of_disk
