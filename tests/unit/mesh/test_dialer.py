"""The dialer: which addresses a node dials, and when (mesh/dialer.py)."""

from __future__ import annotations

import asyncio
import socket

import pytest

from jetcluster.mesh import dialer as mesh_dialer
from jetcluster.mesh.dialer import LEARNED_SECONDS, LOG_SECONDS, RETRY_MAX_SECONDS, Dialer
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.options import ConfiguredRoute, MeshOptions
from testkit.harness import free_port
from testkit.twins.time import ManualTime
from tests.unit.cluster.mesh_support import full, info, node, route_to, until
from tests.unit.mesh.rig import Start


class Impatient:
    """Stands for `asyncio.sleep` in the dialer: notes the delay, moves the clock, hardly waits."""

    def __init__(self, clock: ManualTime) -> None:
        self.clock = clock
        self.delays: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.clock.advance(seconds)
        await real_sleep(0)


real_sleep = asyncio.sleep


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Impatient:
    fake = Impatient(ManualTime())

    class FakeAsyncio:
        def __getattr__(self, name: str) -> object:
            return fake if name == "sleep" else getattr(asyncio, name)

    monkeypatch.setattr(mesh_dialer, "asyncio", FakeAsyncio())
    return fake


def offline(clock: ManualTime) -> tuple[NodeMesh, Dialer]:
    """A mesh that was never started, so that only its dialer runs."""
    mesh = NodeMesh(info("me", "AAAAAAAA"), MeshOptions("c"), clock=clock)
    mesh.loop = asyncio.get_running_loop()
    return mesh, mesh.dialer


async def test_retries_back_off_to_a_cap_and_are_logged_once_a_minute(
    impatient: Impatient, caplog: pytest.LogCaptureFixture
) -> None:
    _, dialer = offline(impatient.clock)
    start = impatient.clock.monotonic()
    dialer.start((ConfiguredRoute("127.0.0.1", free_port()),))
    await until(lambda: impatient.clock.monotonic() - start > 1.5 * LOG_SECONDS)
    elapsed = impatient.clock.monotonic() - start
    logged = len(caplog.records)
    await dialer.stop()
    delays = impatient.delays
    for delay, nominal in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.6], strict=False):
        assert 0.8 * nominal <= delay <= 1.2 * nominal
    assert all(0.8 * RETRY_MAX_SECONDS <= delay <= 1.2 * RETRY_MAX_SECONDS for delay in delays[5:])
    assert elapsed / (LOG_SECONDS + 1.2 * RETRY_MAX_SECONDS) <= logged <= elapsed / LOG_SECONDS + 1
    assert "Error trying to connect to route 127.0.0.1:" in caplog.messages[0]


async def test_a_learned_address_is_forgotten_in_the_end_and_a_configured_one_never(impatient: Impatient) -> None:
    _, dialer = offline(impatient.clock)
    start = impatient.clock.monotonic()
    dialer.start((ConfiguredRoute("127.0.0.1", free_port()),))
    dialer.learn("BBBBBBBB", f"127.0.0.1:{free_port()}")
    assert len(dialer.targets) == 2
    await until(lambda: len(dialer.targets) == 1)
    assert impatient.clock.monotonic() - start > LEARNED_SECONDS / 2  # both targets move the clock
    (left,) = dialer.targets.values()
    assert left.configured
    await dialer.stop()


async def test_what_is_learned_is_bounded_and_never_ourselves(
    impatient: Impatient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh_dialer, "MAX_TARGETS", 3)
    mesh, dialer = offline(impatient.clock)
    dialer.learn(mesh.me.peer_id, "127.0.0.1:1")
    dialer.learn("BBBBBBBB", "")
    assert dialer.targets == {}
    for number in range(1, 10):
        dialer.learn("BBBBBBBB", f"127.0.0.1:{number}")
    assert len(dialer.targets) == 3
    await dialer.stop()


async def test_what_strangers_tell_changes_nothing_that_is_known_and_leaves_room(impatient: Impatient) -> None:
    _, dialer = offline(impatient.clock)
    dialer.set_routes((ConfiguredRoute("127.0.0.1", free_port()),))
    (configured,) = dialer.targets.values()
    dialer.learn("x" * 8, str(configured), hearsay=True)
    assert configured.peer_id is None, "whoever is linked under that id would keep it from being dialled"
    dialer.learn("x" * 8, str(configured))
    assert configured.peer_id is None, "nor does a member that only hands on what it heard"
    dialer.learn("m" * 8, "10.255.0.1:1")
    dialer.learn("x" * 8, "10.255.0.1:1", hearsay=True)
    assert dialer.targets["10.255.0.1", 1].peer_id == "m" * 8
    for number in range(200):
        dialer.learn("x" * 8, f"10.255.1.{number}:1", hearsay=True)
    assert len(dialer.targets) == 2 + mesh_dialer.MAX_HEARSAY
    dialer.learn("n" * 8, "10.255.1.1:1")
    assert dialer.targets["10.255.1.1", 1].peer_id == "n" * 8, "a member knows better"
    dialer.learn("n" * 8, "10.255.0.2:1")
    assert ("10.255.0.2", 1) in dialer.targets, "and is heard all the same"
    await dialer.stop()


async def test_an_unresolvable_or_impossible_host_is_a_failed_attempt(
    impatient: Impatient, caplog: pytest.LogCaptureFixture
) -> None:
    _, dialer = offline(impatient.clock)
    dialer.start((ConfiguredRoute("x" * 70 + ".invalid", 1), ConfiguredRoute("no\0host", 2)))
    await until(lambda: len({record.args[0] for record in caplog.records}) == 2)  # type: ignore[index]
    assert not dialer.settled
    assert all(not target.task.done() for target in dialer.targets.values())  # type: ignore[union-attr]
    await dialer.stop()


async def test_expected_nodes_and_settled(start: Start) -> None:
    a = await start(node("a"))
    routes = (route_to(a), ConfiguredRoute("localhost", route_to(a).port), ConfiguredRoute("127.0.0.1", free_port()))
    b = await start(node("b", *routes))
    await until(lambda: full(a, b))
    await until(lambda: b.expected_nodes == 3)  # both addresses of a are one node; the third did not answer
    assert not b.settled
    assert a.expected_nodes == 1
    assert a.settled


async def test_first_dials_end_when_those_who_are_there_are_linked_and_the_others_were_tried(start: Start) -> None:
    a, c = await start(node("a")), await start(node("c"))
    b = await start(node("b", route_to(a), route_to(c), ConfiguredRoute("127.0.0.1", free_port())))
    assert not full(a, b)
    await b.first_dials(5)
    assert set(b.peers) == {a.me.peer_id, c.me.peer_id}
    # asyncio leaks what it has accepted for a server that is closed at that moment.
    await until(lambda: full(a, b, c))


async def test_first_dials_do_not_wait_for_somebody_who_only_accepts(start: Start) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the system accepts, nobody speaks
        b = await start(node("b", ConfiguredRoute("127.0.0.1", silent.getsockname()[1])))
        before = asyncio.get_running_loop().time()
        await b.first_dials(0.1)
        assert 0.05 < asyncio.get_running_loop().time() - before < 1.5
