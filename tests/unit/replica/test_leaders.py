"""Hints about leaders (replica/leaders.py)."""

from __future__ import annotations

import asyncio

from jetcluster.replica.leaders import MAX_ENTRIES_PER_NOTICE, LeaderTable
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop, virtual_time

A, B, C = (name * 8 for name in "ABC")


class Trio:
    def __init__(self, loop: VirtualLoop | None = None) -> None:
        self.time = loop or VirtualLoop()
        self.network = MeshNetwork(self.time)
        self.local: dict[str, dict[int, str]] = {peer: {} for peer in (A, B, C)}
        self.meshes: dict[str, SimMesh] = {}
        self.tables: dict[str, LeaderTable] = {}
        for peer in (A, B, C):
            mesh = self.meshes[peer] = self.network.mesh(peer[0], peer)
            self.tables[peer] = LeaderTable(mesh, self.local[peer].get, lambda gid, term: None)
            mesh.start_now()
        if loop is None:
            self.time.advance(0.05)

    def __getitem__(self, peer: str) -> LeaderTable:
        return self.tables[peer]


async def running_trio() -> tuple[Trio, VirtualLoop]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    trio = Trio(loop)
    await asyncio.sleep(0.05)
    return trio, loop


def test_a_leader_tells_everybody_and_whoever_connects_later() -> None:
    trio = Trio()
    trio.network.isolate(C)
    trio[A].lead(5, 1)
    trio.time.advance(0.05)
    assert [trio[peer].get(5) for peer in (A, B, C)] == [A, A, None]
    trio.network.heal_all()
    trio.time.advance(0.5)
    assert trio[C].get(5) == A
    assert trio[A].led_by_me() == (5,)


def test_more_groups_than_fit_one_notice() -> None:
    trio = Trio()
    trio.network.isolate(C)
    for gid in range(MAX_ENTRIES_PER_NOTICE + 3):
        trio[A].lead(gid + 2, 1)
    trio.network.heal_all()
    trio.time.advance(0.5)
    assert all(trio[C].get(gid + 2) == A for gid in range(MAX_ENTRIES_PER_NOTICE + 3))


def test_a_later_term_wins_whatever_the_order() -> None:
    trio = Trio()
    trio[B].lead(5, 3)
    trio[A].lead(5, 2)
    trio.time.advance(0.05)
    assert trio[C].get(5) == B


def test_suspicion_does_not_forget_what_was_learned_meanwhile() -> None:
    trio = Trio()
    trio[A].lead(5, 1)
    trio.time.advance(0.05)
    asked = trio[C].hint(5)
    assert asked is not None
    trio[A].lead(5, 1)  # the same again: it was asked a moment before it was ready
    trio.time.advance(0.05)
    trio[C].suspect(5, asked)
    assert trio[C].get(5) == A
    newest = trio[C].hint(5)
    assert newest is not None
    trio[C].suspect(5, newest)
    assert trio[C].get(5) is None


def test_own_leadership_is_never_suspected() -> None:
    trio = Trio()
    trio[A].lead(5, 1)
    hint = trio[A].hint(5)
    assert hint is not None
    trio[A].suspect(5, hint)
    assert trio[A].get(5) == A
    trio[A].follow(5, 2, None)
    assert trio[A].get(5) is None and trio[A].led_by_me() == ()


def test_a_lost_peer_leads_nothing_any_more() -> None:
    trio = Trio()
    trio[A].lead(5, 1)
    trio[B].lead(6, 1)
    trio.time.advance(0.05)
    trio.network.isolate(A)
    assert (trio[C].get(5), trio[C].get(6)) == (None, B)


def test_the_own_replica_is_asked_when_nobody_else_has_said() -> None:
    trio = Trio()
    trio.local[C][9] = B
    assert trio[C].get(9) == B
    del trio.local[C][9]
    trio[C].forget(9)
    assert trio[C].get(9) is None


def test_malformed_notices_are_ignored() -> None:
    trio = Trio()
    for payload in (b"x", b"\0" * 13, b"\0" * 12 * (MAX_ENTRIES_PER_NOTICE + 1)):
        trio.meshes[A].notify(C, "lead", payload)
    trio.time.advance(0.05)
    assert trio[C]._leaders == {}


@virtual_time
async def test_waiting_ends_with_news_or_with_time_and_leaves_nothing() -> None:
    trio, loop = await running_trio()
    started = loop.time()
    waits = [loop.create_task(trio[C].wait(5, 2.0)) for _ in range(2)]
    await asyncio.sleep(0.5)
    trio[A].lead(5, 1)
    await asyncio.gather(*waits)
    assert 0.5 < loop.time() - started < 0.51
    started = loop.time()
    await trio[C].wait(6, 1.0)
    assert loop.time() - started == 1.0
    cancelled = loop.create_task(trio[C].wait(7, 9.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert trio[C]._waiters == {}


@virtual_time
async def test_a_leader_that_was_forgotten_is_asked_for_and_found() -> None:
    trio, loop = await running_trio()
    trio[A].lead(5, 3)
    await asyncio.sleep(0.05)
    forgotten = trio[C].hint(5)
    assert forgotten is not None
    trio[C].suspect(5, forgotten)
    started = loop.time()
    await trio[C].wait(5, 1.0)
    assert trio[C].get(5) == A and loop.time() - started < 0.1


@virtual_time
async def test_who_waits_for_another_leader_than_the_known_one_asks_nobody_and_waits() -> None:
    trio, loop = await running_trio()
    trio[A].lead(5, 1)
    await asyncio.sleep(0.05)
    started = loop.time()
    await trio[C].wait(5, 1.0)
    assert loop.time() - started == 1.0
    assert trio[C].get(5) == A


@virtual_time
async def test_however_many_wait_peers_are_asked_once_in_a_while() -> None:
    trio, loop = await running_trio()
    asked: list[bytes] = []
    notify = trio.meshes[C].notify
    trio.meshes[C].notify = lambda peer, kind, payload: (asked.append(payload), notify(peer, kind, payload))[1]  # type: ignore[assignment]
    await asyncio.gather(*(loop.create_task(trio[C].wait(5, 0.5)) for _ in range(100)))
    assert len(asked) == 1
    for _ in range(4):
        await trio[C].wait(5, 0.25)
    assert len(asked) == 5


def test_questions_that_nobody_asks() -> None:
    trio = Trio()
    trio[A].lead(5, 1)
    trio.time.advance(0.05)
    trio[C].forget(5)
    for payload in (b"x", b"\0" * 5, b"\x06\0\0\0"):
        trio.meshes[C].notify(A, "lead?", payload)
    trio.time.advance(0.05)
    assert trio[C].get(5) is None
