"""Pull consumers on the wire: every status of nats-server, byte for byte."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from testkit.client import ClientError
from testkit.consumer_client import MILLISECOND, SECOND, Inbox, Jet, ack_fields, shown
from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster


def status(text: str, *headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"NATS/1.0 {text}", *headers, "")).encode()


def pending(messages: int, size: int = 0) -> tuple[str, str]:
    return f"Nats-Pending-Messages: {messages}", f"Nats-Pending-Bytes: {size}"


async def test_bodies_of_a_pull(jet: Jet) -> None:
    """Empty, a number, an object; what is none of these asks for one message."""
    await jet.consumer("C")
    await jet.publish(*(b"%d" % n for n in range(12)))
    inbox = Inbox(jet.client)
    for body, count in ((None, 1), (b"3", 3), ({"batch": 2}, 2), ({"batch": 0}, 1), ({"batch": -4}, 1), (b"junk", 1)):
        jet.pull("C", body, inbox=inbox)
        assert len(await inbox.take(count)) == count, body
    await inbox.nothing(0.2)
    assert (await jet.counters("C"))[:2] == (9, 9)


async def test_a_delivery(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"hello", subject="a.b")
    await jet.publish(b"", subject="b", headers={"Own": "1"})
    while (await jet.info("C"))[
        "num_pending"
    ] != 2:  # the owner, a follower maybe, has what is acknowledged in a moment
        await asyncio.sleep(0.01)
    first, second = await jet.fetch("C", 2)
    assert (first.subject, first.header, first.data) == (f"{jet.prefix}.a.b".encode(), b"", b"hello")
    assert re.fullmatch(rb"\$JS\.ACK\.%b\.C\.1\.1\.1\.\d{19}\.1" % jet.stream.encode(), first.reply)
    assert (second.header, second.data) == (b"NATS/1.0\r\nOwn: 1\r\n\r\n", b"")
    assert ack_fields(second) == (1, 2, 2, 0)


async def test_bad_requests(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1")
    inbox = jet.pull("C", b"{x")
    assert (await inbox.one()).header.startswith(b"NATS/1.0 400 Bad Request - invalid character 'x' looking for")
    for body, text in (
        ({"batch": 1, "expires": SECOND, "idle_heartbeat": 600 * MILLISECOND}, "heartbeat value too large"),
        ({"min_pending": 1}, "Not a Overflow Priority consumer"),
        ({"min_ack_pending": 1}, "Not a Overflow Priority consumer"),
        ({"id": "x"}, "Not a Pinned Client Priority consumer"),
    ):
        jet.pull("C", body, inbox=inbox)
        assert (await inbox.one()).header == status(f"400 Bad Request - {text}"), body
    await inbox.nothing(0.1)
    assert await jet.counters("C") == (0, 0, 0, 0, 0, 0, 1)


async def test_no_messages(jet: Jet) -> None:
    await jet.consumer("C")
    found, end = await jet.pull("C", {"batch": 5, "no_wait": True}).until_status()
    assert (shown(found), end.header) == ([], status("404 No Messages"))
    await jet.publish(b"1", b"2")
    messages = await jet.pull("C", {"batch": 5, "no_wait": True}).take(3)
    # nats-server ends a pull that was served with 404 or, when replicated, with 408, which can overtake.
    *found, end = messages if jet.ours else sorted(messages, key=lambda m: m.status)
    assert [m.data for m in found] == [b"1", b"2"]
    assert end.header == status("404 No Messages") or (
        not jet.ours and end.header.startswith(b"NATS/1.0 408 Request Timeout\r\n")
    )


async def test_no_wait_with_expires_waits_for_the_first_message(jet: Jet) -> None:
    await jet.consumer("C")
    inbox = jet.pull("C", {"batch": 5, "no_wait": True, "expires": 3 * SECOND})
    await inbox.nothing(0.2)
    await jet.publish(b"1")
    assert (await inbox.one()).data == b"1"
    _, end = await jet.pull("C", {"batch": 5, "no_wait": True, "expires": 200 * MILLISECOND}).until_status()
    assert end.header == status("408 Request Timeout", *pending(5))


async def test_no_wait_stalled_by_max_ack_pending_ends_with_the_first_heartbeat(jet: Jet) -> None:
    await jet.consumer("C", max_ack_pending=2)
    await jet.publish(*(b"%d" % n for n in range(5)))
    body = {"batch": 5, "no_wait": True, "expires": 3 * SECOND, "idle_heartbeat": 200 * MILLISECOND}
    began = time.monotonic()
    inbox = jet.pull("C", body)
    found, end = await inbox.until_status()
    assert [m.data for m in found] == [b"0", b"1"] and end.header == status("404 No Messages")
    assert time.monotonic() - began < 2.0
    for message in found:
        await jet.ack(message)
    await inbox.nothing(0.2)
    assert (await jet.info("C")).get("num_waiting", 0) == 0


async def test_request_timeout(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1")
    inbox = jet.pull("C", {"batch": 3, "expires": 300 * MILLISECOND})
    found, end = await inbox.until_status()
    assert [m.data for m in found] == [b"1"]
    assert end.header == status("408 Request Timeout", *pending(2))
    assert (end.subject, end.reply, end.data) == (inbox.subject.encode(), b"", b"")
    await jet.publish(b"2")
    await inbox.nothing(0.2)
    assert (await jet.info("C"))["num_waiting"] == 0


async def test_idle_heartbeats(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"1", b"2")
    await jet.fetch("C", 2)
    body = {"batch": 2, "expires": SECOND, "idle_heartbeat": 150 * MILLISECOND}
    inbox = jet.pull("C", body)
    beat = status("100 Idle Heartbeat", "Nats-Last-Consumer: 2", "Nats-Last-Stream: 2")
    assert [m.header for m in await inbox.take(3)] == [beat] * 3
    assert (await inbox.until_status())[1].header == status("408 Request Timeout", *pending(2))


async def test_max_bytes(jet: Jet) -> None:
    """The size of a message is that of subject, ack reply, headers and payload."""
    await jet.consumer("C")
    await jet.publish(b"x" * 100, b"y" * 100)
    inbox = jet.pull("C", {"batch": 2, "max_bytes": 5, "expires": SECOND})
    found, end = await inbox.until_status()
    assert (shown(found), end.header) == ([], status("409 Message Size Exceeds MaxBytes", *pending(2, 5)))
    assert await jet.counters("C") == (0, 0, 0, 0, 0, 0, 2)
    # Room for one: its size is known once it came.
    room = 250
    inbox = jet.pull("C", {"batch": 2, "max_bytes": room, "expires": SECOND})
    both = await inbox.take(2)
    # nats-server's status can overtake messages that wait for a quorum. Ours keeps the order.
    assert not jet.ours or both[1].status == 409
    message, last = sorted(both, key=lambda m: m.status)
    left = room - len(message.subject) - len(message.reply) - 100
    assert 0 < left < 100
    assert last.header == status("409 Message Size Exceeds MaxBytes", *pending(1, left))


async def test_batch_completed_with_bytes_left(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(b"x" * 100)
    inbox = jet.pull("C", {"batch": 1, "max_bytes": 1000, "expires": SECOND})
    both = await inbox.take(2)
    assert not jet.ours or both[1].status == 409
    message, end = sorted(both, key=lambda m: m.status)
    left = 1000 - len(message.subject) - len(message.reply) - 100
    assert end.header == status("409 Batch Completed", *pending(0, left))


async def test_limits_of_the_consumer(jet: Jet) -> None:
    await jet.consumer("C", max_batch=2, max_expires=90 * SECOND, max_bytes=100)
    for body, text in (
        ({"batch": 3}, "MaxRequestBatch of 2"),
        ({"expires": 91 * SECOND}, "MaxRequestExpires of 1m30s"),
        ({"max_bytes": 101}, "MaxRequestMaxBytes of 100"),
    ):
        assert (await jet.pull("C", body).one()).header == status(f"409 Exceeded {text}")


async def test_max_waiting(jet: Jet) -> None:
    await jet.consumer("C", max_waiting=2)
    first, second = (jet.pull("C", {"batch": 1, "expires": 5 * SECOND}) for _ in range(2))
    third = jet.pull("C", {"batch": 1, "expires": 5 * SECOND})
    assert (await third.one()).header == status("409 Exceeded MaxWaiting")
    quiet = jet.pull("C", {"batch": 1, "expires": 5 * SECOND, "idle_heartbeat": SECOND})
    await quiet.nothing(0.3)
    assert (await jet.info("C"))["num_waiting"] == 2
    await jet.publish(b"1", b"2")
    assert [(await inbox.one()).data for inbox in (first, second)] == [b"1", b"2"]


async def test_requests_pending(jet: Jet) -> None:
    """no_wait does not jump the queue."""
    await jet.consumer("C", max_ack_pending=1)
    await jet.publish(b"1", b"2")
    inbox = jet.pull("C", {"batch": 5, "expires": 3 * SECOND})
    await inbox.one()
    other = jet.pull("C", {"batch": 1, "no_wait": True})
    assert (await other.one()).header == status("408 Requests Pending")


async def test_push_consumers_are_not_pulled(jet: Jet) -> None:
    await jet.consumer("P", deliver_subject="deliver.here")
    assert (await jet.pull("P").one()).header == status("409 Consumer is push based")


async def test_consumer_deleted_while_waiting(jet: Jet) -> None:
    await jet.consumer("C")
    inboxes = [jet.pull("C", {"batch": 1, "expires": 20 * SECOND}) for _ in range(2)]

    async def wait() -> bool:
        return (await jet.info("C"))["num_waiting"] == 2

    await eventually(wait, 3, "the pulls do not wait")
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.C")
    for inbox in inboxes:
        assert (await inbox.one()).header == status("409 Consumer Deleted")
    unknown = await jet.pull("C").one()
    assert unknown.header.startswith(b"NATS/1.0 503")


async def test_required_api_level(jet: Jet) -> None:
    await jet.consumer("C")
    inbox = jet.pull("C", {"batch": 1, "expires": SECOND}, headers={"Nats-Required-Api-Level": "99"})
    assert (await inbox.one()).header == status("412 Required Api Level")


async def test_two_clients_take_turns(jet: Jet, shared: ProcessCluster) -> None:
    await jet.consumer("C")
    async with await shared[1].connect() as other:
        there = Inbox(other)
        await other.flush()
        here = jet.pull("C", {"batch": 4, "expires": 10 * SECOND})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{jet.stream}.C"
        other.publish(subject, b'{"batch":4,"expires":10000000000}', there.subject.encode())

        async def wait() -> bool:
            return (await jet.info("C"))["num_waiting"] == 2

        await eventually(wait, 3, "the pulls do not wait")
        await jet.publish(*(b"%d" % n for n in range(8)))
        mine = [m.data for m in await here.take(4)]
        assert mine in ([b"0", b"2", b"4", b"6"], [b"1", b"3", b"5", b"7"])
        assert [m.data for m in await there.take(4)] == sorted({b"%d" % n for n in range(8)} - set(mine))


async def test_a_client_that_went_away_is_not_served(jet: Jet, shared: ProcessCluster) -> None:
    await jet.consumer("C")
    gone = await shared[1].connect()
    box = Inbox(gone)
    await gone.flush()
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{jet.stream}.C"
    gone.publish(subject, b'{"batch":4,"expires":60000000000}', box.subject.encode())
    await gone.flush()

    async def waits(count: int) -> bool:
        return (await jet.info("C"))["num_waiting"] == count

    await eventually(lambda: waits(1), 3, "the pull does not wait")
    gone.close()
    await gone.closed.wait()
    if jet.ours:
        await eventually(lambda: waits(0), 3, "the pull of a client that is gone waits")
    else:
        await asyncio.sleep(2.2)  # it trusts a remote request's interest for 2 s
    await jet.publish(b"1", b"2")
    assert [m.data for m in await jet.fetch("C", 2)] == [b"1", b"2"]
    assert await jet.counters("C") == (2, 2, 0, 0, 2, 0, 0)


async def test_filters_and_pending_counts(jet: Jet) -> None:
    await jet.publish(b"1", b"2", subject="x.1")
    await jet.publish(b"3", subject="y")
    await jet.publish(b"4", subject="z")
    one = await jet.consumer("ONE", filter_subject=f"{jet.prefix}.x.*")
    two = await jet.consumer("TWO", filter_subjects=[f"{jet.prefix}.y", f"{jet.prefix}.x.>"])
    none = await jet.consumer("NONE", filter_subject="elsewhere.>")
    assert (one["num_pending"], two["num_pending"], none["num_pending"]) == (2, 3, 0)
    assert [ack_fields(m)[1:] for m in await jet.fetch("ONE", 2)] == [(1, 1, 1), (2, 2, 0)]
    assert [ack_fields(m)[1:] for m in await jet.fetch("TWO", 3)] == [(1, 1, 2), (2, 2, 1), (3, 3, 0)]
    await jet.none_left("NONE")
    await jet.publish(b"5", subject="x.2")
    assert ack_fields((await jet.fetch("ONE"))[0]) == (1, 5, 3, 0)


async def test_what_two_filters_take_comes_once(jet: Jet) -> None:
    for number, subject in enumerate(("x.1", "x.2", "y.1", "x.1", "y.2")):
        await jet.publish(b"%d" % number, subject=subject)
    filters = [f"{jet.prefix}.x.*", f"{jet.prefix}.*.1"]
    made = await jet.consumer("C", filter_subjects=filters)
    assert made["num_pending"] == 4
    assert [ack_fields(m)[1:] for m in await jet.fetch("C", 4)] == [(1, 1, 3), (2, 2, 2), (3, 3, 1), (4, 4, 0)]
    await jet.none_left("C")
    await jet.publish(b"5", subject="x.1")
    # nats-server has one more pending then: it counts a new message for each filter.
    assert ack_fields((await jet.fetch("C"))[0])[:3] == (1, 6, 5)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"deliver_policy": "all"}, [1, 2, 3, 4, 5]),
        ({"deliver_policy": "last"}, [5]),
        ({"deliver_policy": "last", "filter_subject": "*.x"}, [3]),
        ({"deliver_policy": "new"}, []),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, [4, 5]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 9}, []),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}, [1, 2, 3, 4, 5]),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2090-01-01T00:00:00Z"}, []),
        ({"deliver_policy": "last_per_subject", "filter_subject": "*.>"}, [3, 4, 5]),
    ],
    ids=lambda value: None if isinstance(value, list) else "-".join(str(v) for v in value.values()).replace(":", ""),
)
async def test_deliver_policies(jet: Jet, policy: dict[str, object], expected: list[int]) -> None:
    for n, subject in enumerate(("x", "y", "x", "y", "z")):
        await jet.publish(b"%d" % n, subject=subject)
    created = await jet.consumer("C", **policy)
    assert created["num_pending"] == len(expected)
    start = expected[0] if expected else 6
    assert created["delivered"]["stream_seq"] in {start - 1, 8}
    if expected:
        assert [ack_fields(m)[1] for m in await jet.fetch("C", len(expected))] == expected
    await jet.none_left("C")


async def test_headers_only(jet: Jet) -> None:
    await jet.consumer("C", headers_only=True)
    await jet.publish(b"12345")
    await jet.publish(b"1", headers={"Own": "x"})
    plain, own = await jet.fetch("C", 2)
    assert (plain.header, plain.data) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")
    assert (own.header, own.data) == (b"NATS/1.0\r\nOwn: x\r\nNats-Msg-Size: 1\r\n\r\n", b"")


async def test_overflow_groups(jet: Jet) -> None:
    await jet.consumer("C", priority_groups=["g"], priority_policy="overflow")
    await jet.publish(b"1", b"2", b"3")
    for body, text in (
        ({"batch": 1}, "Priority Group missing"),
        ({"group": "other"}, "Invalid Priority Group"),
    ):
        assert (await jet.pull("C", body).one()).header == status(f"400 Bad Request - {text}")
    if jet.ours:  # U20: nats-server serves a pull with an empty body
        assert (await jet.pull("C").one()).header == status("400 Bad Request - Priority Group missing")
    waits = jet.pull("C", {"group": "g", "batch": 5, "min_pending": 10, "expires": 10 * SECOND})
    await waits.nothing(0.3)
    served = jet.pull("C", {"group": "g", "batch": 1, "min_pending": 3, "expires": SECOND})
    assert (await served.one()).data == b"1"
    much = jet.pull("C", {"group": "g", "batch": 1, "min_ack_pending": 1, "expires": SECOND})
    assert (await much.one()).data == b"2"


async def test_prioritized_groups(jet: Jet) -> None:
    await jet.consumer("C", priority_groups=["g"], priority_policy="prioritized")
    bad = jet.pull("C", {"group": "g", "priority": 10})
    assert (await bad.one()).header == status("400 Bad Request - Priority must be between 0 and 9")
    low = jet.pull("C", {"group": "g", "priority": 5, "batch": 2, "expires": 10 * SECOND})
    high = jet.pull("C", {"group": "g", "priority": 1, "batch": 2, "expires": 10 * SECOND})

    async def wait() -> bool:
        return (await jet.info("C"))["num_waiting"] == 2

    await eventually(wait, 3, "the pulls do not wait")
    await jet.publish(b"1", b"2", b"3")
    assert [m.data for m in await high.take(2)] == [b"1", b"2"]
    assert (await low.one()).data == b"3"


async def test_pinned_clients(jet: Jet) -> None:
    await jet.consumer("C", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=SECOND)
    await jet.publish(b"1", b"2", b"3")
    first = await jet.pull("C", {"group": "g", "batch": 1, "expires": SECOND}).one()
    pin = first.get("Nats-Pin-Id")
    assert pin is not None
    assert re.fullmatch(r"[0-9A-Za-z]{22}", pin)
    assert first.header == f"NATS/1.0\r\nNats-Pin-Id: {pin}\r\n\r\n".encode()
    wrong = jet.pull("C", {"group": "g", "id": "x" * 22, "batch": 1, "expires": SECOND})
    assert (await wrong.one()).header == status("423 Nats-Pin-Id mismatch")
    standby = jet.pull("C", {"group": "g", "batch": 1, "expires": 20 * SECOND})
    second = await jet.pull("C", {"group": "g", "id": pin, "batch": 1, "expires": SECOND}).one()
    assert (second.data, second.get("Nats-Pin-Id")) == (b"2", pin)
    [group] = (await jet.info("C"))["priority_groups"]
    assert (group["group"], group["pinned_client_id"]) == ("g", pin)
    assert group["pinned_ts"].startswith("20")
    third = await standby.one(8.0)  # the pinned client was silent for priority_timeout
    assert third.data == b"3"
    assert third.get("Nats-Pin-Id") not in {None, pin}


async def test_unknown_streams_and_consumers(jet: Jet) -> None:
    for subject in (f"$JS.API.CONSUMER.MSG.NEXT.{jet.stream}.NONE", "$JS.API.CONSUMER.MSG.NEXT.NONE.C"):
        answer = await jet.client.request(subject, b"")
        assert answer.header.startswith(b"NATS/1.0 503\r\n")
    with pytest.raises(ClientError, match="404/10014"):
        await jet.info("NONE")
