"""Servers with TLS in the simulation: all that goes over their links and ports, renewals, and who shakes no hands."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from jetcluster.net import tls_listener
from jetcluster.server.client.tls_port import TlsPort
from testkit.sim import tls_ports
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.layout import CLIENT_PORT, LAYOUTS, LEAF_PORT, ROUTE_PORT, WEB_PORT, Entrance, Security
from testkit.sim.loop import quietly_collected
from testkit.sim.plain_tls import DATA, FINISHED, HANDSHAKE, Files, of_client, record
from testkit.sim.session import Msg, Session
from tests.sim.cluster.run import started
from tests.sim.cluster.strangers import HELLO, OF_TLS, Stranger

pytestmark = pytest.mark.sim

PORTS = (CLIENT_PORT, ROUTE_PORT, LEAF_PORT, WEB_PORT)
FIRST_SECONDS = 12.0
"""Seconds after which nobody who does not shake hands is there any more."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Handshakes that are under way at the end of a deployment."""
    with quietly_collected():
        yield


@pytest.fixture(params=Security.MODES)
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Three servers and a leaf, with all ports there are."""
    with Entrance.chosen(web=True), tls_ports.chosen(request.param):
        deployment = started("three and a leaf")
        yield deployment
        assert deployment.failures == []
        deployment.close()


def do(deployment: Deployment, work: Any, most: float = 30.0) -> Any:
    task = deployment.spawn(deployment.client(f"c{len(deployment.clients)}"), work)
    deployment.run_until_done(task, most)
    return task.result()


def _itself(who: asyncio.Protocol) -> asyncio.Protocol:
    return who


async def connected(deployment: Deployment, *names: str) -> Session:
    session = Session("one", [(deployment.servers[name].ip, CLIENT_PORT) for name in names or ("n1",)])
    await session.connect()
    return session


def handshakes(deployment: Deployment) -> int:
    """Handshakes of clients that are under way."""
    return sum(machine.node.server.parts.clients.handshakes for machine in deployment.running if machine.node)


def test_messages_go_over_routes_and_leaf_links_and_nothing_is_in_clear() -> None:
    said: dict[tuple[Any, Any], bytes] = {}

    def watch(source: Any, target: Any, data: bytes) -> None:
        said[source, target] = said.get((source, target), b"") + data[:64]

    for mode in ("after", "first"):
        with tls_ports.chosen(mode):
            deployment = Deployment(5, LAYOUTS["three and a leaf"])
            deployment.network.watch = watch
            for machine in deployment.machines.values():
                machine.start()
            deployment.run(8.0)
            got: list[Msg] = []

            async def exchanged(deployment: Deployment = deployment, got: list[Msg] = got) -> None:
                far = await connected(deployment, "l1")
                far.subscribe("a.*", got.append)
                await far.flush()
                near = await connected(deployment, "n1")
                await asyncio.sleep(2.0)
                near.publish("a.b", b"over both")
                await near.flush()
                await asyncio.sleep(2.0)

            do(deployment, exchanged())
            assert [msg.payload for msg in got] == [b"over both"]
            deployment.close()
        greeted = {(CLIENT_PORT, b"I"), (LEAF_PORT, b"I")} if mode == "after" else set()
        firsts = {(min(source[1], target[1]), data[:1]) for (source, target), data in said.items()}
        assert {port for port, _ in firsts} == {CLIENT_PORT, ROUTE_PORT, LEAF_PORT}
        assert firsts == {(port, HELLO[:1]) for port in (CLIENT_PORT, ROUTE_PORT, LEAF_PORT)} | greeted
        assert not [data for data in said.values() if b"CONNECT {" in data.partition(HELLO[:3])[0]]
        said.clear()


def _shown(deployment: Deployment, port: int) -> int:
    """The number of the certificate that a new connection to a port of n1 sees."""

    async def seen() -> int:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "10.0.0.1", port, ssl=of_client())
        text = transport.get_extra_info("ssl_object").getpeercert(binary_form=True).decode()
        transport.abort()
        return int(text.rpartition(" ")[2])

    found: int = do(deployment, seen())
    return found


@pytest.mark.parametrize("deployment", ["first"], indirect=True)
def test_certificates_are_read_again_with_a_reload(deployment: Deployment) -> None:
    Files.renewals["/tls/10.0.0.1.pem"] = 1
    assert [_shown(deployment, port) for port in PORTS] == [0] * len(PORTS)
    deployment.machines["n1"].signal(signal.SIGHUP)
    deployment.run(1.0)
    assert [_shown(deployment, port) for port in PORTS] == [1] * len(PORTS)


@pytest.mark.parametrize("said", [b"", b"INFO {}\r\n", *OF_TLS], ids=range(len(OF_TLS) + 2))
def test_who_shakes_no_hands_is_sent_away(deployment: Deployment, said: bytes) -> None:
    crowd = [Stranger([said], lambda kind, body: b"") for _ in PORTS]
    crowd += [Stranger([said], lambda kind, body: b"") for _ in PORTS]

    async def visit() -> None:
        loop = asyncio.get_running_loop()
        for who, port in zip(crowd, PORTS * 2, strict=True):
            await loop.create_connection(partial(_itself, who), "10.0.0.1", port)
        await asyncio.sleep(0.1)
        for who in crowd[len(PORTS) :]:  # those close in the middle
            if who.transport is not None:
                who.transport.close()

    do(deployment, visit())
    deployment.run(FIRST_SECONDS)
    assert [port for who, port in zip(crowd, PORTS * 2, strict=True) if not who.gone] == []
    assert handshakes(deployment) == 0
    do(deployment, connected(deployment, "n1"))


def test_more_that_are_silent_than_there_is_room_for_keep_nobody_out_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "MAX_SILENT", 2)
    with tls_ports.chosen("first"):
        deployment = started()
        crowd = [Stranger([], lambda kind, body: b"") for _ in range(5)]

        async def visit() -> None:
            for who in crowd:
                await asyncio.get_running_loop().create_connection(partial(_itself, who), "10.0.0.1", CLIENT_PORT)

        do(deployment, visit())
        deployment.run(0.5)
        assert handshakes(deployment) == 2
        do(deployment, connected(deployment, "n1"))
        deployment.run(4.0)
        assert all(who.gone for who in crowd)
        assert deployment.failures == []
        deployment.close()


@pytest.mark.parametrize("mode", ["after", "first"])
def test_a_server_that_says_something_in_clear_is_told(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shake: Callable[..., Any] = vars(tls_listener.TlsListener)["_shake_hands"]

    async def first_in_clear(self: TlsPort, connection: socket.socket, *rest: Any) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, b"PING\r\n")
        await shake(self, connection, *rest)

    monkeypatch.setattr(TlsPort, "_shake_hands", first_in_clear)
    with tls_ports.chosen(mode):
        deployment = started()
        with pytest.raises(Violation, match="in clear"):
            do(deployment, connected(deployment))
        deployment.close()


def test_a_server_that_is_full_may_say_so_in_clear() -> None:
    for mode in ("after", "first"):
        with tls_ports.chosen(mode):
            deployment = started(tuple(_with_room_for_one()))

            async def two(deployment: Deployment = deployment) -> Session:
                await connected(deployment, "n1")
                second = Session("two", deployment.addresses("n1"))
                second.dial()
                await asyncio.sleep(3.0)
                return second

            second = do(deployment, two())
            assert not second.connected
            deployment.close()


class Leaf(asyncio.Protocol):
    """One that has said CONNECT and PING before the hub can know of the end of the handshake: in one piece with it."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        before = self.got
        self.got += data
        if b"\n" in self.got and b"\n" not in before:
            self.transport.write(HELLO)
        if HELLO[:1] in self.got and HELLO[:1] not in before:
            end = record(HANDSHAKE, FINISHED) + record(DATA, b'CONNECT {"name":"l9","cluster":"l9"}\r\nPING\r\n')
            self.transport.write(end)


def test_what_a_leaf_says_right_behind_the_handshake_is_heard() -> None:
    for seed in range(5, 10):
        with tls_ports.chosen("after"):
            deployment = started("three and a leaf", seed=seed)
            leaf = Leaf()
            do(deployment, _reached(leaf))
            deployment.run(1.0)
            assert b"PONG" in leaf.got
            deployment.close()


async def _reached(leaf: Leaf) -> None:
    await asyncio.get_running_loop().create_connection(lambda: leaf, "10.0.0.1", LEAF_PORT)


def _with_room_for_one() -> list[Any]:
    from testkit.sim.layout import cluster

    return list(cluster(1, config="max_connections: 1"))


def test_a_server_that_does_not_require_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = started()
    monkeypatch.setattr(Security, "mode", "after")
    with pytest.raises(Violation, match="available"):
        do(deployment, connected(deployment))
    deployment.close()
