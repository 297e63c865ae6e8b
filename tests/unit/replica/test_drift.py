"""Replicas that differ are found and rebuilt (replica/drift.py).

Two against one (replica/drift.py): the odd one out is rebuilt, also when it leads; without a majority nobody
is.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.mesh.api import MeshError
from jetcluster.replica import drift
from jetcluster.replica.drift import METHOD, NOTICE_SECONDS, REPEATED_NOTICES, majority
from jetcluster.replica.replica_state import CHECKPOINT_EVERY, Checkpoints
from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time


def corrupt(node: Node, stream: str) -> None:
    """One message more than the log says, and the hash of somebody who thinks so."""
    replica = node.replica(stream)
    replica.store.delete(2)
    replica.machine.hash = bytes(16)
    replica.store.save_machine_state(replica.machine._state)


async def rebuilt(cluster: Cluster, node: Node) -> None:
    await cluster.until(lambda: node.replica("S").divergences == 1, what="it is noticed")
    assert not node.reads("S") and not node.replica("S").sound
    await cluster.equal("S")
    await cluster.all_read("S")
    assert (await node.get(b"S", 2))[2] == b"2"
    assert node.replica("S").sound and node.replica("S").divergences == 1
    assert "replica differs from the others; it is rebuilt" in node.log.events("error")


@virtual_time
async def test_a_replica_that_differs_leaves_the_reads_is_rebuilt_and_comes_back() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.all_read("S")
        await asyncio.sleep(3 * NOTICE_SECONDS)
        assert all(node.js.drift.compared for node in cluster.followers("S"))
        node = cluster.followers("S")[0]
        corrupt(node, "S")
        assert (await node.get(b"S", 2))[1].startswith(b"NATS/1.0 404")
        await cluster["A"].publish(b"s", b"6")  # the next command carries the difference on
        await rebuilt(cluster, node)


@virtual_time
async def test_an_idle_replica_is_compared_after_a_restart() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        corrupt(node, "S")
        await node.js.flusher.flush()
        cluster.crash(node.name)
        node = cluster.restart(node.name)
        await rebuilt(cluster, node)


@virtual_time
async def test_a_rebuild_goes_on_when_the_leader_changes_or_the_link_breaks() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        await cluster.create("S")
        for number in range(1, 101):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        corrupt(node, "S")
        await cluster["A"].publish(b"s", b"101")
        await cluster.until(lambda: node.replica("S").divergences == 1, what="it is noticed")
        cluster.isolate(node.name)
        await asyncio.sleep(1)
        cluster.crash(cluster.leader("S").name)
        cluster.heal()
        leader = next(n for n in cluster if n is not node)
        await cluster.until(lambda: leader.replica("S").leading, what="the sound one leads")
        await cluster.equal("S", node.name, leader.name)
        assert (await node.publish(b"s"))["seq"] == 102
        await cluster.until(lambda: node.reads("S"), what="it answers again")
        assert (await node.get(b"S", 2))[2] == b"2"


@virtual_time
async def test_a_replica_in_doubt_never_leads() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        node, other = cluster.followers("S")
        leader = cluster.leader("S")
        corrupt(node, "S")
        node.replica("S").diverged(5)
        cluster.crash(leader.name)  # before the rebuild has begun
        await cluster.until(lambda: other.replica("S").leading, what="the sound one leads", seconds=10)
        await cluster.equal("S", node.name, other.name)
        assert (await node.publish(b"s"))["seq"] == 6


@virtual_time
async def test_a_notice_looks_at_streams_with_something_to_tell_and_no_others() -> None:
    async with Cluster() as cluster:
        for number in range(12):
            await cluster.create(f"S{number}")
        await asyncio.sleep((REPEATED_NOTICES + 3) * NOTICE_SECONDS)
        asked: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            tell = Checkpoints.to_tell

            def spy(checkpoints: Checkpoints) -> list[tuple[int, bytes]]:
                asked.append(checkpoints.newest[0])
                return tell(checkpoints)

            patch.setattr(Checkpoints, "to_tell", spy)
            await asyncio.sleep(5 * NOTICE_SECONDS)
            assert asked == []
            await cluster["A"].publish(b"s7")
            await asyncio.sleep((REPEATED_NOTICES + 3) * NOTICE_SECONDS)
            index = cluster.leader("S7").replica("S7").machine.applied_index
            assert asked == [index] * REPEATED_NOTICES


@virtual_time
async def test_an_idle_leader_tells_a_few_times_and_again_to_whoever_comes_back() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        await asyncio.sleep((REPEATED_NOTICES + 3) * NOTICE_SECONDS)
        leader, node = cluster.leader("S"), cluster.followers("S")[0]
        before = node.js.drift.compared
        await asyncio.sleep(5 * NOTICE_SECONDS)
        assert node.js.drift.compared == before > 0
        cluster.isolate(node.name)
        await asyncio.sleep(1)
        cluster.heal()
        await cluster.led("S")
        await asyncio.sleep(5 * NOTICE_SECONDS)
        assert node.js.drift.compared > before or node.replica("S").leading
        await cluster.delete("S")
        await asyncio.sleep(2 * NOTICE_SECONDS)
        assert all(gid not in n.js.drift._told for n in cluster) and leader.alive


@virtual_time
async def test_what_a_follower_applied_long_after_its_leader_fell_idle_is_compared_some_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk was slow for longer than the leader told its hash, and nothing is published any more."""
    monkeypatch.setattr(drift, "REMIND_SECONDS", 30.0)
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(1, 6):
            await cluster["A"].publish(b"s", b"%d" % number)
        await cluster.equal("S")
        await asyncio.sleep((REPEATED_NOTICES + 3) * NOTICE_SECONDS)
        node = cluster.followers("S")[0]
        replica = node.replica("S")
        corrupt(node, "S")
        replica.checkpoints.note(replica.machine.applied_index, replica.machine.hash)
        await asyncio.sleep(3 * NOTICE_SECONDS)
        assert replica.divergences == 0
        await rebuilt(cluster, node)


@virtual_time
async def test_malformed_hashes_and_those_of_others_than_the_leader_are_ignored() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        await cluster["A"].publish(b"s")
        await cluster.equal("S")
        one, other = cluster.followers("S")
        entry = gid.to_bytes(4, "little") + one.replica("S").machine.applied_index.to_bytes(8, "little") + b"?" * 16
        one.mesh.notify(other.me, "hash", entry)
        one.mesh.notify(other.me, "hash", entry[:-1])
        await asyncio.sleep(0.5)
        assert other.replica("S").divergences == 0
        cluster.leader("S").mesh.notify(other.me, "hash", entry)
        await asyncio.sleep(0.5)
        assert other.replica("S").divergences == 0, "a majority has what it has"
        assert not other.replica("S").disputed and "replica differs from its leader" in other.log.events("warning")


MESSAGES = 5


def test_a_majority_is_one_of_all_voters_not_of_those_that_answer() -> None:
    a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    assert majority({"A": a, "B": b, "C": a}, 3) == a
    assert majority({"A": a, "B": b, "C": c}, 3) is None
    assert majority({"A": a, "B": a}, 3) == a
    assert majority({"A": a, "B": b}, 3) is None
    assert majority({"A": a, "B": a}, 5) is None
    assert majority({"A": a, "B": b}, 2) is None
    assert majority({}, 3) is None


async def filled(cluster: Cluster, replicas: int = 3) -> Node:
    await cluster.create("S", replicas)
    for number in range(1, MESSAGES + 1):
        await cluster["A"].publish(b"s", b"%d" % number)
    await cluster.equal("S")
    await cluster.all_read("S")
    return cluster.leader("S")


def plant(node: Node, seq: int = 2) -> None:
    """A message is missing from the store of one replica, and nobody has seen how."""
    replica = node.replica("S")
    assert replica.store.delete(seq)
    replica.commits.kv.commit()


async def whole(cluster: Cluster) -> None:
    await cluster.equal("S")
    await cluster.all_read("S")
    for node in cluster:
        assert [(await node.get(b"S", seq))[2] for seq in range(1, MESSAGES + 1)] == [b"1", b"2", b"3", b"4", b"5"]


@virtual_time
async def test_a_leader_that_is_the_odd_one_out_steps_down_and_is_rebuilt() -> None:
    async with Cluster() as cluster:
        leader = await filled(cluster)
        plant(leader)
        others = cluster.followers("S")
        ack = await leader.publish(b"s", b"6")
        await cluster.until(lambda: leader.replica("S").divergences == 1, what="it is found")
        assert not leader.reads("S"), "what it has is not shown any more"
        await cluster.until(lambda: any(node.replica("S").leading for node in others), 5, "another one leads")
        assert not leader.replica("S").leading
        await cluster.until(lambda: leader.replica("S").sound, what="it is rebuilt")
        await whole(cluster)
        assert [node.replica("S").divergences for node in others] == [0, 0], "nothing was built from the wrong one"
        assert ack["seq"] == MESSAGES + 1 and (await leader.get(b"S", ack["seq"]))[2] == b"6"
        assert all(not node.replica("S").disputed and not node.js.drift.votes.undecided for node in cluster)


@virtual_time
async def test_a_busy_leader_is_found_too_and_what_it_acked_stays() -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        leader = await filled(cluster)
        acked = []

        async def load() -> None:
            for number in range(6 * CHECKPOINT_EVERY):
                try:
                    ack = await cluster["A"].publish(b"s", b"n%d" % number)
                except Exception:
                    continue  # nobody leads for a moment: not acked, not counted
                if "seq" in ack:
                    acked.append((ack["seq"], b"n%d" % number))

        task = asyncio.ensure_future(load())
        await asyncio.sleep(0.2)
        plant(leader)
        await task
        await cluster["A"].publish(b"s", b"last")
        await cluster.until(lambda: leader.replica("S").divergences == 1, what="it is found")
        await cluster.until(lambda: leader.replica("S").sound, what="it is rebuilt")
        await whole(cluster)
        assert len(acked) > 100
        for seq, payload in acked:
            assert (await leader.get(b"S", seq))[2] == payload


@virtual_time
async def test_what_was_equal_at_an_older_checkpoint_ends_no_doubt() -> None:
    """A leader tells two hashes, the newest one and that of a checkpoint before it."""
    async with Cluster() as cluster:
        leader = await filled(cluster)
        for number in range(CHECKPOINT_EVERY + 1):
            await leader.publish(b"s", b"n%d" % number)
        await cluster.equal("S")
        one, away = cluster.followers("S")
        cluster.isolate(away.name)
        plant(one)
        await leader.publish(b"s", b"last")
        assert len(leader.replica("S").checkpoints.to_tell()) == 2
        gid = leader.replica("S").assignment.gid
        await cluster.until(lambda: bool(one.replica("S").disputed), what="it is noticed")
        while one.js.drift.votes.undecided != [gid]:
            assert one.replica("S").disputed and not one.reads("S")
            await asyncio.sleep(NOTICE_SECONDS / 8)
        cluster.heal()
        await cluster.until(lambda: one.replica("S").divergences == 1, 60, "the third one has said who is wrong")
        await cluster.until(lambda: one.replica("S").sound, what="it is rebuilt")
        await whole(cluster)


@virtual_time
async def test_an_odd_leader_of_five_goes_too() -> None:
    async with Cluster("ABCDE") as cluster:
        leader = await filled(cluster, 5)
        plant(leader)
        await leader.publish(b"s", b"6")
        await cluster.until(lambda: leader.replica("S").divergences == 1, what="it is found")
        await cluster.until(lambda: leader.replica("S").sound, what="it is rebuilt")
        await whole(cluster)
        assert sum(node.replica("S").divergences for node in cluster) == 1


def listen(node: Node) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for account in ("$G", "$SYS"):
        node.accounts[account].subscribe(
            b"$JS.EVENT.ADVISORY.STREAM.REPLICAS_DIFFER.S", lambda _s, _r, _h, body, _o: told.append(json.loads(body))
        )
    return told


@virtual_time
async def test_without_the_third_nobody_is_rebuilt_and_it_is_reported_until_it_is_back() -> None:
    async with Cluster() as cluster:
        leader = await filled(cluster)
        one, away = cluster.followers("S")
        told = listen(leader)
        cluster.isolate(away.name)
        plant(leader)
        await leader.publish(b"s", b"6")
        await cluster.until(lambda: bool(one.replica("S").disputed), what="it is noticed")
        assert not one.reads("S") and not one.replica("S").consumers.active
        with pytest.raises(MeshError, match="not sound"):
            one.replica("S").snapshot_export()
        assert leader.replica("S").consumers.active, "the stream goes on"
        gid = leader.replica("S").assignment.gid
        await cluster.until(lambda: leader.js.drift.votes.undecided == [gid], 30, "it is reported")
        await asyncio.sleep(30)
        for node in (leader, one):
            assert node.replica("S").divergences == 0 and not node.replica("S").installing
            assert node.js.drift.votes.undecided == [gid]
        assert leader.replica("S").store.messages == MESSAGES and one.replica("S").store.messages == MESSAGES + 1
        assert [event.get("account") for event in told[:2]] == [None, "$G"]
        assert {replica["name"]: bool(replica["hash"]) for replica in told[0]["replicas"]} == {
            leader.name: True, one.name: True, away.name: False,
        }  # fmt: skip
        assert (await leader.publish(b"s", b"7"))["seq"] == MESSAGES + 2, "it goes on meanwhile"
        cluster.heal()
        await cluster.until(lambda: leader.replica("S").divergences == 1, 60, "the third one has said who is wrong")
        await cluster.until(lambda: leader.replica("S").sound, what="it is rebuilt")
        await whole(cluster)
        assert not any(node.js.drift.votes.undecided for node in cluster)


@virtual_time
async def test_where_all_three_differ_nothing_is_given_up() -> None:
    async with Cluster() as cluster:
        leader = await filled(cluster)
        for seq, node in enumerate(cluster, 2):
            plant(node, seq)
            if node is not leader:
                node.replica("S").machine.hash = bytes([seq]) * 16  # the counts are equal: as if the sizes were not
        await leader.publish(b"s", b"6")
        gid = leader.replica("S").assignment.gid
        await cluster.until(
            lambda: all(node.js.drift.votes.undecided == [gid] for node in cluster), 60, "it is reported"
        )
        await asyncio.sleep(30)
        for node in cluster:
            replica = node.replica("S")
            assert (replica.divergences, replica.store.messages) == (0, MESSAGES)
            assert not replica.installing and bool(replica.disputed) != replica.leading


@virtual_time
async def test_two_replicas_that_lost_the_same_outvote_the_third() -> None:
    """A majority is right, whatever its state, as documented: hashes cannot say more."""
    async with Cluster() as cluster:
        leader = await filled(cluster)
        one, other = cluster.followers("S")
        plant(leader)
        plant(one)
        await leader.publish(b"s", b"6")
        await cluster.until(lambda: other.replica("S").divergences == 1, what="the odd one is found")
        await cluster.equal("S")
        assert all(node.replica("S").store.messages == MESSAGES for node in cluster)


@virtual_time
async def test_questions_that_make_no_sense_are_refused() -> None:
    async with Cluster() as cluster:
        leader = await filled(cluster)
        gid = leader.replica("S").assignment.gid.to_bytes(4, "little")
        follower = cluster.followers("S")[0]
        for question in (gid + b"x", gid + bytes(24 * 5), (99).to_bytes(4, "little")):
            try:
                await follower.mesh.call(leader.me, METHOD, question, 1.0)
            except MeshError:
                continue
            raise AssertionError(question)
        assert await follower.mesh.call(
            leader.me, METHOD, gid + (10**6).to_bytes(8, "little") + b"?" * 16, 1.0
        ) == bytes(16)
        await asyncio.sleep(2 * NOTICE_SECONDS)
        assert not leader.replica("S").divergences
