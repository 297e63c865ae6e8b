"""Reads for clients of other nodes (replica/reads/confirm.py)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.clock import SECOND
from jetcluster.raft.config import JournalOptions
from jetcluster.replica.reads.confirm import PATIENCE_SECONDS, ReadConfirmations, tell
from jetcluster.replica.reads.waits import MAX_SECONDS, Read
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import VirtualLoop, virtual_time
from testkit.twins.time import ManualTime
from tests.unit.cluster.consumers import Puller, consumer
from tests.unit.replica.waits_rig import around


def slow_down(cluster: Cluster, source: Node, target: Node, seconds: float) -> None:
    """In this direction only."""
    cluster.network.link(source.me, target.me).delay = seconds


async def led(cluster: Cluster, stream: str) -> tuple[Node, Node, Node, Node]:
    """(leader, two followers, a node without a replica)"""
    await cluster.create(stream)
    await cluster.all_read(stream)
    leader = cluster.leader(stream)
    one, other = cluster.followers(stream)
    (without,) = [node for node in cluster if not node.has(stream)]
    return leader, one, other, without


async def acked(client: Node, payload: bytes) -> dict[str, Any]:
    """Sent until it is: a leader that does not know better swallows it."""
    while True:
        with contextlib.suppress(TimeoutError):
            _, _, body = await client.request(b"s", payload, 0.2)
            if body:
                ack: dict[str, Any] = json.loads(body)
                return ack


@virtual_time
async def test_a_client_of_a_node_without_a_replica_reads_what_it_wrote() -> None:
    """The commit comes to the client over a quick link, and to one follower over a slow one."""
    async with Cluster("ABCD") as cluster:
        leader, _, late, client = await led(cluster, "S")
        slow_down(cluster, leader, late, 0.1)
        for number in range(1, 41):
            ack = await client.publish(b"s", b"%d" % number)
            assert (await client.get(b"S", ack["seq"]))[2] == b"%d" % number
        assert late.replica("S").reads.answers.answered > 3, "the slow one was asked, too"


@virtual_time
async def test_a_client_of_a_node_that_lags_reads_what_it_wrote() -> None:
    """Its own replica has left the readers."""
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.all_read("S")
        leader = cluster.leader("S")
        node, late = cluster.followers("S")
        group: Any = node.replica("S").group
        group._apply = lambda: None  # its machine stands still, so it gives up
        slow_down(cluster, leader, late, 0.1)
        for number in range(1, 21):
            ack = await node.publish(b"s", b"%d" % number)
            assert (await node.get(b"S", ack["seq"]))[2] == b"%d" % number
        assert not node.reads("S")
        assert late.replica("S").reads.answers.answered > 1


async def hosted_by(cluster: Cluster, stream: str, host: Node) -> str:
    """A consumer that `host` has."""
    for number in range(9):
        name = f"c{number}"
        await consumer(cluster.leader(stream), name, stream=stream)
        await asyncio.sleep(0.2)
        if any(hosted.owner.state.name == name for hosted in host.replica(stream).consumers.running.values()):
            return name
    raise AssertionError(f"no consumer came to {host.name}")


@virtual_time
async def test_a_pull_that_does_not_wait_finds_what_its_client_wrote() -> None:
    async with Cluster() as cluster:
        await cluster.create("S")
        await cluster.all_read("S")
        one, late = cluster.followers("S")
        puller = Puller(one, "S", await hosted_by(cluster, "S", late))
        slow_down(cluster, cluster.leader("S"), late, 0.1)
        for number in range(1, 11):
            await one.publish(b"s", b"%d" % number)
            assert puller.pull(no_wait=True)
            await cluster.until(lambda: puller.got or puller.statuses, 5.0, "an answer")
            assert [payload for _, _, payload in puller.got] == [b"%d" % number], puller.statuses
            puller.got.clear()


@virtual_time
@pytest.mark.parametrize("room_again", [False, True])
async def test_a_pull_on_a_node_that_takes_nothing_waits_for_a_while(room_again: bool) -> None:
    async with Cluster(options=JournalOptions(segment_bytes=1 << 20, reserve_bytes=10_000)) as cluster:
        await cluster.create("S")
        await cluster.all_read("S")
        late = cluster.followers("S")[0]
        puller = Puller(late, "S", await hosted_by(cluster, "S", late))
        late.disk.reported_free = 0
        late.journal.housekeep()
        await cluster.until(lambda: late.journal.scarce, what="the look at its disk")
        await late.publish(b"s", b"1")
        assert late.replica("S").store.last_seq == 0
        assert puller.pull(no_wait=True)
        if room_again:
            late.disk.reported_free = None
            late.journal.housekeep()
            await cluster.until(lambda: not late.journal.scarce, what="the look at its disk")
        await cluster.until(lambda: puller.got or puller.statuses, 5.0, "an answer")
        assert (len(puller.got), puller.statuses) == ((1, []) if room_again else (0, [b"404 No Messages"]))


@virtual_time
async def test_a_leader_that_was_replaced_answers_no_client_of_another_node_from_before() -> None:
    async with Cluster("ABCD") as cluster:
        old, one, other, client = await led(cluster, "S")
        for peer in (one, other):
            cluster.network.cut(old.me, peer.me)  # the client's node still reaches it
        await cluster.until(lambda: any(n.replica("S").leading for n in (one, other)), what="a new leader")
        ack = await acked(client, b"new")
        for _ in range(20):
            _, headers, data = await client.request(b"$JS.API.DIRECT.GET.S", b'{"seq":%d}' % ack["seq"], 5.0)
            assert data == b"new" or headers.startswith(b"NATS/1.0 503")
        assert old.replica("S").store.last_seq < ack["seq"]


@virtual_time
async def test_without_a_leader_it_is_refused_after_a_while() -> None:
    async with Cluster("ABCD") as cluster:
        leader, one, other, client = await led(cluster, "S")
        await client.publish(b"s", b"1")
        await cluster.until(lambda: other.replica("S").store.last_seq == 1, what="it is everywhere")
        cluster.crash(leader.name)
        cluster.crash(one.name)
        start = cluster.loop.time()
        _, headers, _ = await client.request(b"$JS.API.DIRECT.GET.S", b'{"seq":1}', 10.0)
        assert headers.startswith(b"NATS/1.0 503")
        assert MAX_SECONDS <= cluster.loop.time() - start < MAX_SECONDS + 0.1
        assert (await other.get(b"S", 1))[2] == b"1", "its own clients are answered"


@virtual_time
async def test_a_leader_that_does_not_answer_is_not_waited_for_any_longer() -> None:
    """The question itself takes up to two seconds; who came while it was under way has a deadline of its own."""
    asked: list[float] = []
    told: list[tuple[int, str, float]] = []
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    async def ask() -> int | None:
        asked.append(loop.time())
        await asyncio.sleep(2.0)
        return None

    reads = ReadConfirmations(around(loop, loop), ask, lambda: 0)
    start = loop.time()
    for number in range(4):
        words = [functools.partial(lambda n, w: told.append((n, w, loop.time() - start)), number, w) for w in "agr"]
        reads.hold(*words)
        await asyncio.sleep(0.9)
    await asyncio.sleep(10)
    assert [(number, word) for number, word, _ in told] == [(number, "r") for number in range(4)]
    for number, _, at in told:
        assert at == pytest.approx(number * 0.9 + MAX_SECONDS, abs=0.01)
    assert len(asked) <= 4, "nobody waits any more"


@virtual_time
@pytest.mark.parametrize("where", ["answer", "answer later", "ask", "tell", "look"])
async def test_what_nobody_foresaw_fails_alone(where: str) -> None:
    """It is reported, and the reads that wait with it, or come later, are answered."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    reached, log, broken = 5, [], True

    def fail() -> None:
        raise RuntimeError("a defect")

    async def ask() -> int | None:
        if broken and where in ("ask", "look"):
            fail()
        return None if broken and where == "tell" else 5

    async def tell(reads: list[Read]) -> None:
        if broken:
            fail()

    reads = ReadConfirmations(around(loop, loop), ask, lambda: reached, tell if where == "tell" else None)

    def hold(name: str, *, fails: bool = False) -> None:
        answer = fail if fails else functools.partial(log.append, name)
        reads.hold(answer, fail, functools.partial(log.append, f"{name} refused"))

    if where == "look":
        reads.look()
        await asyncio.sleep(0.01)
    reached = 4 if where == "answer later" else 5
    hold("first", fails=where.startswith("answer"))
    hold("second")
    await asyncio.sleep(0.1)
    broken, reached = False, 5
    reads.advanced()
    await asyncio.sleep(0.1)
    hold("third")
    await asyncio.sleep(0.1)
    assert log == ["first refused" if where.startswith("answer") else "first", "second", "third"]
    assert loop.failures, "it is known"
    loop.failures.clear()


@virtual_time
async def test_a_question_that_ends_late_does_not_end_the_patience_of_the_next_one() -> None:
    """It was given up by `clear`, and takes a while to end."""
    loop, log = asyncio.get_running_loop(), list[str]()

    async def ask() -> int | None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
        return None

    async def told_nothing(reads: list[Read]) -> None:
        for read in reads:
            read.told = 0

    reads = ReadConfirmations(around(loop, loop), ask, lambda: 5, told_nothing)
    for name in ("first", "second"):
        words = (name, f"{name} given up", f"{name} refused")
        reads.hold(*(functools.partial(log.append, word) for word in words))
        await asyncio.sleep(0.05)
        if name == "first":
            reads.clear()
    await asyncio.sleep(PATIENCE_SECONDS)
    assert log == ["first refused", "second"]
    reads.clear()


@virtual_time
async def test_no_patience_outlives_a_clear_from_within_an_answer() -> None:
    """As of an answer that found damage."""
    loop = asyncio.get_running_loop()
    delays: list[float] = []

    def call_later(delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        delays.append(delay)
        return loop.call_later(delay, callback, *args)

    timers = SimpleNamespace(call_soon=loop.call_soon, call_later=call_later)

    async def ask() -> int | None:
        await asyncio.sleep(60)
        return None

    async def told_nothing(reads: list[Read]) -> None:
        for read in reads:
            read.told = 0

    reads = ReadConfirmations(around(loop, timers), ask, lambda: 5, told_nothing)
    reads.hold(reads.clear, print, print)
    await asyncio.sleep(10 * PATIENCE_SECONDS)
    assert delays.count(PATIENCE_SECONDS) == 1


@virtual_time
async def test_an_age_goes_by_the_newest_proof_that_is_reached() -> None:
    """Also while newer ones come all the time, of a leader that is always ahead."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    asked: list[float] = []
    index = reached = 0

    async def ask() -> int | None:
        asked.append(loop.time())
        await asyncio.sleep(0.1)
        return index

    reads = ReadConfirmations(around(loop, loop), ask, lambda: reached)
    for last in (10, 20, 20, 30, *range(31, 200)):
        index = last
        reads.look()
        reads.look()  # one question at a time
        await asyncio.sleep(0.2)
        assert reads.proven_at is None
    assert len(asked) == 173
    reached = 9
    assert reads.proven_at is None
    reached = 10
    assert reads.proven_at == asked[0]
    reached = 29
    assert reads.proven_at == asked[2], "the later one of two about the same"
    reached = 199
    assert reads.proven_at == asked[-1], "the newest counts whatever was dropped"
    index = 5
    reads.look()
    await asyncio.sleep(0.2)
    assert reads.proven_at == asked[-1]
    reads.clear()
    assert reads.proven_at is None


@virtual_time
async def test_all_that_wait_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster("ABCD") as cluster:
        _, _, _, client = await led(cluster, "S")
        await client.publish(b"s", b"1")
        calls = 0
        for node in cluster:
            inner = node.mesh.call

            async def call(peer: str, method: str, payload: bytes, timeout: float = 5.0, inner: Any = inner) -> bytes:
                nonlocal calls
                calls += method == "stream.commit"
                return await inner(peer, method, payload, timeout)

            monkeypatch.setattr(node.mesh, "call", call)
        answers = await client.requests(b"$JS.API.DIRECT.GET.S", [b'{"seq":1}'] * 300)
        assert {payload for _, _, payload in answers} == {b"1"}
        assert 1 <= calls <= 9, "one or two for each replica"


@virtual_time
async def test_what_waits_is_refused_when_the_replica_goes() -> None:
    async with Cluster("ABCD") as cluster:
        leader, one, other, client = await led(cluster, "S")
        await client.publish(b"s", b"1")
        for node in (leader, one):
            node.replica("S").reads.leave()
        await asyncio.sleep(0.01)
        for peer in (leader, one):
            cluster.network.cut(other.me, peer.me)
        asking = asyncio.create_task(client.request(b"$JS.API.DIRECT.GET.S", b'{"seq":1}', 5.0))
        await asyncio.sleep(0.1)
        assert not asking.done()
        other.replica("S").reads.abort()
        assert (await asking)[1].startswith(b"NATS/1.0 503")


class SuspendedClock(ManualTime):
    """Its machine was suspended for `away` seconds, which only `uptime` counts."""

    away = 0.0

    def uptime(self) -> float:
        return self.monotonic() + self.away


async def proofs(clock: ManualTime, wanted: list[int], reached: list[int], seconds: float = 0.0) -> ReadConfirmations:
    """After questions to a leader, which answered each with one of `wanted` after `seconds`, a second before the next
    one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    answers = iter(wanted)

    async def ask() -> int | None:
        clock.advance(seconds)
        return next(answers)

    reads = ReadConfirmations(around(clock, loop), ask, lambda: reached[0], clock_drift=0.2)
    nothing = lambda: None  # noqa: E731
    for _ in wanted:
        reads.hold(nothing, nothing, nothing)
        await asyncio.sleep(0.01)
        clock.advance(1.0)
    return reads


def age_of(reads: ReadConfirmations) -> float | None:
    return None if reads.proven_at is None else reads.since(reads.proven_at)


@virtual_time
async def test_a_proof_counts_once_its_index_is_reached_though_later_ones_are_not() -> None:
    """A stream that grows all the time is never where its newest proof is."""
    reached = [0]
    reads = await proofs(ManualTime(), [5, 8, 12], reached)
    assert age_of(reads) is None
    reached[0] = 5
    assert age_of(reads) == pytest.approx(3.0 / 0.8)
    reached[0] = 11
    assert age_of(reads) == pytest.approx(2.0 / 0.8)
    reads.clear()
    assert age_of(reads) is None


@virtual_time
async def test_an_age_is_a_bound_for_slow_clocks_and_for_machines_that_were_suspended() -> None:
    clock = SuspendedClock()
    reads = await proofs(clock, [5], [5])
    assert age_of(reads) == pytest.approx(1.0 / 0.8), "the clock may have shown 1 s for what was 1.25 s"
    clock.away = 60.0
    assert age_of(reads) == pytest.approx(61.0 / 0.8)


@virtual_time
async def test_an_age_counts_from_the_question() -> None:
    """An entry that was committed while the answer was on its way may be missing."""
    reads = await proofs(ManualTime(), [5], [5], seconds=0.4)
    assert age_of(reads) == pytest.approx(1.4 / 0.8)


@pytest.mark.parametrize("behind", [0, 3600])
async def test_a_stream_from_the_future_has_no_acks_of_an_earlier_one(behind: int) -> None:
    """This node's wall clock is slow."""
    asked: list[int] = []

    def told(reply: bytes, stream: bytes, age: int) -> int:
        asked.append(age)
        return 7

    created = 10**18
    clock = SimpleNamespace(time_ns=lambda: created + 60 * SECOND - behind * SECOND)
    replica: Any = SimpleNamespace(runtime=SimpleNamespace(clock=clock), bus=SimpleNamespace(told=told))
    stream: Any = SimpleNamespace(name="S", account="$G", created_ns=created)
    read = Read(None, b"_INBOX.1", lambda: None, lambda: None, lambda: None)
    await tell(replica, stream, "", [read])
    assert read.told == 7
    assert asked == [60 * SECOND] if not behind else asked[0] > 10**18, "nothing is older than that"
