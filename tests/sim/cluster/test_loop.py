"""A simulated process has turns as asyncio has them, and a clock of its own."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from jetcluster.budget import LoopBudget, Steps
from testkit.sim.deployment import Deployment
from testkit.sim.loop import quietly_collected
from testkit.sim.machine import Machine
from testkit.twins.storage.threads import LATE, START


@pytest.fixture
def deployment() -> Deployment:
    return Deployment(1, ())


@pytest.fixture
def machine(deployment: Deployment) -> Machine:
    deployment.client("a")
    return deployment.clients["a"]


def test_what_comes_in_a_turn_waits_for_the_next(deployment: Deployment, machine: Machine) -> None:
    loop, seen = machine.loop, []
    assert loop is not None

    def first() -> None:
        loop.call_soon(seen.append, ("soon", loop.turns))
        loop.call_soon(lambda: seen.append(("turn", loop.turns)))
        seen.append(("first", loop.turns))

    loop.call_soon(first)
    loop.call_soon(lambda: seen.append(("second", loop.turns)))
    deployment.run(1.0)
    assert seen == [("first", 1), ("second", 1), ("soon", 1), ("turn", 2)]


def test_timers_follow_the_machine_s_own_clock(deployment: Deployment, machine: Machine) -> None:
    loop, at = machine.loop, []
    assert loop is not None
    machine.clock.set_rate(1.1)
    loop.call_later(11.0, lambda: at.append((deployment.scheduler.now, machine.clock.now())))
    deployment.run(20.0)
    assert at == [(pytest.approx(10.0, abs=0.001), pytest.approx(111.0, abs=0.001))]


def test_the_clock_goes_on_smoothly_when_its_rate_changes(deployment: Deployment, machine: Machine) -> None:
    deployment.run(10.0)
    before = machine.clock.now()
    machine.clock.set_rate(0.9)
    assert machine.clock.now() == pytest.approx(before)
    wall = machine.clock.time_ns()
    machine.clock.wall_ahead += 5.0
    assert machine.clock.time_ns() - wall == pytest.approx(5e9, rel=1e-6)
    assert machine.clock.now() == pytest.approx(before)


def test_looks_at_the_clock_take_time_so_that_long_jobs_give_way(deployment: Deployment, machine: Machine) -> None:
    loop, turns = machine.loop, set()
    assert loop is not None
    budget = LoopBudget(machine.clock, loop)

    def steps() -> Steps[None]:
        for _ in range(1_000):
            turns.add(loop.turns)
            yield

    async def work() -> None:
        await budget.run("key", steps())

    deployment.run_until_done(deployment.spawn(loop, work()), 5.0)
    assert 3 < len(turns) < 100


def test_a_killed_process_runs_no_more_and_a_paused_one_later(deployment: Deployment, machine: Machine) -> None:
    loop, seen = machine.loop, []
    assert loop is not None
    loop.call_later(1.0, seen.append, "a")
    machine.pause()
    deployment.run(5.0)
    assert seen == []
    machine.resume()
    deployment.run(0.1)
    assert seen == ["a"]
    loop.call_later(1.0, seen.append, "b")
    machine.kill()
    deployment.run(5.0)
    assert seen == ["a"]


def test_work_in_a_thread_ends_later_and_its_errors_are_raised(deployment: Deployment, machine: Machine) -> None:
    loop = machine.loop
    assert loop is not None

    async def work() -> tuple[float, float]:
        began = deployment.scheduler.now
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(int, "no")
        return await asyncio.to_thread(float, "3"), deployment.scheduler.now - began

    task = deployment.spawn(loop, work())
    deployment.run_until_done(task, 5.0)
    value, took = task.result()
    assert value == 3.0 and took > 2 * START


def test_a_callback_that_raises_is_a_failure_of_the_run(deployment: Deployment, machine: Machine) -> None:
    assert machine.loop is not None
    machine.loop.call_soon(lambda: 1 // 0)
    deployment.run(1.0)
    assert len(deployment.failures) == 1 and "ZeroDivisionError" in deployment.failures[0]


def test_a_thread_begins_soon_or_after_others_and_the_loop_goes_on_meanwhile(
    deployment: Deployment, machine: Machine
) -> None:
    loop = machine.loop
    assert loop is not None
    late: list[float] = []

    async def one(at: int) -> None:
        await asyncio.sleep(float(at))
        asked = deployment.scheduler.now
        turns = loop.turns
        loop.call_later(0.001, lambda: None)
        await asyncio.to_thread(lambda: late.append(deployment.scheduler.now - asked))
        assert loop.turns > turns

    async def work() -> None:
        await asyncio.gather(*map(one, range(60)))

    deployment.run_until_done(deployment.spawn(loop, work()), 120.0)
    slow = [seconds for seconds in late if seconds > 2 * START]
    assert len(late) == 60 and 1 <= len(slow) <= 20 and max(late) <= LATE


def test_a_task_of_a_killed_process_does_nothing_more_and_its_end_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    told: list[object] = []
    over = False

    async def work() -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            ended.append(over)
            await asyncio.sleep(1.0)

    def simulate() -> None:
        deployment = Deployment(1, ())
        deployment.client("a")
        machine = deployment.clients["a"]
        assert machine.loop is not None
        machine.loop.create_task(work())
        deployment.run(0.5)
        machine.kill()
        deployment.run(5.0)
        gc.collect()  # as it may come at any time where it is not turned off
        deployment.run(5.0)

    monkeypatch.setattr(sys, "unraisablehook", told.append)
    with quietly_collected():
        simulate()
        over = True
    assert ended == [True]
    assert told == []
