"""Acknowledgements and redelivery, with the counters of CONSUMER.INFO."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from testkit.client import ClientError
from testkit.consumer_client import MILLISECOND, SECOND, Inbox, Jet, ack_fields
from testkit.harness import eventually

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("word", [b"", b"+ACK", b"+OK"])
async def test_ack(jet: Jet, word: bytes) -> None:
    await jet.consumer("C")
    await jet.publish(b"1", b"2", b"3")
    first, second, _ = await jet.fetch("C", 3)
    answer = await jet.ack(second, word)
    assert (answer.header, answer.data, answer.reply) == (b"", b"", b"")
    assert await jet.counters("C") == (3, 3, 0, 0, 2, 0, 0)
    await jet.ack(first, word)
    assert await jet.counters("C") == (3, 3, 2, 2, 1, 0, 0)
    await jet.ack(second, word)  # once more: confirmed, nothing changes
    assert await jet.counters("C") == (3, 3, 2, 2, 1, 0, 0)


async def test_ack_all(jet: Jet) -> None:
    await jet.consumer("C", ack_policy="all")
    await jet.publish(*(b"%d" % n for n in range(5)))
    messages = await jet.fetch("C", 5)
    await jet.ack(messages[2])
    assert await jet.counters("C") == (5, 5, 3, 3, 2, 0, 0)
    await jet.ack(messages[0])
    assert await jet.counters("C") == (5, 5, 3, 3, 2, 0, 0)
    await jet.ack(messages[4])
    assert await jet.counters("C") == (5, 5, 5, 5, 0, 0, 0)


async def test_ack_none(jet: Jet) -> None:
    await jet.consumer("C", ack_policy="none")
    await jet.publish(b"1", b"2")
    first, _ = await jet.fetch("C", 2)
    assert await jet.counters("C") == (2, 2, 2, 2, 0, 0, 0)
    with pytest.raises(ClientError, match="503"):  # U9: nobody listens for acks
        await jet.ack(first)
    unknown = first.reply.decode().replace(".C.", ".NONE.")
    assert (await jet.client.request(unknown, b"+ACK")).status == 503


async def test_nak(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1", b"2")
    first, second = await jet.fetch("C", 2)
    assert (await jet.ack(first, b"-NAK")).data == b""
    [again] = await jet.fetch("C")
    assert (again.data, ack_fields(again)) == (b"1", (2, 1, 3, 0))  # U8: a redelivery takes a number of its own
    assert await jet.counters("C") == (3, 2, 0, 0, 2, 1, 0)
    await jet.ack(again)
    await jet.ack(second)
    counters = await jet.counters("C")
    assert counters == (3, 2, counters[2], 2, 0, 0, 0)


@pytest.mark.parametrize("word", [b'-NAK {"delay":700000000}', b"-NAK 700ms"])
async def test_nak_with_delay(jet: Jet, word: bytes) -> None:
    await jet.consumer("C")
    await jet.publish(b"1", b"2")
    [first] = await jet.fetch("C")
    start = time.monotonic()
    await jet.ack(first, word)
    [second, again] = await jet.fetch("C", 2)
    assert 0.5 < time.monotonic() - start < 2.0
    assert [m.data for m in (second, again)] == [b"2", b"1"]


async def test_bad_delays_are_plain_naks(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1")
    [message] = await jet.fetch("C")
    for delay in (b"soon", b'{"delay":"x"}', b"{"):
        await jet.ack(message, b"-NAK " + delay)
        [message] = await jet.fetch("C", within=2.0)


@pytest.mark.parametrize("word", [b"+WPI", b"-WPI"])
async def test_work_in_progress(jet: Jet, word: bytes) -> None:
    if word == b"-WPI" and not jet.ours:
        pytest.skip("nats-server does not know the seeds' spelling")
    await jet.consumer("C", ack_wait=600 * MILLISECOND)
    await jet.publish(b"1")
    [message] = await jet.fetch("C")
    start = time.monotonic()
    inbox = jet.pull("C", {"batch": 1, "expires": 20 * SECOND})
    for _ in range(3):
        await asyncio.sleep(0.25)
        assert (await jet.ack(message, word)).data == b""
    assert not inbox.messages
    assert ack_fields(await inbox.one())[0] == 2
    assert 1.2 < time.monotonic() - start < 3.0


@pytest.mark.parametrize("word", [b"+NXT", b"-NXT"])
async def test_next(jet: Jet, word: bytes) -> None:
    """An ack that is a pull too: its reply is the next message."""
    if word == b"-NXT" and not jet.ours:
        pytest.skip("nats-server does not know the seeds' spelling")
    await jet.consumer("C")
    await jet.publish(*(b"%d" % n for n in range(6)))
    [message] = await jet.fetch("C")
    for body, numbers in ((b"", [2]), (b" 2", [3, 4]), (b' {"batch":2,"expires":1000000000}', [5, 6])):
        inbox = Inbox(jet.client)
        jet.client.publish(message.reply.decode(), word + body, inbox.subject.encode())
        messages = await inbox.take(len(numbers))
        assert [ack_fields(m)[:3] for m in messages] == [(1, n, n) for n in numbers]
        if jet.ours:  # nats-server's count can be wrong for a moment, seen on R3
            assert [ack_fields(m)[3] for m in messages] == [6 - n for n in numbers]
        message = messages[-1]
    assert await jet.counters("C") == (6, 6, 2, 2, 3, 0, 0)  # 1, 2 and 4 are acked


@pytest.mark.parametrize("word", [b"+TERM", b"-TERM"])
async def test_term(jet: Jet, word: bytes) -> None:
    if word == b"-TERM" and not jet.ours:
        pytest.skip("nats-server does not know the seeds' spelling")
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{jet.stream}.C")
    await jet.consumer("C", ack_wait=300 * MILLISECOND)
    await jet.publish(b"1", b"2")
    first, second = await jet.fetch("C", 2)
    assert (await jet.ack(first, word)).data == b""
    await jet.ack(second, word + b"  not for us ")
    assert await jet.counters("C") == (2, 2, 2, 2, 0, 0, 0)
    await asyncio.sleep(0.5)
    await jet.none_left("C")
    events = [m.json() for m in await told.take(2)]
    assert [event.get("reason") for event in events] == [None, "not for us"]
    event = events[1]
    assert event["type"] == "io.nats.jetstream.advisory.v1.terminated"
    assert [event[k] for k in ("stream", "consumer", "consumer_seq", "stream_seq", "deliveries")] == [
        jet.stream, "C", 2, 2, 1,
    ]  # fmt: skip


async def test_term_counts_as_an_ack_of_all_below(jet: Jet) -> None:
    await jet.consumer("C", ack_policy="all")
    await jet.publish(b"1", b"2", b"3")
    messages = await jet.fetch("C", 3)
    await jet.ack(messages[1], b"+TERM")
    assert await jet.counters("C") == (3, 3, 2, 2, 1, 0, 0)


async def test_other_words_are_answered_and_do_nothing(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1")
    [message] = await jet.fetch("C")
    for word in (b"junk", b"+ACK ", b"ACK", b"+ACKNOWLEDGED"):
        assert (await jet.ack(message, word)).data == b"", word
    assert await jet.counters("C") == (1, 1, 0, 0, 1, 0, 0)


async def test_acks_of_what_was_never_delivered(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1", b"2")
    [message] = await jet.fetch("C")
    beyond = message.reply.decode().split(".")
    beyond[5] = "2"
    with pytest.raises(TimeoutError):
        await jet.client.request(".".join(beyond), b"+ACK", 0.5)
    assert await jet.counters("C") == (1, 1, 0, 0, 1, 0, 1)


async def test_ack_wait_expires_in_order_of_the_stream(jet: Jet) -> None:
    await jet.consumer("C", ack_wait=700 * MILLISECOND)
    await jet.publish(*(b"%d" % n for n in range(4)))
    messages = await jet.fetch("C", 4)
    await jet.ack(messages[1])
    await asyncio.sleep(1.0)
    await jet.publish(b"new")
    again = await jet.fetch("C", 4)
    assert [(ack_fields(m)[0], m.data) for m in again] == [(2, b"0"), (2, b"2"), (2, b"3"), (1, b"new")]
    assert [ack_fields(m)[2] for m in again] == [5, 6, 7, 8]
    assert (await jet.info("C"))["num_redelivered"] == 3


async def test_naks_join_the_end_of_the_queue(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(*(b"%d" % n for n in range(3)))
    messages = await jet.fetch("C", 3)
    for at in (2, 0, 1):
        await jet.ack(messages[at], b"-NAK")
    again = await jet.fetch("C", 3)
    order = [m.data for m in again]
    assert order == [b"2", b"0", b"1"]


async def test_backoff_takes_the_place_of_ack_wait(jet: Jet) -> None:
    created = await jet.consumer("C", backoff=[200 * MILLISECOND, 500 * MILLISECOND], max_deliver=4)
    assert created["config"]["ack_wait"] == 200 * MILLISECOND
    await jet.publish(b"1")
    inbox = jet.pull("C", {"batch": 4, "expires": 20 * SECOND})
    times = []
    for _ in range(4):
        await inbox.one()
        times.append(time.monotonic())
    gaps = [b - a for a, b in itertools.pairwise(times)]
    for gap, wanted in zip(gaps, (0.2, 0.5, 0.5), strict=True):  # the last one repeats
        assert wanted - 0.1 < gap < wanted + 0.7, gaps


async def test_max_deliver(jet: Jet) -> None:
    """The message leaves the pending set, the advisory comes once, the stream keeps it."""
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{jet.stream}.C")
    await jet.consumer("C", ack_wait=300 * MILLISECOND, max_deliver=2)
    await jet.publish(b"1", b"2")
    first = await jet.fetch("C", 2)
    await asyncio.sleep(0.5)
    second = await jet.fetch("C", 2)
    assert [ack_fields(m)[0] for m in first + second] == [1, 1, 2, 2]
    await jet.ack(second[1])
    await asyncio.sleep(0.6)
    if not jet.ours:  # nats-server tells it when the next pull comes; ours at the deadline
        await jet.none_left("C")
    event = (await told.one()).json()
    assert event["type"] == "io.nats.jetstream.advisory.v1.max_deliver"
    assert [event[k] for k in ("stream", "consumer", "stream_seq", "deliveries")] == [jet.stream, "C", 1, 2]
    await jet.none_left("C")
    await told.nothing(0.3)
    if jet.ours:  # nats-server's floor stays behind for ever
        counters = await jet.counters("C")
        assert (counters[3], counters[4], counters[6]) == (2, 0, 0)
    assert (await jet.client.api(f"STREAM.INFO.{jet.stream}"))["state"]["messages"] == 2


async def test_naks_up_to_max_deliver(jet: Jet) -> None:
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{jet.stream}.C")
    naks = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.{jet.stream}.C")
    await jet.consumer("C", max_deliver=2)
    await jet.publish(b"1", b"2")
    for deliveries in (1, 2):
        [message] = await jet.fetch("C")
        assert (message.data, ack_fields(message)[0]) == (b"1", deliveries)
        await jet.ack(message, b"-NAK")
    [message] = await jet.fetch("C")
    assert message.data == b"2"
    assert (await told.one()).json()["stream_seq"] == 1
    events = [m.json() for m in await naks.take(2)]
    assert [(e["stream_seq"], e["deliveries"]) for e in events] == [(1, 1), (1, 2)]
    assert events[0]["type"] == "io.nats.jetstream.advisory.v1.nak"


async def test_redeliveries_do_not_wait_for_max_ack_pending(jet: Jet) -> None:
    await jet.consumer("C", max_ack_pending=2, ack_wait=400 * MILLISECOND)
    await jet.publish(*(b"%d" % n for n in range(4)))
    inbox = jet.pull("C", {"batch": 10, "expires": 20 * SECOND})
    assert [m.data for m in await inbox.take(4)] == [b"0", b"1", b"0", b"1"]


async def test_deleted_and_purged_messages_are_nobodys(jet: Jet) -> None:
    await jet.consumer("C", ack_wait=400 * MILLISECOND)
    await jet.publish(*(b"%d" % n for n in range(6)))
    await jet.fetch("C", 2)
    for seq in (1, 3):
        await jet.client.api(f"STREAM.MSG.DELETE.{jet.stream}", {"seq": seq})
    assert (await jet.info("C"))["num_pending"] == 3
    await asyncio.sleep(0.6)
    assert [m.data for m in await jet.fetch("C", 4)] == [b"1", b"3", b"4", b"5"]
    await jet.client.api(f"STREAM.PURGE.{jet.stream}")

    async def nothing_left() -> bool:
        info = await jet.info("C")
        return info["num_pending"] == 0 and info["num_ack_pending"] == 0

    await eventually(nothing_left, 3, "purged messages are still pending")
    await jet.publish(b"after")
    [message] = await jet.fetch("C")
    assert (message.data, ack_fields(message)[1]) == (b"after", 7)


async def test_ack_samples(jet: Jet) -> None:
    told = Inbox(jet.client, f"$JS.EVENT.METRIC.CONSUMER.ACK.{jet.stream}.C")
    await jet.consumer("C", sample_freq="100%")
    await jet.publish(b"1")
    [message] = await jet.fetch("C")
    await jet.ack(message)
    event = (await told.one()).json()
    assert event["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert [event[k] for k in ("stream", "consumer", "consumer_seq", "stream_seq", "deliveries")] == [
        jet.stream, "C", 1, 1, 1,
    ]  # fmt: skip
    assert 0 < event["ack_time"] < 10 * SECOND


async def test_counters_over_many(jet: Jet) -> None:
    """500 messages fetched 50 at a time, acked one by one, every 10th left out."""
    await jet.consumer("C", ack_wait=60 * SECOND)
    await asyncio.gather(*(jet.client.request(f"{jet.prefix}.n", b"%d" % n) for n in range(500)))
    left = []
    for _ in range(10):
        for message in await jet.fetch("C", 50):
            if ack_fields(message)[1] % 10 == 0:
                left.append(message)
            else:
                jet.ack_soon(message)

    async def settled() -> bool:
        return await jet.counters("C") == (500, 500, 9, 9, 50, 0, 0)

    await eventually(settled, 10, "the counters do not settle")
    for message in left:
        await jet.ack(message)
    assert await jet.counters("C") == (500, 500, 500, 500, 0, 0, 0)
