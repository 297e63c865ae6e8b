"""Idle streams cost next to nothing, and nothing is later for it than where all are looked at in every tick.

Background tasks: kept until they end, stopped together, their errors logged.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from jetcluster.replica.consumer_host import OUT_OF_TOUCH_SECONDS
from jetcluster.replica.rounds import (
    IDLE_VISITS_PER_SECOND,
    MAX_REST_SECONDS,
    STANDSTILL_SECONDS,
    TICK,
    VISITS_AT_ONCE,
    Background,
    Pulse,
    Rounds,
)
from jetcluster.replica.stream_replica import StreamReplica
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import consumer, owned_by

LATE = TICK + 0.1
SECOND = 1_000_000_000


class Replica:
    resting = False

    def set_resting(self, resting: bool) -> None:
        self.resting = resting


def test_who_rests_is_left_out_until_its_time_comes_or_it_is_woken() -> None:
    rounds: Rounds = Rounds()
    replicas = {gid: Replica() for gid in range(1, 4)}
    for gid, replica in replicas.items():
        rounds.add(gid, replica.set_resting)
    rounds.rest(1, 100.0, 2.0)
    rounds.rest(2, 100.0, TICK)
    rounds.rest(3, 100.0, float("inf"))
    assert rounds.due(100.0) == [2], "one tick is no rest"
    assert [replicas[gid].resting for gid in (1, 2, 3)] == [True, False, True]
    rounds.wake(3)
    rounds.wake(3)
    assert rounds.due(101.9) == [2, 3]
    assert rounds.due(102.0) == [2, 3, 1]
    assert not any(replica.resting for replica in replicas.values())


def test_a_time_of_an_earlier_rest_counts_no_more() -> None:
    rounds: Rounds = Rounds()
    rounds.add(1, Replica().set_resting)
    rounds.rest(1, 100.0, 1.0)
    rounds.wake(1)
    rounds.rest(1, 100.5, 3.0)
    assert rounds.due(101.0) == []
    assert len(rounds.due(103.5)) == 1
    rounds.rest(1, 104.0, 1.0)
    rounds.remove(1)
    assert rounds.due(200.0) == []
    rounds.wake(1)
    rounds.rest(1, 200.0, 3.0)
    assert rounds.due(300.0) == []


def test_nobody_rests_for_longer_than_the_longest_rest_and_not_all_end_it_at_once() -> None:
    rounds: Rounds = Rounds()
    for gid in range(64):
        rounds.add(gid, Replica().set_resting)
        rounds.rest(gid, 100.0, 1e9)
    came = [len(rounds.due(100.0 + step / 10)) for step in range(60)]
    assert came[int(10 * MAX_REST_SECONDS)] == 64
    assert max(after - before for before, after in itertools.pairwise(came)) <= 12
    rounds.wake_all()
    assert rounds._times == []


def whole_round(rounds: Rounds, now: float) -> list[int]:
    """The groups of a round, which is made in slices."""
    due = rounds.due(now)
    while rounds.under_way:
        due += rounds.due(now)
    return due


def test_idle_replicas_get_as_many_visits_whatever_their_number() -> None:
    rounds = Rounds()
    count, seconds = 20 * IDLE_VISITS_PER_SECOND, 100.0
    for gid in range(count):
        rounds.add(gid, Replica().set_resting)
    visits: Counter[int] = Counter()
    most = step = 0
    while step * TICK < seconds:
        now = step * TICK
        due = whole_round(rounds, now)
        visits.update(due)
        for gid in due:
            rounds.rest(gid, now, float("inf"))
        most = max(most, len(due) if step else 0)
        step += 1
    longest = count / IDLE_VISITS_PER_SECOND
    assert min(visits.values()) >= seconds / longest - 2, "each one in turn"
    assert visits.total() - count <= 1.3 * IDLE_VISITS_PER_SECOND * seconds
    assert most <= count / 8, "and never very many at once"


def test_a_round_over_many_is_made_in_slices_and_visits_each_once() -> None:
    rounds = Rounds()
    count = 5 * VISITS_AT_ONCE + 7
    for gid in range(count):
        rounds.add(gid, Replica().set_resting)
    seen: list[int] = []
    for slices in range(1, 7):
        some = rounds.due(100.0)
        assert len(some) <= VISITS_AT_ONCE
        seen += some
        assert rounds.under_way == (slices < 6)
        if slices == 2:
            rounds.remove(count - 1)
            rounds.rest(count - 2, 100.0, 1.0)
            rounds.add(count, Replica().set_resting)
    assert seen == list(range(count - 2)), "who has gone or rests meanwhile is left out; who comes waits for the next"
    assert count in whole_round(rounds, 100.25)


def test_a_stop_of_the_process_is_counted_once_whoever_sees_it_first() -> None:
    pulse = Pulse()
    assert pulse.stops(500.0) == 0, "nothing is known before the first tick"
    pulse.beat(500.0)
    assert pulse.stops(500.0 + STANDSTILL_SECONDS) == 0
    assert pulse.stops(502.0) == 1
    pulse.beat(502.1)
    assert pulse.stops(502.2) == 1
    pulse.beat(504.0)
    assert pulse.stops(504.0) == 2


def ticks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    tick = StreamReplica.tick

    def spy(replica: StreamReplica) -> float:
        counted[replica.assignment.name] += 1
        return tick(replica)

    monkeypatch.setattr(StreamReplica, "tick", spy)
    return counted


async def resting(cluster: Cluster, *streams: str) -> None:
    """They have come to rest on all nodes, and have rested for a while."""

    def rest() -> bool:
        return all(node.replica(stream).resting for node in cluster for stream in streams if node.has(stream))

    await cluster.until(rest, what="rest")
    await asyncio.sleep(1.3)
    await cluster.until(rest, what="rest")


async def until_gone(cluster: Cluster, node: Node, stream: str) -> float:
    """Seconds until the stream holds no message."""
    start = cluster.loop.monotonic()
    await cluster.until(lambda: node.replica(stream).store.messages == 0, what="the message goes")
    return cluster.loop.monotonic() - start


@virtual_time
async def test_idle_streams_are_hardly_looked_at() -> None:
    with pytest.MonkeyPatch.context() as patch:
        counted = ticks(patch)
        async with Cluster() as cluster:
            for number in range(20):
                await cluster.create(f"S{number}", 3)
                await cluster["A"].publish_again(b"s%d" % number)
            await resting(cluster, *(f"S{number}" for number in range(20)))
            counted.clear()
            await asyncio.sleep(50.0)
            assert max(counted.values()) <= 3 * 50.0 / (MAX_REST_SECONDS - 1) + 3, "by three nodes"
            counted.clear()
            for _ in range(40):
                await cluster["A"].publish(b"s7")
                await asyncio.sleep(0.25)
            assert counted["S7"] > 3 * 35, "one that is used, in every tick"
            assert counted["S8"] <= 3 * 4


@virtual_time
async def test_many_idle_streams_get_as_many_visits_as_few() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jetcluster.replica.rounds.IDLE_VISITS_PER_SECOND", 1)
        counted = ticks(patch)
        async with Cluster() as cluster:
            names = [f"S{number}" for number in range(25)]
            for name in names:
                await cluster.create(name, 3)
            await resting(cluster, *names)
            await asyncio.sleep(30.0)
            counted.clear()
            await asyncio.sleep(100.0)
            assert 3 * 25 * 3 <= counted.total() <= 3 * 1.4 * 100, "leaders and followers of three nodes"


@virtual_time
async def test_all_of_many_replicas_are_visited_within_a_tick() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jetcluster.replica.rounds.VISITS_AT_ONCE", 3)
        counted = ticks(patch)
        async with Cluster("A", clustered=False) as cluster:
            names = [f"S{number}" for number in range(10)]
            for name in names:
                await cluster.create(name, 1)
            rounds = cluster["A"].services.runtime.rounds
            await cluster.until(lambda: not rounds.under_way, what="the end of the round")
            rounds.wake_all()
            counted.clear()
            await asyncio.sleep(TICK + 0.05)
            assert [counted[name] for name in names] == [1] * 10


@virtual_time
async def test_a_replica_that_may_not_apply_is_watched_all_the_time() -> None:
    with pytest.MonkeyPatch.context() as patch:
        counted = ticks(patch)
        async with Cluster() as cluster:
            await cluster.create("S", 3)
            await cluster.create("T", 3)
            await cluster["A"].publish_again(b"s")
            await resting(cluster, "S", "T")
            node = cluster.followers("S")[0]
            node.raft.turns.ask_first(lambda: False)
            await cluster["A"].publish(b"s")
            await asyncio.sleep(0.5)
            replica = node.replica("S")
            assert replica.group.commit_index > replica.group.applied_index
            counted.clear()
            await asyncio.sleep(2.0)
            assert counted["S"] >= 8, "it may lag too far to answer"
            node.raft.turns.apply_again()
            await resting(cluster, "S")


@virtual_time
async def test_messages_expire_in_time_in_a_stream_that_rested() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1, max_age=7 * SECOND)
        await cluster.create("T", 1, allow_msg_ttl=True)
        node = cluster["A"]
        await resting(cluster, "S", "T")
        await node.publish(b"s")
        took = await until_gone(cluster, node, "S")
        assert 7.0 - 1e-9 <= took <= 7.0 + LATE
        await resting(cluster, "S", "T")
        await node.publish(b"t", headers=b"NATS/1.0\r\nNats-TTL: 8s\r\n\r\n")
        await resting(cluster, "T")
        start = cluster.loop.time_ns()
        stored = node.replica("T").store.get(1)
        assert stored is not None
        took = await until_gone(cluster, node, "T") + (start - stored.ts) / 1e9
        assert 8.0 <= took <= 8.0 + 0.05, "what has a TTL goes in time, not with a tick"


@virtual_time
async def test_a_wall_clock_that_is_set_wakes_what_waits_for_its_time() -> None:
    with pytest.MonkeyPatch.context() as patch:
        counted = ticks(patch)
        async with Cluster("A", clustered=False) as cluster:
            await cluster.create("S", 1, max_age=60 * SECOND)
            node = cluster["A"]
            await node.publish(b"s")
            left = 60.0
            while left > MAX_REST_SECONDS:
                counted.clear()
                await cluster.until(lambda: counted["S"] > 0, what="a look at it")
                due = node.replica("S").machine.next_expiry
                assert due is not None
                left = (due - node.services.runtime.clock.time_ns()) / 1e9
            assert left > 3.0, "it rests until then"
            cluster.ahead["A"] = left - 1.0
            assert await until_gone(cluster, node, "S") <= 1.0 + LATE


@virtual_time
async def test_a_lost_quorum_is_logged_as_soon_as_before() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        await resting(cluster, "S")
        await resting(cluster, "S")
        cluster.crash("BC")
        node = cluster["A"]
        group = node.replica("S").group
        await cluster.until(lambda: group.leader is None, what="no leader")
        start = cluster.loop.monotonic()
        await cluster.until(lambda: "stream has no quorum" in node.log.events("warning"), what="the warning")
        assert 5.0 - TICK <= cluster.loop.monotonic() - start <= 5.0 + LATE


@virtual_time
async def test_a_batch_that_nobody_goes_on_with_is_abandoned_in_time() -> None:
    async with Cluster("A", clustered=False) as cluster:
        await cluster.create("S", 1, allow_atomic=True)
        node = cluster["A"]
        await resting(cluster, "S")
        stage = node.replica("S").ingest.batches.stage
        stage.room.limits = stage.room.limits._replace(timeout=1.0)
        headers = b"NATS/1.0\r\nNats-Batch-Id: one\r\nNats-Batch-Sequence: 1\r\n\r\n"
        await node.request(b"s", b"x", headers=headers)
        assert len(stage) == 1
        start = cluster.loop.monotonic()
        await cluster.until(lambda: len(stage) == 0, what="the end of the batch")
        took = cluster.loop.monotonic() - start
        assert took <= 1.0 + LATE


@virtual_time
async def test_what_concerns_the_whole_node_wakes_all() -> None:
    with pytest.MonkeyPatch.context() as patch:
        counted = ticks(patch)
        async with Cluster("A", clustered=False) as cluster:
            for number in range(10):
                await cluster.create(f"S{number}", 1)
            node = cluster["A"]
            names = {f"S{number}" for number in range(10)}
            await resting(cluster, *names)

            async def all_in(count: int) -> bool:
                counted.clear()
                await asyncio.sleep(count * TICK + 0.05)
                return all(counted[name] >= count for name in names)

            assert not await all_in(1)
            node.services.runtime.pulse._at = cluster.loop.monotonic() - 2.0
            assert await all_in(1), "this process stood still"
            assert not await all_in(1)
            cluster.ahead["A"] = 0.2
            assert await all_in(1), "the clock was set"
            assert not await all_in(1)
            journal: Any = node.journal
            number, journal.in_flight = journal.in_flight, 77
            await asyncio.sleep(TICK)
            assert await all_in(1), "the disk hangs"
            assert not await all_in(1)
            journal.in_flight = number
            assert await all_in(1), "it is over"


@virtual_time
async def test_who_falls_behind_while_the_disk_hangs_is_watched_and_nobody_else() -> None:
    async with Cluster() as cluster:
        for name in "STU":
            await cluster.create(name, 3)
        await resting(cluster, "S", "T", "U")
        node = cluster.followers("S")[0]
        leader = cluster.leader("S")
        node.writer.hold()
        await leader.publish_again(b"u", b"x")
        await asyncio.sleep(2.2 * TICK)  # all have been woken, and rest again
        await leader.publish_again(b"s", b"x")
        replica = node.replica("S")
        await cluster.until(lambda: replica.group.told_index > replica.group.applied_index, what="news", seconds=0.1)
        assert replica.resting and node.raft.health.may_answer
        await asyncio.sleep(1.1 * TICK)
        watched = not replica.resting, not node.replica("T").resting
        node.writer.release()
        assert watched == (True, False)


@virtual_time
async def test_a_node_that_falls_silent_is_seen_by_all_its_streams() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        node = cluster["A"]
        await resting(cluster, "S")
        assert not node.js.parts.watch.changed()
        node.raft.peers.states[cluster["B"].me].last_seen -= 10.0
        assert node.js.parts.watch.changed()
        assert not node.js.parts.watch.changed()


@virtual_time
async def test_owners_go_on_for_as_long_without_a_leader_as_if_they_had_never_rested() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        leader = await cluster.led("S")
        await consumer(leader, "c")
        node = next(node for node in cluster if node is not leader)
        await owned_by(cluster, "c", node)
        replica = node.replica("S")
        turns = replica.consumers.turns
        await cluster.until(lambda: turns.is_open, what="a session")
        await resting(cluster, "S")
        await resting(cluster, "S")
        turns._send(turns._session, b"")
        assert not replica.resting, "what is sent may get lost: somebody has to see that"
        await resting(cluster, "S")
        await resting(cluster, "S")
        for other in list(cluster):
            if other is not node:
                cluster.crash(other.name)
        await cluster.until(lambda: replica.group.leader is None, what="no leader")
        start = cluster.loop.monotonic()
        await cluster.until(lambda: not turns.is_open, what="the end of the session")
        assert OUT_OF_TOUCH_SECONDS - 0.1 <= cluster.loop.monotonic() - start <= OUT_OF_TOUCH_SECONDS + LATE


class Lines(list[str]):
    def error(self, event: str, **values: Any) -> None:
        self.append(f"{event}: {values['error']}")


async def fail() -> None:
    raise ValueError("x")


async def test_a_task_is_kept_until_it_ends() -> None:
    lines = Lines()
    background = Background(lines)  # type: ignore[arg-type]
    done = asyncio.Event()

    async def wait() -> None:
        await done.wait()

    task = background.spawn(wait())
    assert list(background.tasks) == [task]
    done.set()
    await task
    await asyncio.sleep(0)
    assert not background.tasks and lines == []


async def test_what_a_task_raises_is_logged() -> None:
    lines = Lines()
    background = Background(lines)  # type: ignore[arg-type]
    task = background.spawn(fail())
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert lines == ["a background task failed: ValueError('x')"] and not background.tasks


async def test_a_stop_ends_all() -> None:
    lines = Lines()
    background = Background(lines)  # type: ignore[arg-type]
    tasks = [background.spawn(asyncio.sleep(1000)) for _ in range(3)]
    await background.stop()
    assert all(task.cancelled() for task in tasks) and lines == [] and not background.tasks


def test_a_long_pause_is_one_stop() -> None:
    pulse = Pulse()
    assert pulse.stops(1e9) == 0, "it never beat"
    pulse.beat(10.0)
    pulse.beat(10.0 + STANDSTILL_SECONDS)
    assert pulse.stops(10.0 + STANDSTILL_SECONDS) == 0
    pulse.beat(20.0)
    assert pulse.stops(20.5) == 1


def test_a_pause_that_lasts_counts_once() -> None:
    pulse = Pulse()
    pulse.beat(0.0)
    assert pulse.stops(5.0) == 1
    assert pulse.stops(5.5) == 1
    pulse.beat(5.6)
    assert pulse.stops(6.0) == 1
