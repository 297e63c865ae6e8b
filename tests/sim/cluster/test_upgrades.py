"""Servers of two versions: what an older one gets, and would not understand, is noticed."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from random import Random

import pytest

from jetcluster.consumer.state.turn import BURIED, DELIVER, Op, encode
from jetcluster.stream.log import commands
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, LEVEL, RETENTION_GUARD_LEVEL
from testkit.sim.deployment import Deployment
from tests.sim.cluster import older
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads.upgrades import Upgrades

pytestmark = pytest.mark.sim


def upgraded(seed: int) -> Result:
    plan = replace(Scenario.of(seed), workloads=("upgrades",), layout="three", rage=Rage((), 0, 1.0, 1.0), again=False)
    return run_seed(seed, scenario=plan)


def test_servers_of_two_versions_are_upgraded_and_then_do_what_is_new() -> None:
    result = upgraded(1)
    assert result.failure == ""
    assert result.counts["upgrades: upgraded"] > 0
    assert all(result.counts[f"upgrades: made: {what}"] > 0 for what in ("keys", "letters", "guard"))


def test_who_stands_still_is_upgraded_once_it_goes_on(deployment: Deployment) -> None:
    """It would not start again, and stay what it is for ever."""
    upgrades = Upgrades(deployment, Random(1))
    machine = deployment.machines["n1"]
    machine.level = LEVEL - 1
    machine.pause()
    upgrades.stopping = True

    def upgrade() -> bool:
        task = deployment.spawn(upgrades.loop, attrgetter("_upgrade_one")(upgrades)())
        deployment.run_until_done(task, 30.0)
        return bool(task.result())

    assert not upgrade()
    machine.resume()
    assert upgrade()
    assert machine.level == 0 and machine.starts == 2


def test_a_command_that_an_older_server_would_not_understand_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older, "needed", lambda command: LEVEL if command[0] == commands.PUBLISH else 0)
    assert f"gets a command of level {LEVEL}" in upgraded(1).failure


def test_the_level_that_a_command_needs() -> None:
    def turn(kind: int) -> bytes:
        return commands.HEAD.pack(commands.CONSUMER_TURN, 0, 1) + encode(b"node5678", 1, 1, [Op(1, 1, kind, [5])])

    assert older.needed(turn(DELIVER)) == 0
    assert older.needed(turn(BURIED)) == DEAD_LETTER_LEVEL
    assert older.needed(commands.HEAD.pack(commands.UPDATE_CONFIG, commands.GUARDED, 1)) == RETENTION_GUARD_LEVEL
    assert older.needed(commands.HEAD.pack(commands.UPDATE_CONFIG, 0, 1)) == 0
