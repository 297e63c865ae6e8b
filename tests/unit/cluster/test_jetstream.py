"""JetStream on several nodes of one process: bootstrap, placement, deletion, restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

import pytest

from jetcluster.cluster.flusher import FLUSH_SECONDS
from jetcluster.errors import ApiError
from jetcluster.raft.core.group import Group
from jetcluster.raft.journal.recovery import scan
from jetcluster.replica.turn_commit import ERASED_KEY
from jetcluster.store import keys
from jetcluster.store.kv import KvDamagedError
from testkit.sim.nodes import ACCOUNT, SMALL_LOG, Cluster, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.cluster.transfers import whole


@virtual_time
async def test_three_nodes_publish_through_each_and_read_from_each() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number, node in enumerate(cluster, 1):
            assert await node.publish(b"s", b"%d" % number) == {"stream": "S", "seq": number}
        await cluster.all_read("S")
        for node in cluster:
            for seq in (1, 2, 3):
                assert (await node.get(b"S", seq))[2] == b"%d" % seq


@virtual_time
async def test_standalone_node_serves_alone_and_after_a_restart() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        await cluster["A"].publish(b"s", b"one")
        cluster.crash("A")
        node = cluster.restart("A")
        await cluster.led("S")
        assert (await node.get(b"S", 1))[2] == b"one"
        assert (await node.publish(b"s"))["seq"] == 2


@virtual_time
async def test_a_standalone_node_takes_any_placement_and_a_cluster_does_not() -> None:
    for place in ({"cluster": "elsewhere"}, {"tags": ["ssd"]}, {"cluster": "elsewhere", "tags": ["ssd", "!hdd"]}):
        async with Cluster("A", clustered=False) as cluster:
            await cluster.create("S", 1, placement=place)
            assert (await cluster["A"].publish(b"s"))["seq"] == 1
            made = await cluster.update("S", 1, placement={"tags": ["other"]})
            assert made.config["placement"] == {"tags": ["other"]}
        async with Cluster() as cluster:
            with pytest.raises(ApiError) as refused:
                await cluster.create("S", 1, placement=place)
            assert refused.value.err_code == 10005


@virtual_time
async def test_power_failure_of_all_nodes_loses_no_acked_message() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        for number in range(20):
            await cluster["ABC"[number % 3]].publish(b"s", b"%d" % number)
            if number == 10:
                await cluster["A"].js.flusher.flush()
        cluster.crash("ABC")
        cluster.restart("ABC")
        await cluster.led("S")
        await cluster.all_read("S")
        for node in cluster:
            assert [(await node.get(b"S", seq))[2] for seq in range(1, 21)] == [b"%d" % n for n in range(20)]


# Membership


@virtual_time
async def test_a_late_node_joins_and_gets_streams() -> None:
    async with Cluster() as cluster:
        late = cluster.add("D")
        await cluster.until(lambda: late.me in cluster["A"].js.meta.machine.nodes, what="D is registered")
        assert all(late.me in node.js.meta.group.peers for node in cluster if node.js.meta.group is not None)
        assignments = [await cluster.create(f"S{number}", subjects=[f"s{number}"]) for number in range(4)]
        assert any(late.me in assignment.peers for assignment in assignments)
        assert (await late.publish(b"s3"))["seq"] == 1
        cluster.add("E")
        await cluster.until(lambda: len(late.js.meta.machine.nodes) == 5, what="E is registered")
        five = await cluster.create("FIVE", 5)
        assert len(five.peers) == 5
        await late.publish(b"five")
        await cluster.all_read("FIVE")


@virtual_time
async def test_a_stream_can_be_placed_as_soon_as_the_meta_group_has_its_nodes() -> None:
    cluster = Cluster()
    await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
    assert len((await cluster.create("S")).peers) == 3
    late = cluster.add("D")
    await cluster.until(
        lambda: all(late.me in node.js.meta.group.peers for node in cluster if node.js.meta.group is not None),
        what="D is a voter",
    )
    assert len((await cluster.create("FOUR", 4)).peers) == 4
    for node in cluster:
        await cluster.stop(node.name)


@virtual_time
async def test_a_node_that_was_stopped_before_it_was_counted_in_asks_again() -> None:
    async with Cluster() as cluster:
        late = cluster.add("D")
        await cluster.until(lambda: late.raft.knows(1), what="D has begun to join")
        cluster.isolate("D")  # nobody has heard of it yet, or will
        await asyncio.sleep(1)
        if late.me not in cluster["A"].js.meta.machine.nodes:
            cluster.crash("D")
            cluster.heal()
            late = cluster.restart("D")
        await cluster.until(lambda: late.me in cluster["A"].js.meta.machine.nodes, what="D is registered")


@virtual_time
async def test_two_of_three_start_and_the_third_joins_later() -> None:
    cluster = Cluster("AB", expected=3)
    for node in cluster:
        # one route leads nowhere yet
        node.js.joining.settled = lambda: False
    async with cluster:
        await cluster.create("S", 1)
        third = cluster.add("C")
        await cluster.until(lambda: third.me in cluster["A"].js.meta.machine.nodes, what="C is registered")
        assert len((await cluster.create("T", 3)).peers) == 3


@virtual_time
async def test_r1_stream_elsewhere_is_reached_from_every_node() -> None:
    async with Cluster() as cluster:
        for number in range(3):
            await cluster.create(f"R{number}", 1, subjects=[f"r{number}"])
        assert len({cluster.leader(f"R{number}").name for number in range(3)}) == 3
        for node, number in itertools.product(list(cluster), range(3)):
            await node.publish(b"r%d" % number, node.name.encode())
            assert (await node.get(b"R%d" % number, 1))[2] == b"A"


@virtual_time
async def test_memory_stream_is_replicated_and_outlives_one_node() -> None:
    async with Cluster() as cluster:
        await cluster.create("M", storage="memory")
        await cluster["A"].publish(b"m", b"1")
        cluster.crash(cluster.leader("M").name)
        node = await cluster.led("M")
        assert (await node.get(b"M", 1))[2] == b"1"
        assert (await node.publish(b"m"))["seq"] == 2


@virtual_time
async def test_lame_duck_hands_all_leaderships_over() -> None:
    async with Cluster() as cluster:
        for number in range(6):
            await cluster.create(f"S{number}", subjects=[f"s{number}"])
        leader = cluster.meta_leader()
        assert leader is not None
        await leader.js.transfer_leaderships()
        assert not leader.js.meta.leading
        assert not any(replica.leading for replica in leader.js.replicas.values())
        for number in range(6):
            await cluster.led(f"S{number}")
            assert (await leader.publish(b"s%d" % number))["seq"] == 1


# Deletion


def stored(node: object, gid: int) -> list[bytes]:
    kv = node.kv  # type: ignore[attr-defined]
    return [
        key
        for kind in (keys.BLOCK, keys.INFO, keys.POSTING, keys.STATE, keys.SIDE, keys.INSTALLING)
        for key, _ in kv.scan(keys.stream_prefix(kind, gid), keys.stream_end(kind, gid))
    ]


@virtual_time
async def test_deletion_removes_everything_on_all_replicas_also_one_that_was_down() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        for _ in range(5):
            await cluster["A"].publish(b"s")
        await cluster.flush()
        cluster.crash("C")
        assert await cluster.delete("S", ask="A") == gid
        with pytest.raises(NoRespondersError):
            await cluster["A"].publish(b"s")
        back = cluster.restart("C")
        await cluster.until(lambda: back.js.assignment(ACCOUNT, "S") is None, what="C learns of it")
        await asyncio.sleep(2 * FLUSH_SECONDS + 1)
        for node in cluster:
            assert stored(node, gid) == []
            assert gid not in node.journal.groups and gid not in node.js.replicas
            assert node.services.network.leaders.get(gid) is None and gid not in node.js.local.owners
            assert node.js.local.orphans._deleted == {}
            assert not list(node.kv.scan(b"\x00gone", b"\x00gone\xff"))
            assert node.js.unassigned == ()
        again = await cluster.create("S")
        assert again.gid > gid
        assert (await cluster["A"].publish(b"s"))["seq"] == 1


@virtual_time
async def test_a_crash_right_after_a_deletion_brings_back_no_half_stream() -> None:
    """For each part of the deletion that the disk had: all of the stream is there, or none, and in the end none."""
    for flush in (False, True):
        async with Cluster() as cluster:
            gid = (await cluster.create("S")).gid
            await cluster["A"].publish(b"s", b"1")
            await cluster.equal("S")
            await cluster.flush()
            await cluster.delete("S")
            if flush:
                for node in cluster:
                    node.kv.flush_now()  # RocksDB flushes when it likes, also without the meta state of that moment
            cluster.crash("ABC")
            for name in "ABC":
                node = cluster.restart(name)
                assert (gid in node.js.replicas) is not flush
                if not flush:
                    replica = node.js.replicas[gid]
                    assert replica.store.last_seq == 1 and not replica.group.log.damaged  # type: ignore[attr-defined]
            await cluster.until(
                lambda cluster=cluster: all(node.js.assignment(ACCOUNT, "S") is None for node in cluster),  # type: ignore[misc]
                what="the deletion is applied again",
            )
            await asyncio.sleep(2 * FLUSH_SECONDS + 1)
            for node in cluster:
                assert stored(node, gid) == [] and gid not in node.journal.groups and gid not in node.js.replicas


@virtual_time
async def test_unassigned_data_is_reported_and_kept() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        node = cluster["C"]
        node.kv.put(keys.block(77, 1), b"somebody's only copy")
        node.kv.flush_now()
        cluster.crash("C")
        node = cluster.restart("C")
        await cluster.until(lambda: node.js.unassigned == (77,), what="it is reported")
        assert any("not placed here" in event for event in node.log.events("warning"))
        await asyncio.sleep(2 * FLUSH_SECONDS)
        assert stored(node, 77) == [keys.block(77, 1)]


@virtual_time
async def test_a_replica_that_begins_is_unassigned_no_more() -> None:
    """The new leader of a cluster that lost power told of its commit index before it knew of the stream."""
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        node = cluster["C"]
        await asyncio.sleep(2.0)  # it has looked
        node.js.unassigned = (gid, 77)
        await cluster.until(lambda: node.js.unassigned == (77,), what="it is placed here")


@virtual_time
async def test_one_broken_stream_stops_neither_the_node_nor_its_meta_group() -> None:
    async with Cluster() as cluster:
        gid = (await cluster.create("S")).gid
        await cluster.create("T")
        await cluster["A"].publish(b"s", b"1")
        await cluster.equal("S")
        await cluster["C"].js.flusher.flush()
        kv = cluster["C"].kv
        key = stored(cluster["C"], gid)[1]
        assert key[0] == keys.INFO
        kv.delete(key)
        kv.flush_now()
        cluster.crash("C")
        node = cluster.restart("C")
        assert list(node.js.broken) == [gid] and "stream cannot be started" in node.log.events("error")
        await cluster.all_read("T")
        assert (await node.publish(b"s"))["seq"] == 2
        before = stored(node, gid)
        await asyncio.sleep(2 * FLUSH_SECONDS)
        assert stored(node, gid) == before and before
        await cluster.delete("S")
        await asyncio.sleep(2 * FLUSH_SECONDS)
        assert stored(node, gid) == [] and not node.js.broken and gid not in node.journal.groups


# Changing the number of replicas


@virtual_time
async def test_a_stream_grows_to_three_replicas_and_shrinks_again_and_grows_again() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        for number in range(20):
            await cluster["A"].publish(b"s", b"%d" % number)
        gid = cluster["A"].js.assignment(ACCOUNT, "S").gid  # type: ignore[union-attr]
        for count in range(3):
            await cluster.update("S", 3)
            await whole(cluster, "S")
            await cluster.all_read("S")
            assert all(node.replica("S").store.state.messages == 20 + count for node in cluster)
            leader = cluster.leader("S")
            await cluster.update("S", 1)
            await cluster.until(lambda: sum(node.has("S") for node in cluster) == 1, what="one replica")
            assert leader.replica("S").group.peers == (leader.me,)  # who leads stays
            for node in cluster:
                if node is not leader:
                    await cluster.until(lambda node=node: gid not in node.journal.groups, what="the log is gone")  # type: ignore[misc]
                    assert stored(node, gid) == []
            assert [(await node.publish(b"s"))["seq"] for node in [leader]] == [21 + count]
            other = next(node for node in cluster if node is not leader)
            assert (await other.get(b"S", 21))[2] == b"x"


@virtual_time
async def test_a_restart_in_the_middle_of_shrinking_leaves_the_group_its_majority() -> None:
    """The replicas that are to go still vote until the group does without them."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster["A"].publish(b"s", b"kept")
        await cluster.equal("S")
        leader = cluster.leader("S")
        rest = [node for node in cluster if node is not leader]
        for node in cluster:
            node.replica("S").tick = lambda: 0.0  # type: ignore[method-assign]  # the leader takes no step
        assignment = await cluster.update("S", 1)
        assert assignment.peers == (leader.me,)
        await asyncio.sleep(1)
        assert all(node.has("S") for node in rest)
        for name in "ABC":
            await cluster[name].js.flusher.flush()
        cluster.crash("ABC")
        cluster.restart("ABC")
        await cluster.until(lambda: sum(node.has("S") for node in cluster) == 1, what="one replica")
        left = await cluster.led("S")
        assert left.me == leader.me and left.replica("S").store.state.messages == 1


@virtual_time
async def test_more_replicas_than_nodes_are_refused() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        with pytest.raises(ApiError) as caught:
            await cluster.update("S", 5)
        assert caught.value.err_code == 10005
        assert cluster["A"].js.assignment(ACCOUNT, "S").replicas == 1  # type: ignore[union-attr]


# Time


@virtual_time
async def test_a_failing_flush_keeps_the_journal_and_is_logged_once() -> None:
    async with Cluster("A", clustered=False, options=SMALL_LOG) as cluster:
        await cluster.create("S", 1)
        node = cluster["A"]
        log = node.replica("S").group.log  # type: ignore[attr-defined]
        await node.publish(b"s")
        node.kv.broken = True
        for _ in range(3):
            await node.js.flusher.flush()
        assert log.compactable == 0
        assert sum("cannot be flushed" in event for event in node.log.events("error")) == 1
        node.kv.broken = False
        await node.js.flusher.flush()
        assert log.compactable == node.replica("S").machine.applied_index


@virtual_time
async def test_a_flush_lets_other_work_run_between_the_logs_of_many_groups() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jetcluster.cluster.flusher.COMPACTED_AT_ONCE", 3)
        order: list[str] = []
        compact = Group.compact

        def spy(group: Group, index: int) -> None:
            asyncio.get_running_loop().call_soon(order.append, "other")
            order.append("log")
            compact(group, index)

        async with Cluster("A", clustered=False) as cluster:
            for number in range(10):
                await cluster.create(f"S{number}", 1)
            patch.setattr(Group, "compact", spy)
            await cluster["A"].js.flusher.flush()
            slices = [len(list(some)) for kind, some in itertools.groupby(order) if kind == "log"]
            assert slices == [3, 3, 3, 2], "ten streams and the meta group"


@virtual_time
async def test_a_tick_that_fails_does_not_stop_the_clock_of_the_node() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1)
        await cluster.create("T", 1, max_age=1_000_000_000)
        node = cluster["A"]

        def fail() -> None:
            raise RuntimeError("a defect")

        node.replica("S").reads.tick = fail  # type: ignore[method-assign]
        await node.publish(b"t")
        await cluster.until(lambda: node.replica("T").store.messages == 0, what="T's message expires")
        assert "tick failed" in node.log.events("error")


@virtual_time
async def test_a_damaged_store_at_the_start_does_not_stop_the_clock_of_the_node() -> None:
    """Data not placed here is looked for once, in all of the data store; repair comes with later ticks."""
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("T", 1, max_age=1_000_000_000)
        node = cluster["A"]

        def fail(known: object) -> list[int]:
            raise KvDamagedError("block checksum mismatch")

        node.js.local.orphans.unassigned = fail  # type: ignore[method-assign]
        node.js._unassigned_told = False
        await node.publish(b"t")
        await cluster.until(lambda: node.replica("T").store.messages == 0, what="T's message expires")
        assert node.js._unassigned_told
        assert "tick failed" in node.log.events("error")


@virtual_time
async def test_stop_with_a_full_disk_ends_all_the_same() -> None:
    cluster = Cluster("A", clustered=False)
    async with cluster:
        await cluster.create("S", 1)
        await cluster["A"].publish(b"s", b"1")
        cluster["A"].kv.broken = True
    node = cluster.restart("A")
    await cluster.led("S")
    assert (await node.get(b"S", 1))[2] == b"1"
    await cluster.stop("A")


@virtual_time
async def test_a_request_without_a_meta_majority_is_refused_in_time() -> None:
    async with Cluster() as cluster:
        cluster.crash("B")
        cluster.crash("C")
        before = cluster.loop.time()
        with pytest.raises(ApiError) as refused:
            await cluster.create("S", 1)
        assert refused.value.err_code == 10008 and cluster.loop.time() - before < 5


@virtual_time
async def test_nodes_are_registered_with_what_they_say_of_themselves_later() -> None:
    async with Cluster() as cluster:
        node = cluster["B"]
        node.mesh.update_me(dataclasses.replace(node.mesh.me, tags=("az:1",)))
        await cluster.until(lambda: cluster["C"].js.meta.machine.nodes[node.me].tags == ("az:1",), what="tags")
        await cluster.until(
            lambda: sum(len(n.js.background.tasks) for n in cluster) == 2, what="only the leader registers and balances"
        )


def holders(cluster: Cluster) -> set[str]:
    """The nodes that have THE-SECRET on their disk."""
    found = set()
    for node in cluster:
        files = [node.disk.load(number) for number in node.disk.segments()]
        if any(b"THE-SECRET" in raw for raw in (*files, *node.kv._values.values())):
            found.add(node.name)
    return found


@virtual_time
async def test_so_it_is_when_the_servers_end_before_they_have_done_all() -> None:
    async with Cluster() as cluster:
        assignment = await cluster.create("S", 3)
        for n in range(9):
            await cluster["A"].publish(b"s", b"THE-SECRET" if n == 4 else b"%d" % n)
        await cluster["A"].js.stream_request(assignment, "msg_delete", {"seq": 1})
        await asyncio.sleep(FLUSH_SECONDS + 2)
        assert holders(cluster) == {"A", "B", "C"}, "the journals have forgotten the first one only"
        await cluster.led("S")
        await cluster["A"].js.stream_request(assignment, "msg_delete", {"seq": 5})
        await asyncio.sleep(0.5)
        for name in "ABC":
            await cluster.stop(name)
            cluster.restart(name)
        await asyncio.sleep(2 * FLUSH_SECONDS + 5)
        assert holders(cluster) == set()
        for node in cluster:
            assert node.kv.get(ERASED_KEY) is None


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
async def test_an_erased_message_is_nowhere_after_a_while(replicas: int) -> None:
    async with Cluster() as cluster:
        assignment = await cluster.create("S", replicas)
        for n in range(9):
            await cluster["A"].publish(b"s", b"THE-SECRET" if n == 4 else b"%d" % n)
        await asyncio.sleep(0.1)
        assert len(holders(cluster)) == replicas
        await cluster["A"].js.stream_request(assignment, "msg_delete", {"seq": 5})
        await asyncio.sleep(2 * FLUSH_SECONDS + 5)
        assert holders(cluster) == set()
        for node in [node for node in cluster if node.has("S")]:
            cluster.crash(node.name)
            cluster.restart(node.name)
        await cluster.led("S")
        assert (await cluster["A"].publish(b"s"))["seq"] == 10
        await cluster.equal("S")
        kept = next(node for node in cluster if node.has("S")).replica("S").store.queries
        assert [message.payload for message in kept.scan(b">", 1)][:8] == [b"%d" % n for n in range(9) if n != 4]


@virtual_time
@pytest.mark.parametrize("how", ["goes on", "ends after the state is there", "flushes slowly"])
async def test_a_server_that_was_away_while_it_was_erased_and_gets_the_others_state_forgets_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(options=SMALL_LOG) as cluster:
        assignment = await cluster.create("S", 3)
        for n in range(9):
            await cluster["A"].publish(b"s", b"THE-SECRET" if n == 4 else b"%d" % n)
        await asyncio.sleep(FLUSH_SECONDS + 2)
        await cluster.stop("C")
        await cluster.led("S")
        await cluster["A"].js.stream_request(assignment, "msg_delete", {"seq": 5})
        for _ in range(300):
            await cluster["A"].publish(b"s", b"x" * 500)
        await asyncio.sleep(2 * FLUSH_SECONDS + 5)
        back = cluster.restart("C")
        assert holders(cluster) == {"C"}
        flush = back.kv.flush

        async def slow() -> None:
            monkeypatch.setattr(back.kv, "flush", flush)
            await asyncio.sleep(2 * FLUSH_SECONDS)  # the journal forgets meanwhile
            await flush()

        if how == "flushes slowly":
            await cluster.until(lambda: back.has("S") and back.replica("S").installing, what="it is sent")
            monkeypatch.setattr(back.kv, "flush", slow)
            await asyncio.sleep(2 * FLUSH_SECONDS)
        await cluster.equal("S")
        assert "caught up from a snapshot" in cluster["C"].log.events("info")
        if how == "ends after the state is there":
            cluster.crash("C")
            cluster.restart("C")
        await asyncio.sleep(2 * FLUSH_SECONDS + 5)
        await cluster.equal("S")
        assert holders(cluster) == set()
        assert cluster["C"].kv.get(ERASED_KEY) is None


@virtual_time
async def test_a_founder_that_forgot_that_others_vote_asks_them_before_it_goes_on() -> None:
    """The stream grew from one replica to three; then the founder's journal ends before it did. By what is left of the
    log it is still alone, and nothing that it wrote can be missed: but the others have gone on without it."""
    async with Cluster() as cluster:
        gid = (await cluster.create("S", 1)).gid
        founder = cluster.leader("S")
        await founder.publish(b"s", b"0")
        await cluster.update("S", 3)
        await whole(cluster, "S")
        await founder.publish(b"s", b"1")
        await cluster.equal("S")
        cluster.crash(founder.name)
        log = scan(founder.disk).groups[gid]
        first = next(i for i, p in sorted(log.entries.items()) if p.config is not None and p.config.learners)
        for index in range(first, log.last_index + 1):
            place = log.entries[index]
            founder.disk.corrupt(place.segment, place.offset, bytes(8))
        assert scan(founder.disk).groups[gid].alone
        other = next(node for node in cluster if node is not founder)
        await cluster.led("S")
        await other.publish(b"s", b"2")
        back = cluster.restart(founder.name)
        await cluster.until(lambda: back.has("S"), what="it knows who else is to have the stream")
        await whole(cluster, "S")
        assert [(await back.get(b"S", seq))[2] for seq in (1, 2, 3)] == [b"0", b"1", b"2"]
        told = " ".join(back.log.events("warning") + back.log.events("error"))
        assert "No other replica" not in told
        assert "journal damage repaired" in told
