"""A cluster in which one node runs a version of before: what leaders put into the log (stream/levels.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.raft.api import RaftError
from jetcluster.stream import commands
from jetcluster.stream.commands import EXPIRE, PLACED, PURGE, SIFTED, SLICED, UPDATE_CONFIG
from jetcluster.stream.levels import AHEAD, LEVEL
from tests.unit.cluster.nodes import Cluster, Node
from tests.unit.cluster.virtual_loop import virtual_time

SECOND = 1_000_000_000


def heard(node: Node) -> list[tuple[int, int]]:
    """(kind, flags) of what its replica is given from now on, without publishes."""
    machine, found = node.replica("S").machine, []
    apply = machine.apply

    def applied(index: int, term: int, command: bytes) -> object:
        if command[0] != commands.PUBLISH:
            found.append((command[0], command[1]))
        return apply(index, term, command)

    machine.apply = applied  # type: ignore[method-assign, assignment]
    return found


@virtual_time
async def test_commands_are_lowered_until_the_last_node_of_the_group_is_upgraded() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        old = cluster.followers("S")[0]
        old.raft.levels.own = 0
        await asyncio.sleep(1)
        found = heard(cluster.leader("S"))
        await cluster.update("S", ask=old.name, max_age=2 * SECOND)
        for number in range(5):
            await old.publish(b"s", b"%d" % number)
        await asyncio.sleep(3)
        assert cluster.leader("S").replica("S").store.messages == 0, "expired, as the version before does it"
        assert set(found) == {(UPDATE_CONFIG, 0), (EXPIRE, 0)}
        await cluster.equal("S")

        old.raft.levels.own = LEVEL
        await asyncio.sleep(1)
        found.clear()
        await cluster.update("S", ask=old.name, max_age=SECOND)
        await old.publish(b"s", b"6")
        await asyncio.sleep(2)
        assert set(found) == {(UPDATE_CONFIG, SLICED | PLACED | SIFTED), (EXPIRE, SLICED | PLACED)}
        await cluster.equal("S")


@virtual_time
async def test_one_that_was_never_heard_counts_as_one_of_before_and_others_do_not() -> None:
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", 3)
        leader = cluster.leader("S")
        config = leader.replica("S").group.members_at(leader.replica("S").group.last_index)
        await asyncio.sleep(1)
        assert leader.raft.levels.of(config) == LEVEL
        other = next(node for node in cluster if not node.has("S"))
        other.raft.levels.own = 0
        await asyncio.sleep(1)
        assert leader.raft.levels.of(config) == LEVEL, "it is no member"
        assert leader.raft.levels.of(config.with_learner(other.me)) == 0
        assert leader.raft.levels.of(config.with_learner("X" * 8)) == 0
        gone = cluster.followers("S")[0]
        await cluster.stop(gone.name)
        await asyncio.sleep(5)
        assert leader.raft.levels.of(config) == LEVEL, "it said so, and comes back as what it was or later"


@virtual_time
async def test_a_clock_of_the_future_waits_for_the_last_node_instead_of_removing_what_is_not_due() -> None:
    """A leader with a wrong clock has stamped a message. Versions before would count from there."""
    async with Cluster() as cluster:
        await cluster.create("S", max_age=60 * SECOND)
        old = cluster.followers("S")[0]
        old.raft.levels.own = 0
        await asyncio.sleep(1)
        await old.publish(b"s", b"1")
        leader = cluster.leader("S").replica("S")
        ahead = leader.context.clock.time_ns() + 3600 * SECOND
        assert ahead > leader.machine.clock + AHEAD
        found = heard(cluster.leader("S"))
        await leader.propose(commands.encode_delete_msg(ahead, 99), 5)
        await asyncio.sleep(70)
        assert leader.store.messages == 1 and not {EXPIRE, UPDATE_CONFIG} & {kind for kind, _ in found}
        config = leader.assignment.config
        with pytest.raises(RaftError, match="not now"):
            await leader.propose(commands.encode_update_config(leader.context.clock.time_ns(), config, 9), 5)
        await leader.propose(commands.encode_purge(leader.context.clock.time_ns(), b"nothing"), 5)
        assert found[-1] == (PURGE, 0)
        await old.publish(b"s", b"2")
        old.raft.levels.own = LEVEL
        await asyncio.sleep(2)
        assert (EXPIRE, SLICED | PLACED) in found
        assert leader.store.first_seq == 2 and leader.store.messages == 1, "only what is due by the time that it is"
        await cluster.equal("S")


@virtual_time
async def test_what_a_dead_node_understands_outlives_the_leaders_process() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader, (other, gone) = cluster.leader("S"), cluster.followers("S")
        await asyncio.sleep(2)
        assert {node.level for node in leader.js.meta.machine.nodes.values()} == {LEVEL}
        await cluster.stop(gone.name)
        await cluster.stop(leader.name)
        await cluster.stop(other.name)
        again = [cluster.restart(node.name) for node in (leader, other)]
        await cluster.until(lambda: any(n.has("S") and n.replica("S").leading for n in again))
        for node in again:
            group = node.replica("S").group
            assert gone.me in group.members_at(group.last_index).voters
            assert node.raft.levels.told(gone.me) is None
            assert node.raft.levels.of(group.members_at(group.last_index)) == LEVEL
        found = heard(again[0])
        await cluster.update("S", max_age=SECOND)
        await again[0].publish(b"s", b"1")
        await asyncio.sleep(3)
        assert set(found) == {(UPDATE_CONFIG, SLICED | PLACED | SIFTED), (EXPIRE, SLICED | PLACED)}


@virtual_time
async def test_a_node_that_comes_back_as_one_of_before_is_put_on_record_as_such() -> None:
    async with Cluster() as cluster:
        node = cluster["B"]
        meta = cluster["A"].js.meta.machine
        await cluster.until(lambda: meta.nodes[node.me].level == LEVEL)
        node.raft.levels.own = 0
        await cluster.until(lambda: meta.nodes[node.me].level == 0)
