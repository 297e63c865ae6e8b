"""Membership of read groups: replicas that answer Direct Gets, and when (replica/reads/membership.py)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.raft.config import JournalOptions
from jetcluster.replica.reads import answers as replies
from jetcluster.replica.reads import membership, pages
from jetcluster.replica.reads.membership import Membership
from jetcluster.replica.reads.pages import MAX_STREAMING
from jetcluster.replica.reads.waits import MAX_SECONDS, MAX_WAIT_SECONDS, Read
from jetcluster.store import view
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.store.search import kept_filters
from testkit.sim.nodes import Cluster, Message, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.replica.test_mirror_host import ApiCluster, answers, mirrored, without

GET = b"$JS.API.DIRECT.GET.S"


async def filled(cluster: Cluster, messages: int = 5, size: int = 0, **config: Any) -> None:
    await cluster.create("S", **config)
    for number in range(1, messages + 1):
        await cluster["A"].publish(b"s", b"%d" % number + b"." * size)
    await cluster.all_read("S")


@virtual_time
async def test_a_follower_answers_only_once_it_has_what_its_leader_had_committed() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        node = cluster.followers("S")[0]
        await node.js.flusher.flush()
        cluster.crash(node.name)
        await cluster.led("S")
        for number in range(6, 9):
            await next(iter(cluster)).publish(b"s", b"%d" % number)
        node = cluster.restart(node.name)
        await cluster.until(lambda: node.has("S"), what="its replica")
        group: Any = node.replica("S").group
        applying, group._apply = group._apply, lambda: None
        await asyncio.sleep(1.5)  # it knows its leader, and has nothing of what it missed
        assert group.leader is not None and not node.reads("S")
        group._apply = applying
        group.mark()
        while not node.reads("S"):
            await asyncio.sleep(0.0005)
        assert node.replica("S").store.last_seq == 8
        assert (await node.get(b"S", 8))[2] == b"8"


@virtual_time
async def test_some_reads_are_timed_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "TIMED_EVERY", 4)
    async with Cluster() as cluster:
        await filled(cluster)
        for role, node in (("leader", cluster.leader("S")), ("follower", cluster.followers("S")[0])):
            for _ in range(8):
                await node.get(b"S", 1)
            timed = node.services.runtime.read_latency
            assert {name: sum(latency.counts) for name, latency in timed.items() if sum(latency.counts)} == {role: 2}


@virtual_time
async def test_without_a_proof_of_the_commit_index_nobody_joins() -> None:
    """A follower that sees its leader, while the leader sees no majority: what it has may be old."""
    async with Cluster() as cluster:
        await filled(cluster)
        leader = cluster.leader("S")
        one, other = cluster.followers("S")
        one.replica("S").reads.leave()
        cluster.crash(other.name)
        cluster.network.cut(leader.me, one.me)
        await asyncio.sleep(3)
        assert not one.reads("S")
        cluster.heal()
        await cluster.all_read("S")


@virtual_time
async def test_a_follower_that_lags_leaves_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MAX_LAG_ENTRIES", 10)
    async with Cluster() as cluster:
        await filled(cluster)
        node = cluster.followers("S")[0]
        group: Any = node.replica("S").group
        applying = group._apply
        group._apply = lambda: None  # its machine is slow
        for number in range(6, 40):
            await cluster.leader("S").publish(b"s", b"%d" % number)
        await cluster.until(lambda: not node.reads("S"), what="it leaves")
        assert (await node.get(b"S", 39))[2] == b"39"  # another replica answers
        await asyncio.sleep(3)
        assert not node.reads("S")
        group._apply = applying
        group.mark()
        await cluster.until(lambda: node.reads("S"), what="it is back")


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_leader_that_had_to_hand_a_read_on_comes_back(replicas: int) -> None:
    """A node that stood still for a moment: the read's patience ends before what is committed is applied."""
    async with Cluster() as cluster:
        await filled(cluster, num_replicas=replicas)
        leader = cluster.leader("S")
        group: Any = leader.replica("S").group
        applying, group._apply = group._apply, lambda: None
        publishing = asyncio.ensure_future(leader.publish(b"s", b"6"))
        await cluster.until(lambda: group.told_index > group.applied_index, what="the commit")
        reading = asyncio.ensure_future(leader.request(GET, b'{"seq":5}', 2.0))
        await cluster.until(lambda: not leader.reads("S"), what="it leaves")
        group._apply = applying
        group.mark()
        assert (await publishing)["seq"] == 6
        await cluster.until(lambda: leader.reads("S"), what="it is back")
        assert (await leader.get(b"S", 6))[2] == b"6"
        answered = await reading
        assert answered[2] == b"5" if replicas > 1 else answered[1].startswith(b"NATS/1.0 503")


@virtual_time
async def test_a_follower_with_a_full_disk_shows_no_client_less_than_was_acknowledged_to_it() -> None:
    """It takes no entries, so its own commit index stands still: found by chaos (`all`, seed 3), 4 s of old reads."""
    options = JournalOptions(segment_bytes=1 << 20, reserve_bytes=10_000)
    async with Cluster(options=options) as cluster:
        await filled(cluster)
        node = cluster.followers("S")[0]
        node.disk.reported_free = 0
        node.journal.housekeep()
        await cluster.until(lambda: node.journal.scarce, what="the look at its disk")
        assert node.reads("S")
        for number in range(6, 40):
            ack = await node.publish(b"s", b"%d" % number)
            assert (await node.get(b"S", ack["seq"]))[2] == b"%d" % number
        assert node.replica("S").store.last_seq == 5 and not node.reads("S")
        node.disk.reported_free = None
        node.journal.housekeep()
        await cluster.until(lambda: node.reads("S"), what="it is back")
        assert node.replica("S").store.last_seq == 39


@virtual_time
async def test_allow_direct_is_followed_by_all_replicas() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        await cluster.update("S", allow_direct=False)
        await cluster.until(lambda: not any(node.reads("S") for node in cluster), what="all leave")
        await asyncio.sleep(0.01)
        for node in cluster:
            with pytest.raises(NoRespondersError):
                await node.get(b"S", 1)
        await asyncio.sleep(2)
        assert not any(node.reads("S") for node in cluster)
        await cluster.update("S", allow_direct=True)
        await cluster.all_read("S")


@virtual_time
async def test_damage_is_no_answer_and_the_replica_leaves() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        node = cluster.followers("S")[0]
        replica = node.replica("S")

        def damaged(seq: int) -> None:
            raise DamagedError(1, 5)

        sound, replica.store.get = replica.store.get, damaged
        _, headers, payload = await node.get(b"S", 3)
        assert (headers, payload) == (b"NATS/1.0 503\r\n\r\n", b"")
        assert not node.reads("S") and replica.damaged and not replica.sound
        assert (await node.get(b"S", 3))[2] == b"3", "another replica answers"
        assert not node.reads("S")
        replica.store.get = sound
        await cluster.until(lambda: node.reads("S"), what="it is rebuilt")
        assert replica.repair.repaired == 1 and (await node.get(b"S", 3))[2] == b"3"


@virtual_time
async def test_a_damaged_leader_lets_another_one_lead_and_gives_nobody_its_state() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        leader = cluster.leader("S")
        leader.replica("S").report_damage(DamagedError(1, 5))
        await cluster.until(
            lambda: any(node.replica("S").leading for node in cluster if node is not leader),
            what="another one leads",
        )
        await asyncio.sleep(0.1)
        assert (await leader.publish(b"s"))["seq"] == 6
        assert not leader.replica("S").sound


@virtual_time
async def test_a_store_that_cannot_be_read_for_now_answers_503_and_stays() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        node = cluster.followers("S")[0]
        store = node.replica("S").store
        real = store.get

        def fails(seq: int) -> None:
            raise KvError("Input/output error")

        store.get = fails
        assert (await node.get(b"S", 3))[1] == b"NATS/1.0 503\r\n\r\n"
        store.get = real
        assert (await node.get(b"S", 3))[2] == b"3"
        assert not node.replica("S").damaged


class Slow:
    """A reader of a batch, with a connection that fills up."""

    def __init__(self, node: Any, *, backlog: int = 0) -> None:
        self.node = node
        self.backlog = backlog
        self.frames: list[tuple[bytes, bytes]] = []
        self.inbox = b"_INBOX.slow.%d" % next(node.cluster.inboxes)
        self.subscription = node.bus.subscribe(self.inbox, self._take)
        self._real = node.bus.backlog
        node.bus.backlog = self._backlog

    def _backlog(self, subject: bytes) -> int:
        return self.backlog if subject == self.inbox else self._real(subject)

    def _take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
        self.frames.append((headers, payload))

    def ask(self, batch: int) -> None:
        self.node.bus.publish(GET, json.dumps({"seq": 1, "batch": batch}).encode(), self.inbox)

    def leave(self) -> None:
        self.node.bus.unsubscribe(self.subscription)

    @property
    def ended(self) -> bool:
        return bool(self.frames) and self.frames[-1][0].startswith(b"NATS/1.0 204 EOB")


@virtual_time
async def test_a_batch_waits_for_a_slow_reader_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    async with Cluster() as cluster:
        await filled(cluster, 30, 200)
        node = cluster["A"]
        reader = Slow(node, backlog=pages.MAX_BACKLOG + 1)
        reader.ask(30)
        await asyncio.sleep(5)
        assert reader.frames == []
        reader.backlog = 0
        await asyncio.sleep(0.006)
        await cluster.until(lambda: reader.ended, what="all of it", seconds=1)
        assert len(reader.frames) == 31
        assert node.replica("S").reads.answers.pages.streaming == 0


async def evict(cluster: Cluster) -> None:
    """Twenty of thirty messages."""
    for number in range(31, 51):
        await cluster["A"].publish(b"s", b"%d" % number)
    await cluster.equal("S")
    assert all(node.replica("S").store.first_seq == 21 for node in cluster)


@virtual_time
async def test_a_batch_is_of_the_moment_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the stream's limit evicts messages before the reader took anything, or in the middle."""
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    async with Cluster() as cluster:
        await filled(cluster, 30, 200, max_msgs=30)
        node = cluster["A"]
        blocked, reading = Slow(node, backlog=pages.MAX_BACKLOG + 1), Slow(node)
        blocked.ask(30)
        reading.ask(30)
        assert blocked.frames == [] and 0 < len(reading.frames) < 10
        reading.backlog = pages.MAX_BACKLOG + 1
        await evict(cluster)
        blocked.backlog = reading.backlog = 0
        for reader in (blocked, reading):
            await cluster.until(lambda reader=reader: reader.ended, what="all of it")  # type: ignore[misc]
            assert [int(payload.rstrip(b".")) for _, payload in reader.frames[:-1]] == list(range(1, 31))
            assert reader.frames[-1][0].endswith(b"Nats-Num-Pending: 0\r\nNats-Last-Sequence: 30\r\n\r\n")
        assert node.replica("S").reads.answers.pages.streaming == 0


@virtual_time
@pytest.mark.parametrize("why", ["too long", "no room"])
async def test_a_batch_whose_rest_cannot_be_kept_ends_without_eob(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    if why == "no room":
        monkeypatch.setattr(view, "MAX_FROZEN_BYTES", 0)
    async with Cluster() as cluster:
        await filled(cluster, 30, 200, max_msgs=30)
        node = cluster["A"]
        reader = Slow(node)
        reader.ask(30)
        reader.backlog = pages.MAX_BACKLOG + 1
        await asyncio.sleep(2 * pages.MAX_FROZEN_SECONDS)  # as long as nothing is removed a reader may be slow
        await evict(cluster)
        if why == "too long":
            await asyncio.sleep(pages.MAX_FROZEN_SECONDS + 1)
        reader.backlog = 0
        await asyncio.sleep(1)
        assert 0 < len(reader.frames) < 10 and not reader.ended
        assert node.replica("S").reads.answers.pages.streaming == 0


@virtual_time
async def test_a_batch_is_sent_in_slices_that_others_get_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    async with Cluster() as cluster:
        await filled(cluster, 30, 200)
        reader = Slow(cluster["A"])
        reader.ask(30)
        assert 0 < len(reader.frames) < 10
        assert (await cluster["A"].get(b"S", 1))[2].startswith(b"1")
        await cluster.until(lambda: reader.ended, what="all of it")


@virtual_time
async def test_a_reader_that_leaves_or_too_many_of_them_take_no_slot_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    async with Cluster() as cluster:
        await filled(cluster, 30, 200)
        node = cluster["A"]
        reader = Slow(node, backlog=1 << 30)
        for _ in range(MAX_STREAMING):
            reader.ask(30)
        assert node.replica("S").reads.answers.pages.streaming == MAX_STREAMING
        other = Slow(node)
        other.ask(30)
        assert other.frames == [(b"NATS/1.0 503\r\n\r\n", b"")]
        assert (await node.get(b"S", 1))[2].startswith(b"1")  # single gets need no slot
        reader.leave()
        reader.backlog = 0
        await asyncio.sleep(0.1)
        assert node.replica("S").reads.answers.pages.streaming == 0
        other.ask(30)
        await cluster.until(lambda: other.ended, what="a batch is served again")


@virtual_time
async def test_a_batch_ends_without_eob_when_the_state_is_not_to_be_read_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    async with Cluster() as cluster:
        await filled(cluster, 30, 200)
        node = cluster.followers("S")[0]
        reader = Slow(node)
        reader.ask(30)
        node.replica("S").diverged(node.replica("S").machine.applied_index)
        await asyncio.sleep(1)
        assert 0 < len(reader.frames) < 30 and not reader.ended
        await cluster.all_read("S")
        assert node.replica("S").reads.answers.pages.streaming == 0
        again = Slow(node)
        again.ask(30)
        await cluster.until(lambda: again.ended, what="a batch from the rebuilt replica")
        assert len(again.frames) == 31


@virtual_time
async def test_subject_form_and_last_alias() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        for subject in (b"s.a", b"s.b", b"s.a"):
            await cluster["A"].publish(subject, subject)
        await cluster.all_read("S")
        await cluster.equal("S")
        for node in cluster:
            assert (await node.request(GET + b".s.b"))[2] == b"s.b"
            _, headers, _ = await node.request(b"$JS.API.DIRECT.GET.LAST.S.s.a")
            assert b"Nats-Sequence: 3\r\n" in headers and b"Nats-Num-Pending: 1\r\n" in headers
        assert cluster["A"].replica("S").reads.answers.answered == 2
        # a stream really named LAST wins its subjects
        await cluster.create("LAST", subjects=["S.>", "x"])
        await cluster["A"].publish(b"S.s.a", b"of LAST")
        await cluster.all_read("LAST")
        await asyncio.sleep(0.01)  # their interest is on the way to the others
        for node in [*cluster] * 10:
            assert (await node.request(b"$JS.API.DIRECT.GET.LAST.S.s.a"))[2] == b"of LAST"
        restarted = cluster.followers("S")[0].name
        cluster.crash(restarted)
        cluster.restart(restarted)
        await cluster.until(lambda: cluster[restarted].reads("S") and cluster[restarted].reads("LAST"))
        await asyncio.sleep(0.1)
        for node in [*cluster] * 10:
            assert (await node.request(b"$JS.API.DIRECT.GET.LAST.S.s.a"))[2] == b"of LAST"
        await cluster.delete("LAST")
        await asyncio.sleep(0.1)
        for node in [*cluster] * 10:
            _, headers, body = await node.request(b"$JS.API.DIRECT.GET.LAST.S.s.a")
            assert b"Nats-Sequence: 3\r\n" in headers and body == b"s.a"


@virtual_time
async def test_a_batch_for_another_node_waits_for_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """A congested link drops messages, and a batch with holes that ends with an EOB would be a lie."""
    monkeypatch.setattr(pages, "SLICE_BYTES", 1000)
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        for number in range(1, 31):
            await cluster["A"].publish(b"s", b"%d" % number + b"." * 200)
        leader = cluster.leader("S")
        asker = next(node for node in cluster if node is not leader)
        reader = Slow(asker)
        congested = [1 << 30]
        monkeypatch.setattr(type(leader.mesh.links[asker.me]), "pending", property(lambda link: congested[0]))
        reader.ask(30)
        await asyncio.sleep(5)
        assert reader.frames == []
        congested[0] = 0
        await cluster.until(lambda: reader.ended, what="all of it")
        assert len(reader.frames) == 31


@virtual_time
async def test_a_replica_can_be_addressed_and_says_what_it_lacks() -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        slow = cluster.followers("S")[0]
        group: Any = slow.replica("S").group
        applying = group._apply
        group._apply = lambda: None
        lacking = slow.replica("S").store.last_seq
        for number in range(6, 10):
            await cluster.leader("S").publish(b"s", b"%d" % number)
        await cluster.until(lambda: all(node is slow or node.replica("S").store.last_seq == 9 for node in cluster))
        assert lacking < 9
        for asked in cluster:
            for addressed in cluster:
                subject = f"$JS.API.DIRECT.PEER.S.{addressed.name}".encode()
                _, headers, _ = await addressed_get(asked, subject)
                applied = lacking if addressed is slow else 9
                assert f"Jc-Applied-Seq: {applied}\r\nJc-Stream: S\r\nJc-Peer: {addressed.name}\r\n".encode() in headers
        with pytest.raises(NoRespondersError):
            await addressed_get(slow, b"$JS.API.DIRECT.PEER.S.nobody")
        group._apply = applying
        group.mark()
        await cluster.all_read("S")
        slow.replica("S").reads.abort()
        with pytest.raises(NoRespondersError):
            await addressed_get(slow, f"$JS.API.DIRECT.PEER.S.{slow.name}".encode())
        await cluster.update("S", allow_direct=False)
        await cluster.until(lambda: not any(node.reads("S") for node in cluster), what="all leave")
        for node in cluster:
            with pytest.raises(NoRespondersError):
                await addressed_get(node, f"$JS.API.DIRECT.PEER.S.{node.name}".encode())


@virtual_time
@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"seq":5,"min_last_seq":9}', b"", b"503 Min Last Sequence"),
        (b'{"seq":5}', b"NATS/1.0\r\nNats-Min-Last-Sequence: 9\r\n\r\n", b"503 Min Last Sequence"),
        (b'{"seq":5}', b"NATS/1.0\r\nNats-Read-Consistency: odd\r\n\r\n", b"408 Bad Request"),
    ],
)
async def test_an_addressed_replica_keeps_wishes_of_bodies_and_headers(
    body: bytes, headers: bytes, status: bytes
) -> None:
    async with Cluster() as cluster:
        await filled(cluster)
        await cluster.equal("S")
        node = cluster.followers("S")[0]
        subject = f"$JS.API.DIRECT.PEER.S.{node.name}".encode()
        assert (await node.request(subject, body, 5.0, headers))[1].startswith(b"NATS/1.0 " + status)
        plain = await node.request(subject, b'{"seq":5}', 5.0, b"NATS/1.0\r\nNats-Read-Info: true\r\n\r\n")
        assert b"Nats-Answered-By: " + node.name.encode() in plain[1] and plain[2] == b"5"


async def addressed_get(node: Node, subject: bytes) -> Message:
    """The answer to a batch from beyond the end."""
    inbox = b"_INBOX.addressed"
    got: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    subscription = node.bus.subscribe(inbox, lambda s, r, h, p, o: got.set_result((s, h, p)))
    try:
        if not node.bus.publish(subject, b'{"seq":100,"batch":1}', inbox, b"NATS/1.0\r\nJc-Proof: 1\r\n\r\n"):
            raise NoRespondersError(subject)
        async with asyncio.timeout(2):
            return await got
    finally:
        node.bus.unsubscribe(subscription)


@virtual_time
async def test_what_takes_some_looking_is_answered_in_turns_with_everything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_filters, "SUBJECTS_PER_STEP", 2)
    monkeypatch.setattr(kept_filters, "MAX_SKIP_PAUSES", 0)
    asked = {
        b'{"multi_last": ["s.*.x", "s.*.y", "s.a.*", "*.*.z", "s.*.*.>", "s.b.>"]}': b"1",
        b'{"last_by_subj": "s.*.x"}': b"19",
        b'{"next_by_subj": "*.*.x", "seq": 2}': b"4",
        b'{"next_by_subj": "*.*.x", "seq": 2, "batch": 1}': b"4",
    }
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        for number in range(1, 22):
            end = b"zxy"[number % 3 : number % 3 + 1]
            await cluster["A"].publish(b"s.%d.%b" % (number, end), b"%d" % number)
        await cluster.all_read("S")
        node = cluster["A"]
        reads = node.replica("S").reads
        for payload, expected in asked.items():
            work = asyncio.ensure_future(node.request(GET, payload))
            await asyncio.sleep(0)
            assert reads.answers.searching == 1 or b"multi" not in payload
            assert (await work)[2] == expected
        assert (await node.request(GET + b".s.*.y"))[2] == b"20"
        assert b"404" in (await node.request(GET + b".s.*.none"))[1]
        assert reads.answers.searching == 0
        here = b"$JS.API.DIRECT.PEER.S." + node.name.encode()
        work = asyncio.ensure_future(node.request(here, b'{"multi_last": ["s.*.q"]}'))
        await asyncio.sleep(0)
        assert reads.answers.searching == 1 and node.services.runtime.budget.jobs == 1
        reads.abort()
        assert b"503" in (await work)[1]


@virtual_time
async def test_searches_under_way_are_bounded_in_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_filters, "MAX_SKIP_PAUSES", -1)
    monkeypatch.setattr(replies, "MAX_SEARCHES", 20)
    monkeypatch.setattr(replies, "MAX_SEARCH_BYTES", 1000)
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s.>"])
        await cluster["A"].publish(b"s.1.x", b"1")
        await cluster.all_read("S")
        node = cluster["A"]
        reads = node.replica("S").reads
        here = b"$JS.API.DIRECT.PEER.S." + node.name.encode()
        many = [b'{"multi_last": ["s.*.x"]}'] * 25
        large = [b'{"multi_last": ["s.*.y"%b]}' % (b" " * 300)] * 5
        for payloads, refused in ((many, 5), (large, 2)):
            answers = await node.requests(here, payloads)
            assert sum(b"503" in headers for _, headers, _ in answers) == refused
            await cluster.until(
                lambda: not reads.answers.searching and not reads.answers.pages.streaming, what="all answered"
            )
        assert (await node.request(here, many[0]))[2] == b"1"


@virtual_time
@pytest.mark.parametrize("why", ["it was none", "it hears of no commits"])
async def test_a_replica_that_must_not_answer_becomes_no_member_because_nobody_else_does(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read waits too long there, and there is no other member to hand it on to."""
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        node = next(node for node in without(cluster, "UP") if node.has("M"))
        await cluster.until(lambda: answers(node), what="it answers")
        member = node.replica("M").reads.upstream
        monkeypatch.setattr(member, "tick", lambda: None)
        for other in cluster:
            if other is not node:
                cluster.crash(other.name)
        await asyncio.sleep(2.0)
        assert member.joined and member.allowed
        for stays in (True, False):
            if not stays and why == "it was none":
                member.leave()
            elif not stays:
                monkeypatch.setattr(Membership, "_leaderless", True)
            read = Read(None, b"", print, print, print)
            read.stays, read.deadline = True, cluster.loop.time() + MAX_SECONDS
            member.confirmations.waits.add(10**9, read)
            await asyncio.sleep(MAX_WAIT_SECONDS + 0.01)
            assert member.joined is stays
