"""Work queues and interest retention."""

from __future__ import annotations

import asyncio

import pytest

from testkit.consumer_client import MILLISECOND, SECOND, Inbox, Jet
from testkit.harness import eventually

pytestmark = pytest.mark.cluster

workqueue = pytest.mark.stream(retention="workqueue")
interest = pytest.mark.stream(retention="interest")


async def messages(jet: Jet) -> int:
    return (await jet.client.api(f"STREAM.INFO.{jet.stream}"))["state"]["messages"]


async def left(jet: Jet, count: int) -> None:
    async def so_many() -> bool:
        return await messages(jet) == count

    await eventually(so_many, 3, f"not {count} messages left but {await messages(jet)}")


async def create(jet: Jet, name: str, **config: object) -> int:
    """err_code of the answer, 0 for success."""
    body = jet.request({"durable_name": name, **config})
    reply = await jet.ask(f"CONSUMER.CREATE.{jet.stream}.{name}", body)
    return reply.get("error", {}).get("err_code", 0)


@workqueue
async def test_work_queue_rules(jet: Jet) -> None:
    p = jet.prefix
    assert await create(jet, "N", ack_policy="none") == 10084
    assert await create(jet, "N", ack_policy="all") == 10098
    assert await create(jet, "N", ack_policy="none", deliver_subject="d.x") == 10098
    assert await create(jet, "N", deliver_policy="new") == 10101
    assert await create(jet, "A", filter_subject=f"{p}.a.*") == 0
    assert await create(jet, "B", filter_subjects=[f"{p}.b", f"{p}.c"]) == 0
    assert await create(jet, "N") == 10099
    assert await create(jet, "N", filter_subject=f"{p}.a.1") == 10100
    assert await create(jet, "N", filter_subjects=[f"{p}.z", f"{p}.a.>"]) == 10100
    if jet.ours:  # an update as well; nats-server looks at the consumer's first filter only
        assert await create(jet, "B", filter_subjects=[f"{p}.b", f"{p}.a.x"]) == 10100
    assert await create(jet, "B", filter_subjects=[f"{p}.b", f"{p}.d"]) == 0
    assert await create(jet, "C", filter_subject=f"{p}.c") == 0


@workqueue
async def test_two_consumers_of_everything(jet: Jet) -> None:
    assert await create(jet, "A") == 0
    assert await create(jet, "N") == 10099
    assert await create(jet, "N", filter_subject=f"{jet.prefix}.a") == 10100


@workqueue
async def test_a_work_queue_forgets_what_is_acked(jet: Jet) -> None:
    await jet.publish(b"1", b"2", b"3")  # stored although nobody wants them yet
    assert await messages(jet) == 3
    await jet.consumer("C", ack_wait=500 * MILLISECOND)
    first, second, third = await jet.fetch("C", 3)
    assert await messages(jet) == 3
    await jet.ack(second)
    await left(jet, 2)
    await jet.ack(third, b"+TERM")
    await left(jet, 1)
    await asyncio.sleep(0.6)
    [again] = await jet.fetch("C")
    assert again.data == b"1"
    await jet.ack(again)
    await left(jet, 0)
    assert (await jet.counters("C"))[4] == 0
    assert first.data == b"1"


@workqueue
async def test_filters_share_a_work_queue(jet: Jet) -> None:
    await create(jet, "A", filter_subject=f"{jet.prefix}.a")
    await create(jet, "B", filter_subject=f"{jet.prefix}.b")
    await jet.publish(b"1", b"2", subject="a")
    await jet.publish(b"3", subject="b")
    await jet.publish(b"4", subject="nobody")
    for message in await jet.fetch("A", 2):
        await jet.ack(message)
    await left(jet, 2)
    [message] = await jet.fetch("B")
    await jet.ack(message)
    await left(jet, 1)
    await create(jet, "C", filter_subject=f"{jet.prefix}.nobody")
    [message] = await jet.fetch("C")
    await jet.ack(message)
    await left(jet, 0)


@workqueue
async def test_a_deleted_consumer_leaves_the_work_to_the_next(jet: Jet) -> None:
    await create(jet, "A")
    await jet.publish(b"1", b"2")
    [first, _] = await jet.fetch("A", 2)
    await jet.ack(first)
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.A")
    await left(jet, 1)
    await create(jet, "B")
    assert [m.data for m in await jet.fetch("B")] == [b"2"]


@interest
async def test_nothing_is_kept_that_nobody_wants(jet: Jet) -> None:
    reply = (await jet.client.request(f"{jet.prefix}.a", b"1")).json()
    assert (reply["stream"], reply["seq"]) == (jet.stream, 1)
    assert await messages(jet) == 0
    await create(jet, "A", filter_subject=f"{jet.prefix}.a")
    await jet.publish(b"2", subject="a")
    await jet.publish(b"3", subject="b")
    assert await messages(jet) == 1
    [message] = await jet.fetch("A")
    assert message.data == b"2"
    await jet.ack(message)
    await left(jet, 0)
    assert (await jet.client.api(f"STREAM.INFO.{jet.stream}"))["state"]["last_seq"] == 3


@interest
async def test_everybody_has_to_ack(jet: Jet) -> None:
    await create(jet, "A")
    await create(jet, "B", filter_subject=f"{jet.prefix}.>")
    await create(jet, "C", filter_subject=f"{jet.prefix}.c", ack_policy="all")
    await jet.publish(b"1", b"2", subject="a")
    await jet.publish(b"3", subject="c")
    for message in await jet.fetch("A", 3):
        await jet.ack(message)
    assert await messages(jet) == 3
    of_b = await jet.fetch("B", 3)
    await jet.ack(of_b[1])
    await left(jet, 2)
    await jet.ack(of_b[0])
    await jet.ack(of_b[2])
    await left(jet, 1)
    [message] = await jet.fetch("C")
    await jet.ack(message)
    await left(jet, 0)


@interest
async def test_without_acks_delivery_is_enough(jet: Jet) -> None:
    inbox = Inbox(jet.client)
    await create(jet, "P", deliver_subject=inbox.subject, ack_policy="none")
    await jet.publish(b"1", b"2")
    await inbox.take(2)
    await left(jet, 0)


@interest
async def test_a_new_consumer_sees_what_is_still_there(jet: Jet) -> None:
    await create(jet, "A")
    await jet.publish(b"1", b"2")
    first, _ = await jet.fetch("A", 2)
    await jet.ack(first)
    await left(jet, 1)
    await create(jet, "B")
    assert [m.data for m in await jet.fetch("B")] == [b"2"]


@interest
async def test_deleting_the_last_who_wants_them_removes_messages(jet: Jet) -> None:
    await create(jet, "A", filter_subject=f"{jet.prefix}.a")
    await create(jet, "B")
    await jet.publish(b"1", subject="a")
    await jet.publish(b"2", subject="b")
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.B")
    await left(jet, 1)
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.A")
    await left(jet, 0)


@interest
async def test_max_deliver_keeps_the_message(jet: Jet) -> None:
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{jet.stream}.A")
    await create(jet, "A", max_deliver=1, ack_wait=200 * MILLISECOND)
    await jet.publish(b"1")
    await jet.fetch("A")
    if not jet.ours:  # nats-server tells it when the next pull comes
        await asyncio.sleep(0.3)
        jet.pull("A", {"batch": 1, "expires": SECOND})
    await told.one()
    assert await messages(jet) == 1
