"""Commands that no server writes are refused by all replicas alike, and a replica that takes one is noticed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from jetcluster.meta.state import Assignment
from jetcluster.stream.apply import restoring
from jetcluster.stream.log import commands
from testkit.sim.deployment import Deployment
from tests.sim.cluster import foreign, replicas
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads import foreign_commands
from tests.sim.cluster.workloads.foreign_commands import ForeignCommands

pytestmark = pytest.mark.sim

SEED = 61_002


def examined(seed: int = SEED, seconds: float = 20.0) -> Result:
    plan = replace(
        Scenario.of(seed, ("foreign-commands",)),
        layout="three", rage=Rage(("clock_drift",), 1, seconds, 1.0), pulse=False, again=False, small=False, pace=1.0,
    )  # fmt: skip
    return run_seed(seed, scenario=plan)


def test_every_command_is_refused_by_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that there are, not a sample."""

    async def each(workload: ForeignCommands) -> None:
        leader = next(one for one in replicas.replicas(workload.deployment, "FOREIGN").values() if one.leading)
        ts = leader.machine.clock
        for stream in ("FOREIGN", "FOREIGN-MIRROR"):
            for some in (foreign.damaged(ts), *foreign.parts(ts)):
                await workload.propose(stream, some)
        for make in (foreign.void, lambda rng, found: foreign.copied(found)):
            for stream in ("FOREIGN",) if make is foreign.void else ("FOREIGN-MIRROR", "FOREIGN-SOURCE"):
                await workload.on_streams([stream], lambda found, make=make: make(workload.rng, found))
        for state in list(leader.table.by_cid.values()):
            await workload.propose("FOREIGN", foreign.void_turns(leader, state))
        before = workload.counts["applied"]
        assert before > 200
        for _ in range(30):
            await workload.on_meta()
        assert workload.counts["applied"] > before

    monkeypatch.setattr(ForeignCommands, "_foreign", each)
    result = examined()
    assert result.failure == ""


def test_a_stream_that_takes_messages_of_an_archive_at_any_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    restored = restoring.restore

    def anytime(into: restoring.Into, command: commands.Restore) -> Any:
        return restored(into._replace(rules=_Restoring(into.rules)), command)

    monkeypatch.setattr(restoring, "restore", anytime)
    assert "that nobody has sent" in examined().failure


class _Restoring:
    def __init__(self, rules: Any) -> None:
        self.restoring, self.restored = True, lambda: rules


def test_a_meta_group_that_takes_any_configuration_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assignment, "check", lambda assignment: None)
    monkeypatch.setattr(foreign_commands, "AT_ONCE", 50)
    assert "the meta group has carried out" in examined().failure


def test_replicas_stop_at_a_command_of_a_newer_version_and_the_server_does_not(deployment: Deployment) -> None:
    """Each kind of such a command, in a stream of its own."""
    control = deployment.client("control")
    unknown = [
        bytes((99, 0)) + bytes(8), bytes((commands.PURGE, 128)) + bytes(8),
        commands.HEAD.pack(commands.BATCH_COMMIT, 0, 5) + b"\x80\0\0\0",
        commands.encode_extended(5, 30, b"{}"), commands.encode_extended(5, commands.CONSUMER_CREATE, b'{"new": 1}'),
        commands.encode_extended(5, commands.CONSUMER_TURN, bytes(24) + b"\7"),
        commands.encode_extended(5, commands.CONSUMER_TURN, bytes(25) + bytes(8) + b"\xee" + bytes(4)),
        commands.encode_publish(5, b"\xff" * 30),
    ]  # fmt: skip
    assert not any(map(foreign.is_known, unknown))
    workload = ForeignCommands(deployment, Random(5))

    async def meet() -> None:
        admin = workload.admin = await workload.session("admin")
        for number, command in enumerate(unknown):
            name = f"NEWER{number}"
            await workload.create(admin, name, subjects=[f"newer.{number}"])
            await admin.js_publish(f"newer.{number}", b"x")
            await workload.propose(name, [command])
            await workload.until(f"{name} has stopped", lambda name=name: _stopped(deployment, name))
        await workload.create(admin, "OTHER", subjects=["other"])
        assert (await admin.js_publish("other", b"x"))["seq"] == 1
        for number in range(len(unknown)):
            await admin.api(f"STREAM.DELETE.NEWER{number}")

    deployment.run_until_done(deployment.spawn(control, meet()), 300.0)
    assert deployment.failures == []


async def _stopped(deployment: Deployment, stream: str) -> bool:
    """A majority: after that nobody tells the third one that the command is committed."""
    found = replicas.replicas(deployment, stream).values()
    return sum(bool(one.group.stopped) for one in found) >= 2
