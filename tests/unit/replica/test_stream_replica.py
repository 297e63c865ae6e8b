"""One replica of a stream: configuration through the log, roles, failures (replica/stream_replica.py)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from jetcluster.mesh.api import MeshError
from jetcluster.raft.membership import Config, Members
from jetcluster.stream.log import commands
from testkit.sim.nodes import ACCOUNT, Cluster, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.store.shipping import steps


@virtual_time
async def test_a_configuration_reaches_all_replicas_at_the_same_place_in_the_log() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(20):
            await cluster["ABC"[number % 3]].publish(b"s", b"%d" % number)
        await cluster.update("S", ask="B", max_msgs=5)
        await cluster["C"].publish(b"s", b"20")
        await cluster.equal("S")
        for node in cluster:
            replica = node.replica("S")
            assert (replica.store.first_seq, replica.store.last_seq, replica.store.messages) == (17, 21, 5)
            assert replica.config_is_current() and replica.machine.rules.max_msgs == 5


@virtual_time
async def test_a_state_comes_with_all_that_a_rescue_left_behind() -> None:
    """Fenced servers and the number of rescues are in what is given, and in what the receiver writes down."""
    async with Cluster("AB") as cluster:
        await cluster.create("S", 1)
        await cluster["A"].publish(b"s", b"1")
        replica = (await cluster.led("S")).replica("S")
        machine, group = replica.machine, replica.group
        rescued = replace(group.members_at(machine.applied_index), rescue=2, fenced=("X" * 8,))
        group.install(machine.applied_index, machine.applied_term, rescued)
        cut = replica.snapshot_export()
        assert cut.config == rescued
        taker = replica.snapshot_begin()
        for _ in steps(cut.giver, taker, replica.commits.kv):
            pass
        replica.keep_members(Members(0, Config(("A",))))
        await replica.snapshot_end(cut.index, cut.term, cut.config)
        assert replica.members() == Members(cut.index, rescued)
        assert group.log.rescues == 2 and group.fenced == {"X" * 8}


@virtual_time
async def test_interest_follows_the_subjects() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["a", "b"])
        await cluster.update("S", subjects=["b", "c"])
        for node in cluster:
            with pytest.raises(NoRespondersError):
                await node.publish(b"a")
            await node.publish(b"b")
            await node.publish(b"c")
        await cluster.equal("S")
        assert cluster["A"].replica("S").store.last_seq == 6


@virtual_time
async def test_a_new_leader_that_has_not_heard_of_an_update_does_not_undo_it() -> None:
    """Its meta replica is behind: it knows the narrow limits of the past, which would delete messages."""
    async with Cluster() as cluster:
        old = await cluster.create("S", max_msgs=3)
        await cluster.update("S", max_msgs=1000)
        for number in range(10):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        behind = cluster.followers("S")[0]
        leader = cluster.leader("S")
        behind.replica("S").assignment = old
        assert leader.replica("S").group.transfer(behind.me)
        await cluster.until(lambda: behind.replica("S").leading, what="the one behind leads")
        await asyncio.sleep(1)
        # and one that had proposed it before it was elected, as an older version of this code would
        behind.replica("S").group.propose(commands.encode_update_config(0, old.config, old.revision))
        await asyncio.sleep(1)
        for node in cluster:
            assert node.replica("S").store.messages == 10 and node.replica("S").machine.rules.max_msgs == 1000


@virtual_time
async def test_only_the_leader_listens_and_publishes_go_on_after_a_transfer() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader, target = cluster.leader("S"), cluster.followers("S")[0]
        assert leader.replica("S").group.transfer(target.me)
        await cluster.until(lambda: target.replica("S").leading, what="the transfer")
        await asyncio.sleep(0.01)
        assert [bool(node.replica("S").listening.subjects) for node in (leader, target)] == [False, True]
        for number, node in enumerate(cluster, 1):
            assert (await node.publish(b"s"))["seq"] == number


@virtual_time
async def test_a_state_machine_that_fails_takes_its_replica_out_of_everything() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"1")
        await cluster.all_read("S")
        leader = cluster.leader("S")
        replica = leader.replica("S")

        def fail(index: int, term: int, command: bytes) -> None:
            raise OSError("a defect")

        replica.machine.apply = fail  # type: ignore[method-assign, assignment]
        with pytest.raises((TimeoutError, NoRespondersError)):
            await leader.publish(b"s", b"2")
        assert "a defect" in replica.failed and not replica.sound
        assert not replica.reads.own.joined and not replica.listening.subjects
        assert leader.services.network.leaders.led_by_me() in ((), (1,))
        await cluster.led("S")
        assert (await leader.publish(b"s", b"3"))["seq"] in (2, 3)
        assert (await leader.get(b"S", 1))[2] == b"1"
        with pytest.raises(MeshError):
            replica.snapshot_export()
        assert sum("replica stopped" in event for event in leader.log.events("error")) == 1


@virtual_time
async def test_who_lacks_what_only_itself_could_give_keeps_what_it_has() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        await cluster["A"].publish(b"s", b"1")
        replica = cluster["A"].replica("S")
        replica.on_snapshot_needed(cluster["A"].me, 1, 1)
        await asyncio.sleep(3)
        assert replica.rejected and not replica.installing
        assert replica.store.get(1) is not None
        assert "no other replica has the state that this one lacks" in cluster["A"].log.events("error")


@virtual_time
async def test_old_messages_expire_by_the_leaders_clock_on_all_replicas() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", max_age=2_000_000_000)
        await cluster["A"].publish(b"s", b"1")
        await asyncio.sleep(1.5)
        await cluster["A"].publish(b"s", b"2")
        await cluster.until(lambda: cluster["A"].replica("S").store.messages == 1, what="the first expires", seconds=2)
        cluster.crash(cluster.leader("S").name)
        await cluster.led("S")
        await cluster.until(
            lambda: all(node.replica("S").store.messages == 0 for node in cluster), what="the second, by a new leader"
        )
        await cluster.equal("S")


@virtual_time
async def test_elections_are_published_when_somebody_listens() -> None:
    async with Cluster() as cluster:
        events: list[dict[str, object]] = []
        for node in cluster:
            node.bus.subscribe(
                b"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.*",
                lambda subject, reply, headers, payload, origin: events.append(json.loads(payload)),
                local_only=True,
            )
        await cluster.create("S")
        await cluster.create("R", 1, subjects=["r"])
        assert [(e["stream"], e["leader"]) for e in events] == [("S", cluster.leader("S").name)]


@virtual_time
async def test_dedupe_window_and_limits_come_back_with_a_snapshot_of_another_replica() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", max_msgs=7)
        for number in range(10):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        node.replica("S").diverged(1)
        await cluster.until(lambda: node.replica("S").sound, what="rebuilt")
        assert node.replica("S").machine.rules.max_msgs == 7 and node.replica("S").machine.configured
        leader = cluster.leader("S")
        assert leader.replica("S").group.transfer(node.me)
        await cluster.until(lambda: node.replica("S").leading, what="it leads")
        await asyncio.sleep(0.01)
        assert (await leader.publish(b"s"))["seq"] == 11
        await cluster.equal("S")
        assert node.replica("S").store.messages == 7


@virtual_time
async def test_stop_leaves_nothing_in_the_router_and_the_tables() -> None:
    cluster = Cluster()
    async with cluster:
        gid = (await cluster.create("S")).gid
        await cluster.all_read("S")
        node = cluster.leader("S")
        before = node.accounts.subscriptions
        assert before
        await cluster.delete("S")
        await cluster.until(lambda: not any(n.accounts.subscriptions for n in cluster), what="no subscription is left")
        assert node.js.assignment(ACCOUNT, "S") is None and gid not in node.raft.groups
