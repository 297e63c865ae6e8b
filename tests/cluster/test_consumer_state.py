"""Counters of a consumer and messages of its stream after all that can happen to both: floors, purges, limits,
deletions, changes of retention. The figures are nats-server's."""

from __future__ import annotations

from typing import Any

import pytest

from testkit.consumer_client import Jet
from testkit.harness import eventually

pytestmark = pytest.mark.cluster

interest = pytest.mark.stream(retention="interest")


async def counters(jet: Jet, name: str, *expected: int) -> None:
    """(delivered, floor, ack pending, redelivered, pending) as `Jet.counters` has them, in the end."""

    async def so() -> bool:
        return await jet.counters(name) == expected

    await eventually(so, 3, f"{expected}, not {await jet.counters(name)}")


async def messages(jet: Jet, count: int, first: int, last: int) -> None:
    """The stream's state, in the end."""

    async def state() -> tuple[int, int, int]:
        found = (await jet.client.api(f"STREAM.INFO.{jet.stream}"))["state"]
        return found["messages"], found["first_seq"], found["last_seq"]

    async def so() -> bool:
        return await state() == (count, first, last)

    await eventually(so, 3, f"{(count, first, last)}, not {await state()}")


async def update(jet: Jet, **changes: Any) -> None:
    config = (await jet.client.api(f"STREAM.INFO.{jet.stream}"))["config"]
    await jet.client.api(f"STREAM.UPDATE.{jet.stream}", {**config, **changes})


async def test_floors_of_a_filtered_consumer(jet: Jet) -> None:
    await jet.consumer("C", filter_subject=f"{jet.prefix}.b")
    for subject in "aabbaab":
        await jet.publish(b"x", subject=subject)
    await counters(jet, "C", 0, 0, 0, 0, 0, 0, 3)
    first, second, third = await jet.fetch("C", 3)
    await counters(jet, "C", 3, 7, 0, 0, 3, 0, 0)
    await jet.ack(first)
    await counters(jet, "C", 3, 7, 1, 3, 2, 0, 0)
    await jet.ack(third)
    await counters(jet, "C", 3, 7, 1, 3, 1, 0, 0)
    await jet.ack(second)
    await counters(jet, "C", 3, 7, 3, 7, 0, 0, 0)


async def test_floors_and_redeliveries(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(*[b"x"] * 5)
    first, second, third = await jet.fetch("C", 3)
    await jet.ack(first, b"-NAK")
    [again] = await jet.fetch("C")
    await counters(jet, "C", 4, 3, 0, 0, 3, 1, 2)
    await jet.ack(second)
    await counters(jet, "C", 4, 3, 0, 0, 2, 1, 2)
    await jet.ack(again)
    await counters(jet, "C", 4, 3, 2, 2, 1, 0, 2)
    await jet.fetch("C")
    await jet.ack(third)
    await counters(jet, "C", 5, 4, 4, 3, 1, 0, 1)


async def test_floors_with_ack_all(jet: Jet) -> None:
    await jet.consumer("C", ack_policy="all")
    await jet.publish(*[b"x"] * 6)
    first, _, third, fourth, fifth = await jet.fetch("C", 5)
    await jet.ack(fifth, b"-NAK")
    [again] = await jet.fetch("C")
    await jet.ack(third)
    await counters(jet, "C", 6, 5, 3, 3, 2, 1, 1)
    await jet.ack(first)
    await counters(jet, "C", 6, 5, 3, 3, 2, 1, 1)
    await jet.ack(fourth, b"+TERM")
    await counters(jet, "C", 6, 5, 4, 4, 1, 1, 1)
    await jet.ack(again)
    await counters(jet, "C", 6, 5, 6, 5, 0, 0, 1)


async def test_a_purge_counts_as_delivered_and_acked(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.consumer("D")
    await jet.publish(*[b"x"] * 10)
    found = await jet.fetch("C", 4)
    await jet.ack(found[1])
    await jet.client.api(f"STREAM.PURGE.{jet.stream}", {"seq": 4})
    await counters(jet, "D", 0, 3, 0, 3, 0, 0, 7)
    await counters(jet, "C", 4, 4, 3, 3, 1, 0, 6)
    await jet.client.api(f"STREAM.PURGE.{jet.stream}")
    await counters(jet, "C", 4, 10, 4, 10, 0, 0, 0)
    await jet.publish(b"next")
    [message] = await jet.fetch("C")
    assert message.data == b"next"
    await counters(jet, "C", 5, 11, 4, 10, 1, 0, 0)


@pytest.mark.stream(max_msgs=5)
async def test_what_limits_push_out_is_nobodys(jet: Jet) -> None:
    await jet.consumer("C")
    await jet.publish(*[b"x"] * 3)
    await jet.fetch("C", 2)
    await jet.publish(*[b"x"] * 5)
    await counters(jet, "C", 2, 2, 2, 2, 0, 0, 5)


async def test_a_deleted_message_does_not_pend(jet: Jet) -> None:
    await jet.consumer("C", max_ack_pending=3)
    await jet.publish(*[b"%d" % number for number in range(1, 5)])
    await jet.fetch("C", 3)
    waiting = jet.pull("C", {"batch": 1, "expires": 20_000_000_000})
    await jet.client.api(f"STREAM.MSG.DELETE.{jet.stream}", {"seq": 1})
    assert (await waiting.one()).data == b"4"  # there is room again
    await counters(jet, "C", 4, 4, 1, 1, 3, 0, 0)
    await jet.client.api(f"STREAM.MSG.DELETE.{jet.stream}", {"seq": 3})
    await counters(jet, "C", 4, 4, 1, 1, 2, 0, 0)
    await jet.client.api(f"STREAM.MSG.DELETE.{jet.stream}", {"seq": 2})
    await counters(jet, "C", 4, 4, 3, 3, 1, 0, 0)


async def test_a_filtered_purge_takes_what_pends(jet: Jet) -> None:
    await jet.consumer("C")
    for subject in "abab":
        await jet.publish(b"x", subject=subject)
    await jet.fetch("C", 4)
    await jet.client.api(f"STREAM.PURGE.{jet.stream}", {"filter": f"{jet.prefix}.b"})
    floor = 0 if jet.ours else 4  # its consumer sequence is far ahead of its stream sequence there
    await counters(jet, "C", 4, 4, floor, 0, 2, 0, 0)
    await jet.client.api(f"STREAM.PURGE.{jet.stream}", {"filter": f"{jet.prefix}.a", "keep": 1})
    if jet.ours:
        await counters(jet, "C", 4, 4, 2, 2, 1, 0, 0)


async def test_where_consumers_start(jet: Jet) -> None:
    p = jet.prefix
    for subject in "aaabbaa":
        await jet.publish(b"x", subject=subject)
    starts: list[tuple[int, int, dict[str, Any]]] = [
        (6, 1, {"deliver_policy": "last"}),
        (4, 1, {"deliver_policy": "last", "filter_subject": f"{p}.b"}),
        (0, 0, {"deliver_policy": "last", "filter_subject": f"{p}.z"}),
        (4, 2, {"deliver_policy": "last_per_subject", "filter_subject": f"{p}.*"}),
        (6, 0, {"deliver_policy": "last_per_subject", "filter_subject": f"{p}.z"}),
        (7, 0, {"deliver_policy": "new"}),
        (99, 0, {"deliver_policy": "by_start_sequence", "opt_start_seq": 100}),
        (7, 0, {"deliver_policy": "by_start_time", "opt_start_time": "2090-01-01T00:00:00Z"}),
        (0, 7, {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}),
    ]
    for number, (cursor, pending, config) in enumerate(starts):
        created = await jet.consumer(f"C{number}", **config)
        start = {"consumer_seq": 0, "stream_seq": cursor}
        assert created["delivered"] == start, config
        if jet.ours or jet.replicas == 1:  # with three, nats-server's leader has not looked at its own store yet
            assert created["ack_floor"] == start, config
        assert created["num_pending"] == pending, config


@interest
@pytest.mark.parametrize("consumers", [0, 1])
async def test_limits_to_interest(jet: Jet, consumers: int) -> None:
    await update(jet, retention="limits")
    if consumers:
        await jet.consumer("C")
    await jet.publish(*[b"x"] * 5)
    if consumers:
        for message in await jet.fetch("C", 3):
            await jet.ack(message)
    await messages(jet, 5, 1, 5)
    await update(jet, retention="interest")
    await messages(jet, *((2, 4, 5) if consumers else (0, 6, 5)))


@interest
async def test_an_updated_filter_gives_up_messages(jet: Jet) -> None:
    p = jet.prefix
    await jet.consumer("A", filter_subject=f"{p}.a")
    await jet.consumer("B", filter_subject=f"{p}.*")
    await jet.publish(*[b"x"] * 3, subject="a")
    await jet.publish(*[b"x"] * 3, subject="b")
    await jet.publish(b"x", subject="c.d")
    await messages(jet, 6, 1, 7)
    await jet.consumer("B", filter_subject=f"{p}.a")
    await messages(jet, 3, 1, 7)
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.A")
    await messages(jet, 3, 1, 7)
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.B")
    await messages(jet, 0, 8, 7)


@pytest.mark.stream(retention="interest", max_msgs=2)
async def test_what_nobody_wants_pushes_nothing_out(jet: Jet) -> None:
    await jet.consumer("A", filter_subject=f"{jet.prefix}.a")
    await jet.publish(b"1", b"2", subject="a")
    await jet.publish(b"3", b"4", b"5", subject="b")
    assert [m.data for m in await jet.fetch("A", 2)] == [b"1", b"2"]
