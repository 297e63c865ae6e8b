"""Long commands in a cluster: pieces go through the log, whoever leads (`stream.apply.jobs`, `stream.lead.duties`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.cluster.stream_requests import LIMITED_SECONDS
from jetcluster.store import slices
from jetcluster.store.slices import Step
from jetcluster.stream.lead.duties import LeaderDuties
from jetcluster.stream.log import commands
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.test_stream_requests import ask

SMALL = Step(subjects=2, messages=3, looked=4, blocks=2, size=400, cut=3, cut_blocks=2, rest=1)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "STEP", SMALL)


async def filled(cluster: Cluster, count: int = 60) -> None:
    await cluster.create("S", subjects=["s.>"])
    for number in range(count):
        await cluster["A"].publish(b"s.%d" % number, b"x")
    await cluster.equal("S")


@virtual_time
async def test_the_answer_comes_when_all_is_gone_and_publishes_go_on_meanwhile() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        purging = asyncio.get_running_loop().create_task(ask(cluster["B"], "purge", filter="s.*", seq=51))
        leader = cluster.leader("S").replica("S")
        await cluster.until(lambda: bool(leader.machine.jobs), what="the job")
        acks = [await cluster["C"].publish(b"s.late") for _ in range(5)]
        assert leader.machine.jobs and not purging.done()
        assert await purging == {"purged": 50}
        assert leader.store.messages == 15 and not leader.machine.jobs
        assert [ack["seq"] for ack in acks] == [61, 62, 63, 64, 65]
        await cluster.equal("S")


@virtual_time
@pytest.mark.parametrize("crash", [False, True])
async def test_the_next_leader_goes_on(crash: bool) -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        leader = cluster.leader("S")
        replica = leader.replica("S")
        target = cluster.followers("S")[0]
        replica.group.propose(commands.encode_purge(1, b"s.*"))
        await cluster.until(lambda: replica.store.messages < 50, what="some pieces")
        if crash:
            cluster.crash(leader.name)
        else:
            assert replica.group.transfer(target.me)
            await cluster.until(lambda: not replica.leading, what="the transfer")
        left = [node for node in cluster if node.name != leader.name]
        await cluster.until(lambda: any(node.replica("S").leading for node in left), what="another leader")
        await cluster.until(lambda: all(not node.replica("S").machine.jobs for node in left), what="the end of the job")
        assert [node.replica("S").store.messages for node in left] == [0, 0]
        if crash:
            cluster.restart(leader.name)
        await cluster.equal("S")


@virtual_time
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize(("body", "purged"), [({"filter": "s.*"}, 60), ({"keep": 1}, 59)])
async def test_who_asked_gets_the_answer_although_the_leader_changed_and_what_came_meanwhile_stays(
    body: dict[str, Any], purged: int, crash: bool
) -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        leader, (target, asker) = cluster.leader("S"), cluster.followers("S")
        purging = asyncio.get_running_loop().create_task(ask(asker, "purge", **body))
        await cluster.until(lambda: leader.replica("S").store.messages < 50, what="some pieces")
        ack = await asker.publish(b"s.late")
        if crash:
            cluster.crash(leader.name)
        else:
            assert leader.replica("S").group.transfer(target.me)
            await cluster.until(lambda: not leader.replica("S").leading, what="the transfer")
        assert await purging == {"purged": purged}, "once"
        assert ack["seq"] == 61
        for node in cluster:
            await cluster.until(lambda node=node: not node.replica("S").machine.jobs, what="the end")  # type: ignore[misc]
            assert node.replica("S").store.first_seq == purged + 1 and node.replica("S").store.last_seq == 61


@virtual_time
async def test_a_replica_that_comes_back_in_the_middle_takes_the_job_over_with_the_state() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        away = cluster.followers("S")[0].name
        cluster.crash(away)
        leader = (await cluster.led("S")).replica("S")
        leader.group.propose(commands.encode_purge(1, b"s.*"))
        await cluster.until(lambda: leader.store.messages < 50, what="some pieces")
        cluster.restart(away)
        await cluster.until(lambda: not leader.store.messages, what="all pieces")
        await cluster.equal("S")
        assert cluster[away].replica("S").store.messages == 0


@virtual_time
@pytest.mark.parametrize("held", [False, True])
async def test_an_update_is_answered_when_its_limits_hold_or_after_a_second(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        leader = cluster.leader("S").replica("S")
        began = cluster.loop.time()
        with monkeypatch.context() as patch:
            if held:
                patch.setattr(LeaderDuties, "_go_on", lambda duties: setattr(duties, "_continuing", False))
            await cluster.update("S", subjects=["s.>"], max_msgs=10)
            took = cluster.loop.time() - began
            assert (leader.store.messages > 10, took > LIMITED_SECONDS) == (held, held)
            assert took < LIMITED_SECONDS + 0.5
        await cluster.until(lambda: leader.store.messages == 10, what="the limit")
        await cluster.equal("S")
        assert leader.store.first_seq == 51
