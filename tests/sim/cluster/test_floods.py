"""Messages that find no room are refused and not stored; one that is acknowledged instead is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from jetcluster.stream.lead.answers import Answers
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEEDS = (9020, 9021)
"""One with small limits and one without."""


def flooded(seed: int) -> Result:
    plan = replace(Scenario.of(seed, ("floods",)), rage=Rage(("slow_disk",), 1, 15.0, 4.0), pulse=False, again=False)
    return run_seed(seed, scenario=replace(plan, small=seed % 2 == 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_finds_no_room_is_refused(seed: int) -> None:
    result = flooded(seed)
    assert result.failure == ""
    assert result.counts["floods: stored"] > 50
    assert result.counts["floods: too many"]


def test_a_message_that_is_acknowledged_instead_of_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledge(answers: Answers, replies: Sequence[bytes]) -> None:
        for reply in replies:
            answers.bus.publish(reply, answers.acks.ack(1 << 30))

    monkeypatch.setattr(Answers, "too_many", acknowledge)
    assert "acknowledged" in flooded(SEEDS[0]).failure
