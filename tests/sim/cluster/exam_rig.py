"""One exam alone, in a quiet seed: for tests that it is passed, and that it notices a mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster.exam import Exam
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workload import found


def examined(
    monkeypatch: pytest.MonkeyPatch, name: str, *parts: str, layout: str = "three", small: bool = False, seed: int = 1
) -> Result:
    """The result of these parts of the exam `name`, all of them, without faults. `small`: with limits scaled down."""

    async def check(exam: Exam) -> None:
        await exam.examine([getattr(exam, part) for part in parts], len(parts))

    monkeypatch.setattr(found()[name], "check", check)
    plan = replace(Scenario.of(seed, (name,)), layout=layout, small=small, rage=Rage((), 0, 1.0, 1.0), pulse=False)
    return run_seed(seed, scenario=replace(plan, again=False, web=False, tls=""))
