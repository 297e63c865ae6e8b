"""Meshes on one simulated loop (testkit/sim/shared.py)."""

from __future__ import annotations

import asyncio

import pytest

from testkit.sim.shared import VirtualLoop, virtual_time
from tests.unit.cluster.mesh_support import trio

A, B, C = "AAAAAAAA", "BBBBBBBB", "CCCCCCCC"


def test_all_connect() -> None:
    _, _, meshes, recorders = trio()
    assert [sorted(mesh.peers) for mesh in meshes] == [[B, C], [A, C], [A, B]]
    assert [entry for entry in recorders[0].log if entry != ("end",)] == [("up", B), ("up", C)]
    assert meshes[0].peers[B].name == "b"
    assert all(mesh.settled for mesh in meshes)


def test_cut_loses_what_was_under_way_and_heal_brings_the_link_back() -> None:
    time, network, (a, _, _), (a_log, b_log, _) = trio()
    b_log.log.clear()
    a.send_raft(B, 1, b"lost")
    network.cut(A, B)
    assert (a_log.log[-1], b_log.log) == (("down", B), [("down", A)]), "at once"
    assert not a.send_raft(B, 1, b"no link")
    time.advance(5)
    assert B not in a.peers
    network.heal(A, B)
    time.advance(3)
    assert a.send_raft(B, 1, b"new")
    time.advance(0.05)
    heard = [entry for entry in b_log.log if entry != ("end",)]
    assert heard == [("down", A), ("up", A), ("raft", A, 1, b"new")]


def test_what_is_held_comes_at_once_and_in_order_when_it_is_released() -> None:
    time, network, (a, _, _), (_, b_log, _) = trio()
    b_log.log.clear()
    network.hold(B)
    for number in range(10):
        a.send_raft(B, number, b"x")
        time.advance(0.05)
    assert b_log.log == []
    network.release()
    time.advance(0.05)
    assert [entry[2] for entry in b_log.log if entry[0] == "raft"] == list(range(10))


def test_isolate_stop_and_restart() -> None:
    time, network, (a, b, _), (_, b_log, _) = trio()
    network.isolate(A)
    assert a.peers == {}
    network.heal_all()
    time.advance(1)
    assert sorted(a.peers) == [B, C]
    old_boot = b.peers[A].boot_id
    a.stop_now()
    time.advance(0.05)
    assert sorted(b.peers) == [C]
    again = network.mesh("a", A)
    again.start_now()
    time.advance(1)
    assert b.peers[A].boot_id != old_boot
    assert [entry for entry in b_log.log if entry[0] in ("up", "down")][-2:] == [("down", A), ("up", A)]


def test_virtual_time_tells_what_nobody_looked_at() -> None:
    @virtual_time
    async def raises() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(3600)

    @virtual_time
    async def hangs() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        raises()
    with pytest.raises(AssertionError, match="nothing is left"):
        hangs()


def test_tasks_that_a_test_leaves_are_cancelled() -> None:
    ended: list[float] = []

    async def work(loop: VirtualLoop) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(loop.time())

    async def leave(loop: VirtualLoop) -> None:
        loop.create_task(work(loop))
        await asyncio.sleep(1)

    loop = VirtualLoop()
    loop.run(leave(loop))
    assert ended == [1001.0] and not loop.failures
