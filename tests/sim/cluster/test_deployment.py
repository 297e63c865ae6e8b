"""Complete nodes live in the simulation as they do outside: they start, stop, reload, join, and come back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.layout import Server, cluster, with_leaf
from testkit.sim.loop import SimLoop
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.run import warm_up

ALONE = Server("n1", "10.0.0.1", cluster="")
PASSING = (Disconnected, NoResponders, ApiError, TimeoutError)


class Bench:
    """A deployment whose servers have started, and a client's process."""

    def __init__(self, servers: tuple[Server, ...], *, ahead: dict[str, float] | None = None, off: str = "") -> None:
        """`ahead`: seconds that machines' wall clocks are. `off`: a machine that is not started."""
        warm_up()
        self.site = Deployment(1, servers)
        for name, seconds in (ahead or {}).items():
            self.site.machines[name].clock.wall_ahead = seconds
        for name, machine in self.site.machines.items():
            if name != off:
                machine.start()
        self.loop: SimLoop = self.site.client("client")

    def do(self, work: Callable[[], Awaitable[Any]], most: float = 60.0) -> Any:
        """Does the work again and again until it succeeds."""

        async def insist() -> Any:
            while True:
                try:
                    return await work()
                except PASSING:
                    await asyncio.sleep(0.2)

        task = self.site.spawn(self.loop, insist())
        self.site.run_until_done(task, most)
        return task.result()

    def session(self, *nodes: str) -> Session:
        async def connect() -> Session:
            session = Session("-".join(nodes), self.site.addresses(*nodes))
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
    bench = Bench((ALONE,))
    session = bench.session("n1")
    bench.stream(session, num_replicas=1)
    assert bench.publish(session, b"one") == 1
    machine = bench.site.machines["n1"]
    machine.signal(signal.SIGTERM)
    bench.site.run(5.0)
    assert machine.exits == [0] and not machine.runs
    machine.start()
    assert bench.get(session, 1) == b"one"
    assert bench.publish(session, b"two") == 2
    assert bench.site.failures == []


def test_a_reload_takes_over_a_changed_configuration() -> None:
    bench = Bench((ALONE,))
    bench.session("n1")
    server = bench.site.servers["n1"]
    bench.site.servers["n1"] = replace(server, config="max_payload: 2000")
    bench.site.machines["n1"].signal(signal.SIGHUP)
    bench.site.run(1.0)
    assert bench.session("n1").info["max_payload"] == 2000


def test_a_lame_duck_sends_its_clients_away_and_ends() -> None:
    bench = Bench(cluster(3, config="lame_duck_duration: 31s, lame_duck_grace_period: 1s"))
    session = bench.session("n1", "n2", "n3")
    bench.stream(session)
    bench.publish(session, b"one")
    bench.site.machines["n1"].signal(signal.SIGUSR2)
    bench.site.run(45.0)
    assert bench.site.machines["n1"].exits == [0]
    assert bench.publish(session, b"two") == 2 and session.info["server_name"] != "n1"


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
def test_a_new_cluster_waits_for_a_third_clock_where_two_differ(ahead: float) -> None:
    bench = Bench(cluster(3), ahead={"n1": ahead}, off="n3")
    bench.site.run(20.0)
    bench.site.machines["n3"].start()
    bench.site.run(5.0)
    session = bench.session("n2")
    bench.stream(session)
    assert bench.publish(session, b"one") == 1
    info = bench.do(lambda: session.api("STREAM.INFO.S"))["cluster"]
    assert info["leader"] != "n1" and len(info["replicas"]) == 2


def test_a_message_that_takes_seconds_to_come_over_deposes_no_leader() -> None:
    """Heartbeats are behind it; its own bytes say that the leader lives."""
    bench = Bench(cluster(3, config="max_payload: 8MB"))
    session = bench.session("n1", "n2", "n3")
    bench.stream(session)
    bench.publish(session, b"one")
    bench.site.run(1.0)
    ips = [server.ip for server in bench.site.servers.values()]
    for ends in ((one, other) for one in ips for other in ips if one != other):
        bench.site.network.link(*ends).rate = 2e6
    terms = {(one.machine.name, one.gid): one.group.term for one in replicas(bench.site)}
    ack = bench.do(lambda: session.js_publish("s", b"x" * (7 << 20), seconds=30.0))
    assert ack["seq"] == 2
    assert {(one.machine.name, one.gid): one.group.term for one in replicas(bench.site)} == terms


def test_a_node_that_is_added_takes_replicas() -> None:
    bench = Bench(cluster(3))
    session = bench.session("n1")
    bench.stream(session)
    bench.publish(session, b"one")
    bench.site.add(Server("n4", "10.0.0.4")).start()
    bench.site.run(5.0)
    bench.do(lambda: session.api("STREAM.CREATE.R", {"name": "R", "subjects": ["r"], "num_replicas": 3,
                                                     "placement": {"cluster": "sim"}}))  # fmt: skip
    there = bench.session("n4")
    assert bench.get(there, 1) == b"one"
    assert bench.site.failures == []


def test_a_node_with_an_empty_disk_takes_its_old_place() -> None:
    bench = Bench(cluster(3))
    session = bench.session("n1")
    bench.stream(session)
    for number in range(20):
        bench.publish(session, b"%d" % number)
    machine = bench.site.machines["n3"]
    machine.kill()
    machine.new_disk()
    machine.start()
    bench.site.run(30.0)
    assert bench.replicas(session) == {"n1", "n2", "n3"}
    assert bench.get(bench.session("n3"), 20) == b"19"


def test_a_server_without_jetstream_serves_its_clients_all_the_same() -> None:
    bench = Bench(cluster(3, plain=1))
    session = bench.session("n4")
    bench.stream(session)
    assert bench.publish(session, b"one") == 1 and bench.get(session, 1) == b"one"


def test_a_leaf_has_its_own_streams_and_mirrors_those_of_its_hub() -> None:
    bench = Bench(with_leaf(3, 1))
    hub, leaf = bench.session("n1"), bench.session("l1")
    bench.stream(hub)
    bench.publish(hub, b"of the hub")
    upstream = {"name": "S", "external": {"api": "$JS.hub.API"}}
    bench.do(lambda: leaf.api("STREAM.CREATE.M", {"name": "M", "mirror": upstream, "num_replicas": 1}))

    async def mirrored() -> bytes:
        answer = await leaf.api("STREAM.MSG.GET.M", {"seq": 1})
        return str(answer["message"]["data"]).encode()

    assert bench.do(mirrored) == b"b2YgdGhlIGh1Yg=="
    for machine in bench.site.machines.values():
        machine.kill()
        machine.start()
    bench.publish(hub, b"more")
    bench.do(lambda: leaf.api("STREAM.MSG.GET.M", {"seq": 2}))
    assert bench.site.failures == []
