"""Headers that are wrong are refused with a reason, and a server that takes one is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.stream.read import direct_get
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads.header_exam import HeaderExam

pytestmark = pytest.mark.sim


def examined(monkeypatch: pytest.MonkeyPatch, *parts: str) -> Result:
    async def check(exam: HeaderExam) -> None:
        exam.number = 0
        await exam.examine([getattr(exam, part) for part in parts])

    monkeypatch.setattr(HeaderExam, "check", check)
    plan = replace(
        Scenario.of(1, ("exam-headers",)), layout="three", rage=Rage((), 0, 1.0, 1.0), pulse=False, again=False
    )
    return run_seed(1, scenario=plan)


def test_each_part_of_the_exam_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined(monkeypatch, "_publishes", "_reads", "_pulls", "_levels")
    assert result.failure == ""
    assert result.counts["exam-headers: examined"] == 4


def test_a_server_that_heeds_no_level_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_get, "level_is_met", lambda level: True)
    assert "a Direct Get of a higher level" in examined(monkeypatch, "_levels").failure
