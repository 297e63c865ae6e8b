"""The order of logins whose passwords take long to check (server/fairness.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from jetcluster.server import fairness
from jetcluster.server.fairness import MAX_LOGIN_THREADS, SlowLogins
from testkit.twins.memory import held


class Bench:
    """Checks that wait until they are told to go on, and what has been checked in which order."""

    def __init__(self) -> None:
        self.logins = SlowLogins()
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[bool]] = []
        self._gate = threading.Semaphore(0)

    def ask(
        self, address: str, user: str, given: str, unless: Callable[[], bool] = lambda: False
    ) -> asyncio.Future[bool]:
        def work() -> None:
            self.order.append(given)
            assert self._gate.acquire(timeout=10)

        task = asyncio.ensure_future(self.logins.check(address, user, given, work, unless))
        self.tasks.append(task)
        return task

    async def fill(self) -> None:
        """All threads are busy."""
        for number in range(MAX_LOGIN_THREADS):
            self.ask("busy", "busy", f"busy-{number}")
        while len(self.order) < MAX_LOGIN_THREADS:
            await asyncio.sleep(0.001)

    async def finish(self) -> list[str]:
        for _ in self.tasks:
            self._gate.release()
        await asyncio.gather(*self.tasks)
        return self.order[MAX_LOGIN_THREADS:]


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.logins.stop()


async def test_one_address_does_not_stand_in_the_way_of_another(bench: Bench) -> None:
    await bench.fill()
    for number in range(50):
        bench.ask("1.1.1.1", f"user-{number}", f"wrong-{number}")
    await asyncio.sleep(0)
    bench.ask("2.2.2.2", "user-1", "right")
    await asyncio.sleep(0)
    assert bench.logins.waiting == 51
    assert (await bench.finish()).index("right") < 4


async def test_one_user_does_not_stand_in_the_way_of_another_of_the_same_address(bench: Bench) -> None:
    await bench.fill()
    for number in range(50):
        bench.ask("1.1.1.1", "guessed", f"wrong-{number}")
    bench.ask("1.1.1.1", "other", "right")
    await asyncio.sleep(0)
    assert (await bench.finish()).index("right") < 4


async def test_who_came_last_is_next_of_one_user(bench: Bench) -> None:
    await bench.fill()
    for number in range(50):
        bench.ask("1.1.1.1", "guessed", f"wrong-{number}")
    bench.ask("1.1.1.1", "guessed", "right")
    await asyncio.sleep(0)
    assert (await bench.finish()).index("right") < 2


async def test_the_same_is_checked_once(bench: Bench) -> None:
    await bench.fill()
    idle = held(bench.logins)
    asked = [bench.ask(address, "u", "same") for address in ("1.1.1.1", "2.2.2.2", "1.1.1.1")]
    await asyncio.sleep(0)
    assert await bench.finish() == ["same"]
    assert [task.result() for task in asked] == [True] * 3
    assert held(bench.logins) <= idle
    assert not bench.logins.waiting


async def test_nothing_is_checked_for_who_has_gone(bench: Bench) -> None:
    await bench.fill()
    idle = held(bench.logins)
    gone = bench.ask("1.1.1.1", "u", "gone", lambda: True)
    here = bench.ask("1.1.1.1", "u", "here")
    await asyncio.sleep(0)
    assert await bench.finish() == ["here"]
    assert not gone.result()
    assert here.result()
    assert held(bench.logins) <= idle


async def test_too_many_are_refused_of_the_address_that_has_most(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MAX_WAITING_LOGINS", 20)
    await bench.fill()
    other = bench.ask("2.2.2.2", "u", "right")
    many = [bench.ask("1.1.1.1", "u", f"wrong-{number}") for number in range(40)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.logins.waiting <= 20
    assert bench.logins.refused == 21
    assert [task.done() for task in many] == [True] * 21 + [False] * 19, "who has waited longest goes"
    await bench.finish()
    assert other.result()
