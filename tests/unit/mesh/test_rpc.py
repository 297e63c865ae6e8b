"""Requests between nodes (mesh/rpc.py), on the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jetcluster.mesh import rpc as mesh_rpc
from jetcluster.mesh.api import MeshError
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop, virtual_time

A, B = "AAAAAAAA", "BBBBBBBB"


async def pair(max_frame: int = 10_000) -> tuple[MeshNetwork, SimMesh, SimMesh]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    network = MeshNetwork(loop, max_frame=max_frame)
    a, b = network.mesh("a", A), network.mesh("b", B)
    await a.start()
    await b.start()
    await asyncio.sleep(0.05)
    assert B in a.peers
    return network, a, b


async def echo(peer: str, payload: bytes) -> bytes:
    return peer.encode() + b":" + payload


async def never(peer: str, payload: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


def serve_gated(mesh: SimMesh) -> asyncio.Event:
    """Serves the method "gated", which answers once the event that is returned is set."""
    gate = asyncio.Event()

    async def gated(peer: str, payload: bytes) -> bytes:
        await gate.wait()
        return payload

    mesh.serve("gated", gated)
    return gate


def returning(value: bytes) -> Callable[[str, bytes], Any]:
    async def handler(peer: str, payload: bytes) -> bytes:
        return value

    return handler


@virtual_time
async def test_call_to_a_peer_and_to_itself() -> None:
    _, a, b = await pair()
    a.serve("echo", echo)
    b.serve("echo", echo)
    assert await a.call(B, "echo", b"x") == b"AAAAAAAA:x"
    assert await a.call(A, "echo", b"") == b"AAAAAAAA:"


@virtual_time
async def test_many_at_once_answered_in_any_order() -> None:
    _, a, b = await pair()

    async def slow_first(peer: str, payload: bytes) -> bytes:
        for _ in range(100 - int(payload)):
            await asyncio.sleep(0)
        return payload

    b.serve("slow", slow_first)
    answers = await asyncio.gather(*(a.call(B, "slow", b"%d" % i) for i in range(100)))
    assert answers == [b"%d" % i for i in range(100)]


@virtual_time
async def test_both_directions_use_the_same_ids_without_mixing() -> None:
    _, a, b = await pair()
    a.serve("who", returning(b"a"))
    b.serve("who", returning(b"b"))
    assert await asyncio.gather(a.call(B, "who", b""), b.call(A, "who", b"")) == [b"b", b"a"]


@pytest.mark.parametrize("target", [A, B])
@virtual_time
async def test_timeout(target: str) -> None:
    _, a, b = await pair()
    cancelled = asyncio.Event()

    async def never(peer: str, payload: bytes) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    a.serve("never", never)
    b.serve("never", never)
    with pytest.raises(MeshError, match=r"never: no answer within 0\.02 s"):
        await a.call(target, "never", b"", timeout=0.02)
    await b.stop()
    await asyncio.wait_for(cancelled.wait(), 1)


@pytest.mark.parametrize("target", [A, B])
@virtual_time
async def test_what_a_handler_raises_reaches_the_caller(target: str) -> None:
    _, a, b = await pair()

    async def refusing(peer: str, payload: bytes) -> bytes:
        raise MeshError("not the leader (leader: X)")

    async def broken(peer: str, payload: bytes) -> bytes:
        raise KeyError("missing")

    for mesh in (a, b):
        mesh.serve("refusing", refusing)
        mesh.serve("broken", broken)
    with pytest.raises(MeshError, match=r"^not the leader \(leader: X\)$"):
        await a.call(target, "refusing", b"")
    with pytest.raises(MeshError, match="missing"):
        await a.call(target, "broken", b"")
    with pytest.raises(MeshError, match="no such method"):
        await a.call(target, "unknown", b"")


@virtual_time
async def test_link_loss_fails_the_callers_of_that_peer() -> None:
    network, a, b = await pair()
    b.serve("never", never)
    waiting = asyncio.ensure_future(a.call(B, "never", b""))
    await asyncio.sleep(0)
    network.cut(A, B)
    with pytest.raises(MeshError, match="lost the connection"):
        await waiting
    with pytest.raises(MeshError, match="not connected"):
        await a.call(B, "never", b"")
    await b.stop()


@virtual_time
async def test_an_answer_of_the_old_link_is_not_taken_on_the_new_one() -> None:
    network, a, b = await pair()
    gate = serve_gated(b)
    first = asyncio.ensure_future(a.call(B, "gated", b"old"))
    await asyncio.sleep(0.001)
    network.cut(A, B)
    with pytest.raises(MeshError):
        await first
    network.heal(A, B)
    await asyncio.sleep(0.2)
    a._rpc._next_id = 0  # the id of the lost call again
    second = asyncio.ensure_future(a.call(B, "gated", b"new"))
    await asyncio.sleep(0.001)
    gate.set()
    assert await second == b"new"


@virtual_time
async def test_a_cancelled_caller_leaves_nothing_behind() -> None:
    _, a, b = await pair()
    gate = serve_gated(b)
    waiting = asyncio.ensure_future(a.call(B, "gated", b""))
    await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert a._rpc._waiting == {}
    gate.set()
    await asyncio.sleep(0.001)
    assert await b.call(B, "gated", b"still works") == b"still works"


@pytest.mark.parametrize("target", [A, B])
@virtual_time
async def test_sizes_are_limited(target: str) -> None:
    _, a, b = await pair(max_frame=2000)
    for mesh in (a, b):
        mesh.serve("large", returning(b"x" * 1600))
        mesh.serve("fits", returning(b"x" * 1400))
    assert len(await a.call(target, "fits", b"")) == 1400
    with pytest.raises(MeshError, match="reply of 1600 bytes is too large"):
        await a.call(target, "large", b"")
    with pytest.raises(MeshError, match="request of 1600 bytes is too large"):
        await a.call(B, "fits", b"x" * 1600)
    assert B in a.peers


@virtual_time
async def test_running_handlers_per_peer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_rpc, "MAX_RUNNING_HANDLERS", 3)
    _, a, b = await pair()
    gate = asyncio.Event()

    async def gated(peer: str, payload: bytes) -> bytes:
        await gate.wait()
        return b""

    b.serve("gated", gated)
    calls = [asyncio.ensure_future(a.call(B, "gated", b"")) for _ in range(5)]
    await asyncio.sleep(0.001)
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, MeshError) for result in results] == [False, False, False, True, True]


@virtual_time
async def test_method_names() -> None:
    _, a, _ = await pair()
    a.serve("m", echo)
    with pytest.raises(ValueError):
        a.serve("m", echo)
    with pytest.raises(ValueError):
        a.serve("ü", echo)


@virtual_time
async def test_sync_interest_waits_for_every_peer() -> None:
    network, a, b = await pair()
    await a.sync_interest(1.0)
    b.links[A]._process = lambda *args: None  # a peer that reads and does nothing
    with pytest.raises(MeshError, match="did not confirm"):
        await a.sync_interest(0.02)
    waiting = asyncio.ensure_future(a.sync_interest(5.0))
    await asyncio.sleep(0)
    network.cut(A, B)
    await asyncio.wait_for(waiting, 1)


@virtual_time
async def test_a_handler_that_hangs_is_ended_and_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_rpc, "MAX_RUNNING_HANDLERS", 1)
    monkeypatch.setattr(mesh_rpc, "MAX_HANDLER_SECONDS", 0.05)
    _, a, b = await pair()
    b.serve("never", never)
    b.serve("echo", echo)
    with pytest.raises(MeshError, match="no answer within"):
        await a.call(B, "never", b"", 0.01)
    with pytest.raises(MeshError, match="too many requests"):
        await a.call(B, "echo", b"")
    with pytest.raises(MeshError, match="too many requests"):
        await a.call(B, "never", b"", 1.0)
    await asyncio.sleep(0.1)
    assert await a.call(B, "echo", b"x") == b"AAAAAAAA:x"
    with pytest.raises(MeshError, match="did not end within"):
        await a.call(B, "never", b"", 1.0)
