"""A cluster in which one node is of an older level: what leaders put into the log (stream/log/levels.py)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jetcluster.cluster import meta_members
from jetcluster.errors import ApiError
from jetcluster.raft.api import RaftError
from jetcluster.replica import replica_state
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from jetcluster.stream.log.levels import (
    DEAD_LETTER_LEVEL,
    LEVEL,
    MANY_MEMBERS_LEVEL,
    NEWEST_RESET_LEVEL,
    ORDER_PER_KEY_LEVEL,
    RETENTION_GUARD_LEVEL,
)
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import SECOND, Puller, ask, consumer, filled, host, owned_by, owner, state


@virtual_time
async def test_commands_are_lowered_until_the_last_node_of_the_group_is_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []

    def lowered(command: bytes, level: int) -> bytes | None:
        asked.append((command[0], level))
        return command if command[0] != commands.PURGE else None

    monkeypatch.setattr(replica_state, "lowered", lowered)
    async with Cluster() as cluster:
        await cluster.create("S")
        old = cluster.followers("S")[0]
        old.raft.levels.own = LEVEL - 1
        await asyncio.sleep(1)
        asked.clear()
        leader = cluster.leader("S").replica("S")
        await leader.propose(commands.encode_delete_msg(1, 99), 5)
        with pytest.raises(RaftError, match="not now"):
            await leader.propose(commands.encode_purge(1), 5)
        assert asked == [(commands.DELETE_MSG, LEVEL - 1), (commands.PURGE, LEVEL - 1)]
        asked.clear()
        await old.publish(b"s", b"1")
        assert asked == [], "a command with messages has another form only if it has a flag"
        one = Batch.encode([b"s"], [], [b"2"])
        leader.propose_data(commands.encode_publish(1, one, rolls_up=True))
        assert asked == [(commands.PUBLISH, LEVEL - 1)]
        old.raft.levels.own = LEVEL
        await asyncio.sleep(1)
        asked.clear()
        await leader.propose(commands.encode_purge(1), 5)
        assert asked == []
        await cluster.equal("S")


@virtual_time
async def test_order_per_key_waits_until_the_last_replica_is_upgraded() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        one = {"max_ack_pending_per_subject": 1}
        await consumer(cluster["A"], "before", **one)
        old = cluster.followers("S")[0]
        old.raft.levels.own = ORDER_PER_KEY_LEVEL - 1
        others = [node for node in cluster if node is not old]
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == old.raft.levels.own for n in others))
        with pytest.raises(ApiError, match="a newer version on each server"):
            await consumer(cluster["A"], "c", **one)
        pullers = {node.name: Puller(node, "S", "before") for node in others}
        for puller in pullers.values():
            assert puller.pull()
        assert owner(cluster, "before") in others, "the seed has it at a newer one"
        await asyncio.sleep(3)
        assert not any(puller.got for puller in pullers.values()), "the older one could not apply it"
        old.raft.levels.own = ORDER_PER_KEY_LEVEL
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == ORDER_PER_KEY_LEVEL for n in others))
        await consumer(cluster["A"], "c", **one)
        await cluster.until(lambda: sum(len(puller.got) for puller in pullers.values()) == 1, 5, "it goes on")
        await cluster.equal("S")


@virtual_time
async def test_a_reset_knows_of_newer_messages_once_the_last_replica_is_upgraded() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        old = cluster.followers("S")[0]
        others = [node for node in cluster if node is not old]
        old.raft.levels.own = NEWEST_RESET_LEVEL - 1
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == old.raft.levels.own for n in others))
        await consumer(cluster["A"], "c", deliver_policy="last_per_subject")
        await cluster.leader("S").publish(b"s", b"newer")
        assert (await ask(cluster["A"], "S", "consumer_reset", name="c", seq=0))["info"]["num_pending"] == 2
        old.raft.levels.own = NEWEST_RESET_LEVEL
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == NEWEST_RESET_LEVEL for n in others))
        assert (await ask(cluster["A"], "S", "consumer_reset", name="c", seq=0))["info"]["num_pending"] == 1
        await cluster.equal("S")


@virtual_time
async def test_dead_letters_wait_until_the_last_replica_is_upgraded() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        wish = {"max_deliver": 1, "dead_letter": {"subject": "dead"}}
        old = cluster.followers("S")[0]
        old.raft.levels.own = DEAD_LETTER_LEVEL - 1
        others = [node for node in cluster if node is not old]
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == old.raft.levels.own for n in others))
        with pytest.raises(ApiError, match="dead_letter requires a newer version"):
            await consumer(cluster["A"], "c", **wish)
        old.raft.levels.own = DEAD_LETTER_LEVEL
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == DEAD_LETTER_LEVEL for n in others))
        await consumer(cluster["A"], "c", **wish)


@virtual_time
async def test_dead_letters_wait_while_an_older_server_is_there_that_came_later() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 2)
        wish = {"max_deliver": 1, "ack_wait": SECOND, "dead_letter": {"subject": "dead"}}
        await consumer(cluster["A"], "c", **wish)
        await Puller(cluster["A"], "S", "c").fetch(1)
        await cluster.until(lambda: len(state(cluster["A"]).letters) == 1, what="it is given up")
        old = cluster.followers("S")[0]
        old.raft.levels.own = DEAD_LETTER_LEVEL - 1
        others = [node for node in cluster if node is not old]
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == old.raft.levels.own for n in others))
        await cluster.create("DEAD")
        await Puller(cluster["A"], "S", "c").fetch(1)
        await cluster.never(lambda: not state(cluster["A"]).letters, 40.0, "the older one would stop at it")
        assert list(state(cluster["A"]).letters.by_seq) == [1] and list(state(cluster["A"]).pending) == [2]
        assert not cluster.leader("DEAD").replica("DEAD").store.messages
        old.raft.levels.own = DEAD_LETTER_LEVEL
        await cluster.until(lambda: not state(cluster["A"]).letters and not state(cluster["A"]).pending, 60.0)
        assert cluster.leader("DEAD").replica("DEAD").store.messages == 2
        await cluster.equal("S")


@virtual_time
async def test_the_leader_refuses_ops_that_an_older_member_does_not_know_whoever_has_not_heard_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Cluster() as cluster:
        await filled(cluster, 2)
        leader = await cluster.led("S")
        home, old = cluster.followers("S")
        wish = {"max_deliver": 1, "ack_wait": SECOND, "dead_letter": {"subject": "dead"}}
        await consumer(leader, "c", **wish)
        await owned_by(cluster, "c", home)
        with monkeypatch.context() as patch:
            patch.setattr(home.raft.levels, "heard", lambda peer, level: None)
            old.raft.levels.own = DEAD_LETTER_LEVEL - 1
            await cluster.until(lambda: leader.raft.levels.told(old.me) == old.raft.levels.own)
            await Puller(home, "S", "c").fetch(2)
            lost = host(home).turns.lost
            await cluster.until(lambda: host(home).turns.lost > lost + 1, 10.0, "the leader refused it")
            assert all(len(state(node).pending) == 2 and not state(node).letters for node in cluster)
        await cluster.until(lambda: home.raft.levels.told(old.me) == old.raft.levels.own)
        await asyncio.sleep(1)
        lost = host(home).turns.lost
        await cluster.never(lambda: host(home).turns.lost > lost, 5.0, "its owner waits by itself")
        old.raft.levels.own = DEAD_LETTER_LEVEL
        await cluster.until(lambda: all(len(state(node).letters) == 2 for node in cluster), 10.0)
        await cluster.equal("S")


@virtual_time
async def test_a_retention_guard_waits_until_the_last_server_is_upgraded() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 3)
        guard = {"retention_guard": {"consumer": "c", "max_bytes": 1 << 20, "max_age": 0, "discard": "new"}}
        old = cluster.followers("S")[0]
        old.raft.levels.own = RETENTION_GUARD_LEVEL - 1
        others = [node for node in cluster if node is not old]
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == old.raft.levels.own for n in others))
        for name in ("S", "T"):
            with pytest.raises(ApiError, match="retention_guard requires a newer version"):
                await cluster.create(name, **guard)
        old.raft.levels.own = RETENTION_GUARD_LEVEL
        await cluster.until(lambda: all(n.raft.levels.told(old.me) == RETENTION_GUARD_LEVEL for n in others))
        await cluster.create("T", **guard)
        assert cluster.leader("T").replica("T").machine.rules.guard is not None


@virtual_time
async def test_a_guard_goes_into_no_log_while_an_older_server_is_there_that_came_later() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        leader, old = cluster.leader("S"), cluster.followers("S")[0]
        old.raft.levels.own = RETENTION_GUARD_LEVEL - 1
        await cluster.until(lambda: leader.raft.levels.told(old.me) == old.raft.levels.own)
        replica = leader.replica("S")
        config = {**replica.assignment.config, "retention_guard": {"consumer": "c", "max_bytes": 1}}
        newer = replace(replica.assignment, config=config, revision=replica.assignment.revision + 1)
        replica.update(newer)
        await cluster.never(lambda: replica.machine.rules.guard is not None, 5.0, "it could not apply it")
        old.raft.levels.own = RETENTION_GUARD_LEVEL
        await cluster.until(lambda: replica.machine.rules.guard is not None, 10.0)


@virtual_time
async def test_an_older_server_does_not_become_a_member_of_a_guarded_stream() -> None:
    async with Cluster("ABCD") as cluster:
        await cluster.create("S", retention_guard={"consumer": "c", "max_bytes": 1 << 20, "max_age": 0})
        replica, old = cluster.leader("S").replica("S"), next(node for node in cluster if not node.has("S"))
        old.raft.levels.own = RETENTION_GUARD_LEVEL - 1
        levels = cluster.leader("S").raft.levels
        await cluster.until(lambda: levels.told(old.me) == old.raft.levels.own)
        replica.update(replace(replica.assignment, peers=(*replica.assignment.peers, old.me)))

        def added() -> bool:
            return old.me in replica.group.members_at(replica.group.last_index).members

        await cluster.never(added, 3.0, "the snapshot has the guard, which it would not heed")
        old.raft.levels.own = RETENTION_GUARD_LEVEL
        await cluster.until(added, 10.0)


@virtual_time
async def test_one_that_was_never_heard_counts_as_older_and_others_do_not() -> None:
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
async def test_a_node_that_comes_back_older_is_put_on_record_as_such() -> None:
    async with Cluster() as cluster:
        node = cluster["B"]
        meta = cluster["A"].js.meta.machine
        await cluster.until(lambda: meta.nodes[node.me].level == LEVEL)
        node.raft.levels.own = 0
        await cluster.until(lambda: meta.nodes[node.me].level == 0)


@virtual_time
async def test_more_members_than_an_older_one_can_read_wait_until_it_is_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meta_members, "NARROW_MEMBERS", 4)
    async with Cluster() as cluster:
        leader = cluster.meta_leader()
        assert leader is not None and leader.js.meta.group is not None
        group, old = leader.js.meta.group, next(node for node in cluster if node is not leader)
        old.raft.levels.own = MANY_MEMBERS_LEVEL - 1
        await cluster.until(lambda: leader.raft.levels.told(old.me) == old.raft.levels.own, what="it is known")
        within, beyond = cluster.add("D"), cluster.add("E")
        await cluster.until(lambda: len(group.members) == 4, what="what the older one can read")
        await cluster.never(lambda: len(group.members) > 4, 5.0, "one more")
        late = next(node for node in (within, beyond) if node.me not in group.members)
        told = ("warning", "the cluster does not admit this server, which goes on asking")
        await cluster.until(lambda: told in [line[:2] for line in late.log.lines], what="its log says why")
        (reason,) = [values["reason"] for *line, values in late.log.lines if tuple(line) == told]
        assert "a member may be of a version that knows no more than 4 members" in reason
        old.raft.levels.own = MANY_MEMBERS_LEVEL
        await cluster.until(lambda: {within.me, beyond.me} <= {*group.peers}, what="all are members")
        assert all(node.fatal == [] for node in cluster)
