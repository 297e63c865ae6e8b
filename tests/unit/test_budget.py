"""Work in steps that shares the loop's time (jetcluster/budget.py)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable
from typing import Any

import pytest

from jetcluster.budget import MAX_PER_KEY, QUANTUM_SECONDS, SLICE_SECONDS, BusyError, LoopBudget, Steps, Work
from jetcluster.clock import SystemClock
from testkit.twins.time import SteppedTime


class Rig:
    def __init__(self) -> None:
        self.loop = SteppedTime()
        self.budget = LoopBudget(self.loop, self.loop)
        self.worked: list[Hashable] = []
        self.results: list[object] = []

    def steps(self, name: Hashable, count: int, seconds: float = QUANTUM_SECONDS) -> Steps[Hashable]:
        for _ in range(count):
            self.loop.now += seconds
            self.worked.append(name)
            yield
        return name

    def start(self, name: Hashable, count: int, key: Hashable = "") -> Any:
        steps = self.steps(name, count)
        return self.budget.start(key or name, steps, self.results.append, self.results.append)

    def turns(self) -> int:
        """Takes turns of the loop until nobody waits, and counts them."""
        count = 0
        while self.budget.jobs:
            self.loop.turn()
            count += 1
        return count


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_short_job_is_done_at_once(rig: Rig) -> None:
    rig.budget.start("a", rig.steps("a", 3, QUANTUM_SECONDS / 10), rig.results.append, rig.results.append)
    assert rig.results == ["a"]
    assert not rig.budget.jobs


def test_all_jobs_together_have_one_slice_of_a_turn(rig: Rig) -> None:
    for name in range(10):
        rig.start(name, 20)
    start = rig.loop.now
    assert start <= SLICE_SECONDS + QUANTUM_SECONDS, "what is begun at once has no more than the others"
    while rig.budget.jobs:
        rig.loop.turn()
        assert rig.loop.now - start <= SLICE_SECONDS + QUANTUM_SECONDS
        start = rig.loop.now
    assert sorted(map(str, rig.results)) == sorted(map(str, range(10)))


def test_a_step_may_speak_for_time_that_is_needed_elsewhere(rig: Rig) -> None:
    begun: list[int] = []

    def steps() -> Work[None]:
        for number in range(20):
            begun.append(number)
            yield SLICE_SECONDS / 4

    rig.budget.start("a", steps(), rig.results.append, rig.results.append)
    counts = [len(begun)]
    while rig.budget.jobs:
        rig.loop.turn()
        counts.append(len(begun))
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 4
    assert len(begun) == 20


def test_keys_have_turns_alike_however_many_jobs_they_have(rig: Rig) -> None:
    for _ in range(100):
        rig.start("many", 5)
    rig.start("one", 5)
    rig.turns()
    assert rig.worked.index("one") < 20
    assert rig.results.index("one") < 5, "and it does not wait for the other's hundred"


def test_a_short_job_of_a_key_does_not_wait_for_its_long_one(rig: Rig) -> None:
    rig.start("long", 500, key="account")
    rig.start("short", 2, key="account")
    rig.turns()
    assert rig.results == ["short", "long"]


def test_an_error_is_for_whoever_waits_and_others_go_on(rig: Rig) -> None:
    def breaks() -> Steps[None]:
        yield from rig.steps("broken", 3)
        raise ValueError("broken")

    rig.start("a", 5)
    rig.budget.start("b", breaks(), rig.results.append, rig.results.append)
    rig.turns()
    assert "a" in rig.results
    assert [str(found) for found in rig.results if isinstance(found, ValueError)] == ["broken"]


def test_a_callback_that_raises_does_not_stop_the_others(rig: Rig) -> None:
    def raises(_: object) -> None:
        raise RuntimeError("a mistake")

    rig.start("first", 4)
    rig.budget.start("bad", rig.steps("bad", 2), raises, raises)
    with pytest.raises(RuntimeError):
        rig.turns()
    rig.turns()
    assert rig.results == ["first"]


def test_a_cancelled_job_ends_where_it_stands(rig: Rig) -> None:
    job = rig.start("a", 50)
    rig.loop.turn()
    done = len(rig.worked)
    job.cancel()
    job.cancel()
    assert not rig.budget.jobs
    rig.loop.turn()
    assert len(rig.worked) == done
    assert rig.results == []


def test_a_job_may_cancel_itself(rig: Rig) -> None:
    found: list[Any] = []

    def steps() -> Steps[None]:
        yield from rig.steps("a", 3)
        found[0].cancel()
        yield from rig.steps("a", 3)

    found.append(rig.budget.start("a", steps(), rig.results.append, rig.results.append))
    rig.turns()
    assert rig.results == []
    assert rig.worked.count("a") <= 4


def test_too_many_jobs_are_refused_those_of_others_are_not(rig: Rig) -> None:
    for _ in range(MAX_PER_KEY):
        rig.start("many", 5)
    with pytest.raises(BusyError):
        for _ in range(10):
            rig.start("many", 5)
    rig.start("one", 5)
    rig.turns()
    assert "one" in rig.results


def test_stop_cancels_all(rig: Rig) -> None:
    for name in range(10):
        rig.start(name, 50)
    rig.budget.stop()
    assert not rig.budget.jobs
    assert rig.results == []


def test_connections_that_wait_have_half_of_the_time(rig: Rig) -> None:
    rig.start("a", 50)
    assert rig.budget.share == SLICE_SECONDS
    rig.budget.connections_wait = True
    assert rig.budget.share == SLICE_SECONDS / 2
    start = rig.loop.now
    rig.loop.turn()
    assert rig.loop.now - start <= SLICE_SECONDS / 2 + QUANTUM_SECONDS


class TestAwaited:
    def budget(self) -> LoopBudget:
        return LoopBudget(SystemClock(), asyncio.get_running_loop())

    @staticmethod
    def count(to: int) -> Steps[int]:
        for _ in range(to):
            yield
        return to

    async def test_the_result_comes_back(self) -> None:
        budget = self.budget()
        assert await budget.run("a", self.count(3)) == 3
        assert await asyncio.gather(*(budget.run(key, self.count(20_000)) for key in range(5))) == [20_000] * 5

    async def test_an_error_comes_back(self) -> None:
        def breaks() -> Steps[None]:
            yield from self.count(20_000)
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await self.budget().run("a", breaks())

    async def test_a_cancelled_task_cancels_its_work(self) -> None:
        budget = self.budget()
        closed: list[bool] = []

        def steps() -> Steps[None]:
            try:
                while True:
                    yield
            finally:
                closed.append(True)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await budget.run("a", steps())
        assert closed == [True]
        assert not budget.jobs
