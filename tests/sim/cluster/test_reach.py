"""Parts of the product that take a certain option or limit are reached by workloads, which fail where they do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from jetcluster.mesh.interest import AnnouncedValve
from jetcluster.mirror.upstream import Upstream
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.raft.core.group import Group
from jetcluster.replica.reads.answers import Answers
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads import queue_copies

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("small", [False, True])
def test_bursts_close_valves_where_limits_are_small(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    closed: list[bytes] = []
    close = AnnouncedValve.closed_for

    def tell(valve: AnnouncedValve, subjects: Collection[bytes]) -> None:
        closed.extend(subjects)
        close(valve, subjects)

    monkeypatch.setattr(AnnouncedValve, "closed_for", tell)
    scenario = replace(Scenario.of(930001, ("bursts",)), small=small)
    assert run_seed(930001, scenario=scenario).failure == ""
    assert bool(closed) == small


@pytest.mark.parametrize("works", [True, False])
def test_a_link_that_does_not_take_the_consumer_it_is_given_is_noticed(
    monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    monkeypatch.setattr(queue_copies, "GIVEN", 1.0)
    if not works:
        monkeypatch.setattr(Upstream, "reset_subject", lambda upstream, consumer: b"nobody.there")
    scenario = Scenario.of(940001, ("queue-copies",))
    result = run_seed(940001, scenario=replace(scenario, layout="three", rage=replace(scenario.rage, faults=())))
    assert result.counts["queue-copies: consumers given"] == 2
    assert ("answers for TAKEN" in result.failure) != works, result.failure
    assert works == (result.failure == "")


@pytest.mark.parametrize("knows", [True, False])
def test_crowds_that_do_not_find_their_own_writes_are_noticed(monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    """A replica that does not go by what its leader tells it of its commits answers too early."""
    if not knows:
        monkeypatch.setattr(Group, "told_index", property(lambda group: 0))
    scenario = Scenario.of(970004, ("crowds",))
    slow = replace(scenario.rage, faults=("busy", "loss", "slow_disk"), hands=2)
    result = run_seed(970004, scenario=replace(scenario, layout="three", rage=slow))
    assert ("was read on the connection that knew of" in result.failure) != knows, result.failure
    assert knows == (result.failure == "")


def test_crowds_are_handed_on_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    answer = Answers.on_bodies

    def note(answers: Answers, messages: list[Outgoing], origin: Origin) -> int:
        sizes.append(len(messages))
        return answer(answers, messages, origin)

    monkeypatch.setattr(Answers, "on_bodies", note)
    scenario = Scenario.of(970004, ("crowds",))
    assert run_seed(970004, scenario=replace(scenario, rage=replace(scenario.rage, faults=()))).failure == ""
    assert max(sizes, default=0) > 5
