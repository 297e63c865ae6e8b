"""A stream that lost its majority goes on with one replica, and a rescue that is used too early is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.cluster.stream_rescue import StreamRescues
from jetcluster.raft.journal.inspection import LogView
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads import stream_rescue

pytestmark = pytest.mark.sim

SEED = 3


@pytest.mark.parametrize("waits", [True, False])
def test_a_rescued_replica_waits_while_a_majority_is_whole(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    monkeypatch.setattr(stream_rescue, "WAYS", ("too early",))
    if not waits:

        async def nothing(rescues: object, old: object, kept: object, others: object) -> None:
            pass

        monkeypatch.setattr(StreamRescues, "_check_stuck", nothing)
    scenario = Scenario.of(SEED, ("stream-rescue",))
    result = run_seed(SEED, scenario=replace(scenario, rage=replace(scenario.rage, faults=())))
    assert result.counts["stream-rescue: too early"] == 1
    assert ("who has a replica that is used" in result.failure) != waits, result.failure
    assert waits == (result.failure == "")


def test_a_journal_that_is_read_without_its_last_entry_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = LogView.entries_after
    monkeypatch.setattr(LogView, "entries_after", lambda view, index: [*entries(view, index)][:-1])
    scenario = Scenario.of(SEED, ("stream-rescue",))
    result = run_seed(SEED, scenario=replace(scenario, rage=replace(scenario.rage, faults=())))
    assert "is read as" in result.failure
