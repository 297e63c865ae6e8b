"""Direct Gets that ask how fresh they must be, on nodes in one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from jetcluster.model import durations
from jetcluster.protocol.bus import Origin
from jetcluster.replica.reads import confirm, demands
from jetcluster.replica.reads.asked_stream import OwnStream
from jetcluster.replica.reads.waits import MAX_SECONDS, MAX_WAITING, Read
from jetcluster.stream.read.get_request import GetRequest
from testkit.sim.nodes import Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from testkit.twins.time import ManualTime
from tests.unit.replica.test_mirror_host import ApiCluster, answers, copied, fill, mirrored, without
from tests.unit.replica.waits_rig import around

GET = b"$JS.API.DIRECT.GET.S"


def block(*lines: str) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line.encode() + b"\r\n" for line in lines) + b"\r\n"


def fields(headers: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in headers.decode().split("\r\n") if ": " in line)


async def timed(cluster: Cluster, node: Node, *request: Any, headers: bytes = b"") -> tuple[bytes, bytes, float]:
    start = cluster.loop.time()
    _, head, payload = await node.request(*request, 10.0, headers)
    return head, payload, cluster.loop.time() - start


async def stream(cluster: Cluster, **config: Any) -> tuple[Node, Node, Node]:
    """(leader, two followers) of a stream with three messages."""
    await cluster.create("S", **config)
    await cluster.all_read("S")
    await fill(cluster["A"], 3, b"s")
    await cluster.equal("S")
    return cluster.leader("S"), *cluster.followers("S")


@virtual_time
async def test_a_replica_waits_for_the_sequence_that_it_must_have() -> None:
    async with Cluster() as cluster:
        leader, follower, _ = await stream(cluster)
        for subject, body, headers in (
            (GET, b'{"seq":4,"min_last_seq":4}', b""),
            (GET, b'{"seq":4,"batch":5,"min_last_seq":4}', b""),
            (GET, b'{"multi_last":["s"],"min_last_seq":4}', b""),
            (GET + b".s", b'{"min_last_seq":4}', b""),
            (GET + b".s", b"", block("Nats-Min-Last-Sequence: 4")),
            (GET, b'{"last_by_subj":"s"}', block("Nats-Min-Last-Sequence: 4")),
        ):
            head, _, seconds = await timed(cluster, follower, subject, body, headers=headers)
            assert head.startswith(b"NATS/1.0 503 Min Last Sequence\r\n"), head
            assert fields(head)["Nats-Applied-Sequence"] == "3" and fields(head)["Nats-Answered-By"] == follower.name
            assert demands.SEQUENCE_SECONDS <= seconds < demands.SEQUENCE_SECONDS + 0.1
        waiting = asyncio.create_task(follower.request(GET + b".s", b'{"min_last_seq":4}', 5.0))
        await asyncio.sleep(0.1)
        await leader.publish(b"s", b"fourth")
        assert (await waiting)[2] == b"fourth"


@virtual_time
async def test_linearizable_is_confirmed_by_the_leader_and_refused_without_one() -> None:
    async with Cluster() as cluster:
        leader, follower, other = await stream(cluster)
        body = b'{"last_by_subj":"s","consistency":"linearizable","read_info":true}'
        for node in (leader, follower):
            head, payload, _ = await timed(cluster, node, GET, body)
            assert payload == b"2" and fields(head)["Nats-Applied-Sequence"] == "3"
            assert fields(head)["Nats-Answered-As"] == ("leader" if node is leader else "follower")
            assert fields(head)["Nats-Staleness"].endswith(("ms", "µs", "0s"))
        cluster.isolate(follower.name)
        await leader.publish(b"s", b"later")
        head, payload, _ = await timed(cluster, follower, GET, b'{"last_by_subj":"s","consistency":"eventual"}')
        assert payload == b"2", "as it is"
        head, _, seconds = await timed(cluster, follower, GET, body)
        assert head.startswith(b"NATS/1.0 503 No Leader\r\n") and fields(head)["Nats-Applied-Sequence"] == "3"
        assert seconds < MAX_SECONDS + 0.1
        cluster.heal()
        await cluster.equal("S")
        assert (await timed(cluster, other, GET, body))[1] == b"later"


@virtual_time
async def test_a_bound_of_the_age_asks_a_leader_only_when_the_last_proof_is_older() -> None:
    async with Cluster() as cluster:
        leader, follower, _ = await stream(cluster)
        body = b'{"last_by_subj":"s","max_staleness":2000000000,"read_info":true}'
        head, payload, _ = await timed(cluster, follower, GET, body)
        assert payload == b"2"
        cluster.isolate(follower.name)
        await leader.publish(b"s", b"later")
        head, payload, seconds = await timed(cluster, follower, GET, body)
        assert payload == b"2" and seconds < 0.1, "younger than two seconds"
        await asyncio.sleep(2.1)
        head, _, _ = await timed(cluster, follower, GET, body)
        assert head.startswith(b"NATS/1.0 503 No Leader\r\n"), head
        cluster.heal()
        await cluster.equal("S")
        assert (await timed(cluster, follower, GET, body))[1] == b"later"


@virtual_time
async def test_the_age_counts_when_the_answer_is_made_and_not_before_it_waits_for_a_sequence() -> None:
    async with Cluster() as cluster:
        leader, follower, _ = await stream(cluster)
        await timed(cluster, follower, GET, b'{"last_by_subj":"s","consistency":"linearizable"}')
        body = b'{"last_by_subj":"s","max_staleness":300000000,"min_last_seq":4,"read_info":true}'
        waiting = asyncio.create_task(timed(cluster, follower, GET, body))
        await asyncio.sleep(0.8)
        await leader.publish(b"s", b"later")
        head, payload, _ = await waiting
        assert payload == b"later"
        age = durations.parse(fields(head)["Nats-Staleness"].encode())
        assert age is not None and age < 300_000_000, "no older than was asked for"


@virtual_time
async def test_the_age_that_is_told_is_not_older_than_the_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 21000149: one look at the clock found the proof young enough, and the next one, for the answer, did not."""
    async with Cluster() as cluster:
        _, follower, _ = await stream(cluster)
        await timed(cluster, follower, GET, b'{"last_by_subj":"s","consistency":"linearizable"}')
        ages = iter([0.0600, 0.0499, 0.0501, 0.0501, 0.0010])
        own = follower.replica("S").reads.own.demands.ages[0]
        monkeypatch.setattr(own.asked, "since", lambda _: next(ages))
        body = b'{"last_by_subj":"s","max_staleness":50000000,"read_info":true}'
        head, payload, _ = await timed(cluster, follower, GET, body)
        assert payload == b"2" and fields(head)["Nats-Staleness"] == "1ms", head


@virtual_time
async def test_msg_get_proves_that_its_leader_leads_after_it_has_waited_for_a_sequence() -> None:
    async with ApiCluster() as cluster:
        leader, follower, _ = await stream(cluster)
        body = b'{"last_by_subj":"s","min_last_seq":4,"read_info":true}'
        waiting = asyncio.create_task(timed(cluster, follower, b"$JS.API.STREAM.MSG.GET.S", body))
        await asyncio.sleep(0.6)
        await leader.publish(b"s", b"later")
        answer = json.loads((await waiting)[1])
        assert (answer["message"]["seq"], answer["freshness"]["applied_seq"]) == (4, 4)
        assert 0 < answer["freshness"]["staleness"] < 300_000_000, "of the proof, which came after the wait"


@virtual_time
async def test_the_leaders_own_subject() -> None:
    async with Cluster("ABCD") as cluster:
        leader, _, _ = await stream(cluster)
        for node in cluster:
            head, payload, _ = await timed(cluster, node, b"$JS.API.DIRECT_LEADER.GET.S", b'{"seq":2,"read_info":true}')
            assert payload == b"1" and fields(head)["Nats-Answered-By"] == leader.name
            assert (await node.request(b"$JS.API.DIRECT_LEADER.GET.S.s"))[2] == b"2"
        assert leader.replica("S").group.transfer()
        await cluster.until(lambda: not leader.replica("S").leading, what="another leader")
        await cluster.led("S")
        await asyncio.sleep(1.0)
        head, _, _ = await timed(cluster, leader, b"$JS.API.DIRECT_LEADER.GET.S", b'{"seq":2,"read_info":true}')
        assert fields(head)["Nats-Answered-By"] == cluster.leader("S").name != leader.name
        await cluster.update("S", allow_direct=False)
        await asyncio.sleep(1.0)
        with pytest.raises(NoRespondersError):
            await leader.request(b"$JS.API.DIRECT_LEADER.GET.S", b'{"seq":2}')


@virtual_time
async def test_a_mirror_keeps_wishes_for_its_upstream() -> None:
    async with ApiCluster("ABCDE") as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        home = cluster.leader("UP")
        readers = [node for node in without(cluster, "UP") if node.has("M")]
        await cluster.until(lambda: all(answers(node) for node in readers), what="all answer")
        up, reader = b"$JS.API.DIRECT.GET.UP", readers[0]
        head, payload, _ = await timed(cluster, reader, up, b'{"seq":5,"consistency":"linearizable","read_info":true}')
        assert payload == b"4" and fields(head)["Nats-Answered-As"] == "mirror"
        cluster.crash(home.name)
        await reader.request(up + b".up")  # finds that nobody leads it
        for body in (
            b'{"min_last_seq":5}',
            b'{"consistency":"eventual"}',
            b'{"consistency":"session"}',
            b'{"max_staleness":60000000000}',
        ):
            head, payload, seconds = await timed(cluster, reader, up + b".up", body)
            assert payload == b"4" and seconds < 0.2, (body, head)
        for body, status in (
            (b'{"min_last_seq":6}', b"503 Min Last Sequence"),
            (b'{"consistency":"linearizable"}', b"503 No Leader"),
            (b'{"max_staleness":1}', b"503 No Leader"),
        ):
            head, payload, seconds = await timed(cluster, reader, up + b".up", body)
            assert head.startswith(b"NATS/1.0 " + status) and fields(head)["Nats-Applied-Sequence"] == "5", (body, head)
            assert seconds < MAX_SECONDS + 0.1


@virtual_time
async def test_a_mirror_knows_its_age_when_its_upstream_dies() -> None:
    """In the same cluster, and although nobody had asked for an age."""
    async with ApiCluster("ABCDE") as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        home = cluster.leader("UP")
        readers = [node for node in without(cluster, "UP") if node.has("M")]
        await cluster.until(lambda: all(answers(node) for node in readers), what="all answer")
        await asyncio.sleep(3.0)
        cluster.crash(home.name)
        await asyncio.sleep(1.0)
        up = b"$JS.API.DIRECT.GET.UP.up"
        for reader in readers:
            wanted = b'{"max_staleness":60000000000,"read_info":true}'
            head, payload, seconds = await timed(cluster, reader, up, wanted)
            assert payload == b"4" and seconds < 0.01
            assert fields(head)["Nats-Staleness"] != "unknown"
            head, _, seconds = await timed(cluster, reader, up, b'{"max_staleness":900000000}')
            assert head.startswith(b"NATS/1.0 503 No Leader") and seconds < MAX_SECONDS + 0.1


@virtual_time
async def test_a_mirror_does_not_wait_for_messages_that_its_upstream_removed_again() -> None:
    async with ApiCluster("ABCDE") as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        readers = [node for node in without(cluster, "UP") if node.has("M")]
        await cluster.until(lambda: all(answers(node) for node in readers), what="all answer")
        cluster.leader("M").replica("M").mirrors.links.end()
        home = cluster.leader("UP")
        for _ in range(2):
            ack = await home.publish(b"up", b"removed")
            await home.request(b"$JS.API.STREAM.MSG.DELETE.UP", b'{"seq":%d}' % ack["seq"])
        assert ack["seq"] == 7
        for reader in readers:
            for body in (b'{"read_info":true}', b'{"consistency":"linearizable","read_info":true}'):
                head, payload, seconds = await timed(cluster, reader, b"$JS.API.DIRECT.GET.UP.up", body)
                assert payload == b"4" and seconds < 0.1, head
                assert fields(head)["Nats-Answered-By"] == reader.name and answers(reader)
        assert (await home.publish(b"up", b"kept"))["seq"] == 8
        head, payload, _ = await timed(cluster, readers[0], b"$JS.API.DIRECT.GET.UP.up", b'{"read_info":true}')
        assert payload == b"kept", "by another member: the mirror lacks it"


@virtual_time
async def test_a_session_follows_its_connection_to_any_node() -> None:
    """The client's node has no replica, and one of the replicas is late."""
    async with Cluster("ABCD") as cluster:
        leader, late, _ = await stream(cluster)
        (client,) = [node for node in cluster if not node.has("S")]
        cluster.network.link(leader.me, late.me).delay = 0.1
        served: set[str] = set()
        for number in range(1, 41):
            ack = await client.publish(b"s", b"%d" % number)
            body = b'{"seq":%d,"consistency":"session","read_info":true}' % ack["seq"]
            _, head, payload = await client.request(GET, body, 5.0)
            assert payload == b"%d" % number, head
            served.add(fields(head)["Nats-Answered-By"])
        assert late.name in served


@virtual_time
async def test_a_token_holds_for_another_connection_at_another_node() -> None:
    async with Cluster("ABCD") as cluster:
        leader, late, other = await stream(cluster)
        cluster.network.link(leader.me, late.me).delay = 0.1
        for number in range(1, 11):
            ack = await leader.publish(b"s", b"%d" % number)
            for reader in (late, other):
                headers = block(f"Nats-Min-Last-Sequence: {ack['seq']}")
                assert (await reader.request(GET + b".s", b"", 5.0, headers))[2] == b"%d" % number


@virtual_time
async def test_sequences_that_never_come_leave_nothing_behind() -> None:
    async with Cluster() as cluster:
        _, follower, _ = await stream(cluster)
        waits = follower.replica("S").reads.own.demands.sequences
        asked = 0
        for _ in range(60):  # some wait at any moment
            for _ in range(20):
                asked += 1
                follower.bus.ask(GET, b'{"seq":1,"min_last_seq":%d}' % (10**9 + asked), b"_INBOX.nobody")
            await asyncio.sleep(0.1)
        assert len(waits.waiting) <= 2 * 20 * 12
        await asyncio.sleep(2 * demands.SEQUENCE_SECONDS)
        assert not waits.waiting
        refused: list[int] = []
        for number in range(MAX_WAITING + 5):
            if not waits.hold(10**9 + number, lambda: None, lambda: None):
                refused.append(number)
        assert len(waits.waiting) == MAX_WAITING and len(refused) == 5


def test_waits_for_sequences_share_one_timer() -> None:
    class Timers(ManualTime):
        waiting = 0

        def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any:
            self.waiting += 1

            def run() -> None:
                self.waiting -= 1
                callback(*args)

            return super().call_later(delay, run)

    time, log = Timers(), []
    waits = demands.SequenceWaits(around(time, time))
    for number in range(1, 100):
        waits.hold(number, lambda number=number: log.append(number), lambda: log.append(0))
        waits.reached(number)
    assert log == list(range(1, 100)) and time.waiting == 1
    log.clear()
    time.advance(0.9 * demands.SEQUENCE_SECONDS)
    waits.hold(100, lambda: log.append(100), lambda: log.append(0))
    time.advance(0.9 * demands.SEQUENCE_SECONDS)
    assert not log and time.waiting == 1
    time.advance(0.2 * demands.SEQUENCE_SECONDS)
    assert log == [0] and time.waiting == 0
    waits.hold(100, lambda: log.append(100), lambda: log.append(1))
    waits.clear()
    time.advance(demands.SEQUENCE_SECONDS)
    assert log == [0, 1] and time.waiting == 1, "the timer was cancelled"


@virtual_time
async def test_a_session_that_its_node_forgot_is_kept_with_the_leaders_word() -> None:
    """A connection that was told of more streams than are remembered."""
    async with Cluster("ABCD") as cluster:
        leader, late, other = await stream(cluster)
        (client,) = [node for node in cluster if not node.has("S")]
        cluster.network.link(leader.me, late.me).delay = 0.1
        for number in range(1, 21):
            ack = await client.publish(b"s", b"%d" % number)
            taken = client.bus.subscribe(b"_INBOX.others", lambda *_: None)
            client.bus.publish_many([(b"_INBOX.others", b'{"stream":"T%d","seq":1}' % n) for n in range(40)])
            client.bus.unsubscribe(taken)
            _, head, payload = await client.request(GET, b'{"seq":%d,"consistency":"session"}' % ack["seq"], 5.0)
            assert payload == b"%d" % number, head
        assert late.replica("S").reads.answers.answered or other.replica("S").reads.answers.answered


@virtual_time
async def test_a_session_goes_on_with_a_stream_that_was_made_anew() -> None:
    """Its connection was told of more messages of the stream of this name that was deleted a moment ago."""
    async with Cluster("ABCD") as cluster:
        await stream(cluster)
        (client,) = [node for node in cluster if not node.has("S")]
        for _ in range(5):
            await client.publish(b"s", b"old")
        await cluster.delete("S")
        await cluster.create("S", 3, subjects=["s"], allow_direct=True)
        (client,) = [node for node in cluster if not node.has("S")]
        await cluster.led("S")
        assert (await client.publish(b"s", b"new"))["seq"] == 1
        for _ in range(10):
            head, payload, seconds = await timed(cluster, client, GET, b'{"seq":1,"consistency":"session"}')
            assert payload == b"new" and seconds < 0.5, head


@virtual_time
@pytest.mark.parametrize(("padding", "times"), [(0, 1), (2000, 3)])
async def test_a_request_with_wishes_is_decoded_once(padding: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is so long that it is not kept."""
    async with Cluster() as cluster:
        _, follower, _ = await stream(cluster)
        decoded, inner = 0, GetRequest.decode

        def decode(payload: bytes) -> GetRequest:
            nonlocal decoded
            decoded += 1
            return inner(payload)

        monkeypatch.setattr(GetRequest, "decode", decode)
        body = b'{"seq":3,"min_last_seq":2,"consistency":"session","read_info":true}'
        assert (await follower.request(GET, body + b" " * padding))[2] == b"2"
        assert decoded == times


@virtual_time
async def test_a_mirror_of_a_strong_stream_asks_its_leader_also_for_messages_that_it_has() -> None:
    async with ApiCluster("ABCDE") as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        await cluster.update("UP", read_consistency="strong")
        home = cluster.leader("UP")
        reader = next(node for node in without(cluster, "UP") if node.has("M"))
        await cluster.until(lambda: answers(reader), what="it answers")
        up, info = b"$JS.API.DIRECT.GET.UP", block("Nats-Read-Info: true")
        for headers in (b"", info):
            head, payload, _ = await timed(cluster, reader, up, b'{"seq":2}', headers=headers)
            assert payload == b"1", head
        cluster.crash(home.name)
        for headers in (b"", info):
            head, _, _ = await timed(cluster, reader, up, b'{"seq":2}', headers=headers)
            assert head.startswith(b"NATS/1.0 503"), head


async def elsewhere(cluster: Cluster) -> tuple[Node, Node]:
    """(the only replica that answers S, a client's node without a replica)"""
    reader, *others = await stream(cluster)
    for node in others:
        node.replica("S").reads.stop()
    (client,) = [node for node in cluster if not node.has("S")]
    await asyncio.sleep(0.1)
    return reader, client


@virtual_time
@pytest.mark.parametrize("end", ["abort at once", "abort later", "error"])
async def test_a_session_that_is_asked_for_is_refused_when_that_ends(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster("ABCD") as cluster:
        reader, client = await elsewhere(cluster)
        own = reader.replica("S").reads.own
        asked: list[int] = []

        async def tell(stream: OwnStream, reads: list[Read]) -> None:
            asked.append(len(reads))
            if end == "error":
                raise RuntimeError("a defect")
            await asyncio.sleep(9.0)

        def knows_all_told(stream: OwnStream, origin: Origin) -> bool:
            if end == "abort at once":
                asyncio.get_running_loop().call_soon(own.abort)
            return False

        monkeypatch.setattr(OwnStream, "tell", tell)
        monkeypatch.setattr(OwnStream, "knows_all_told", knows_all_told)
        monkeypatch.setattr(OwnStream, "provable", False)
        asking = asyncio.create_task(timed(cluster, client, GET, b'{"seq":1,"consistency":"session"}'))
        await asyncio.sleep(0.2)
        assert asked == ([] if end == "abort at once" else [1])
        if end == "abort later":
            assert not asking.done()
            own.abort()
        head, _, seconds = await asking
        status = b"503 No Leader" if end == "error" else b"503 Not Caught Up"
        assert head.startswith(b"NATS/1.0 " + status), head
        assert seconds < 0.3
        if end == "error":
            loop: Any = asyncio.get_running_loop()
            assert any("a defect" in failure for failure in loop.failures)
            loop.failures.clear()


@virtual_time
async def test_sessions_that_come_together_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster("ABCD") as cluster:
        reader, client = await elsewhere(cluster)
        calls, inner = 0, reader.mesh.call

        async def call(peer: str, method: str, payload: bytes, timeout: float = 5.0) -> bytes:
            nonlocal calls
            calls += method == confirm.TOLD_METHOD
            return await inner(peer, method, payload, timeout)

        monkeypatch.setattr(reader.mesh, "call", call)
        found = await client.requests(GET, [b'{"seq":1,"consistency":"session"}'] * 300)
        assert {payload for _, _, payload in found} == {b"0"}
        assert 1 <= calls <= 9
