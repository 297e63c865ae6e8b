"""Pause, reset, unpin, step-down, and consumers that nobody uses."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from testkit.client import ClientError
from testkit.consumer_client import MILLISECOND, SECOND, Inbox, Jet, ack_fields
from testkit.harness import ProcessCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def pause(jet: Jet, name: str, until: str | None) -> dict[str, object]:
    body = {"pause_until": until} if until else None
    return await jet.client.api(f"CONSUMER.PAUSE.{jet.stream}.{name}", body)


async def paused(jet: Jet, name: str, *, wanted: bool) -> None:
    """U19: nats-server's answer can come before the consumer's leader knows."""

    async def is_so() -> bool:
        return bool((await jet.info(name)).get("paused")) is wanted

    await eventually(is_so, 3, f"paused is not {wanted}")


async def test_pause_of_a_pull_consumer(jet: Jet) -> None:
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{jet.stream}.C")
    await jet.consumer("C")
    await jet.publish(b"1", b"2")
    [first] = await jet.fetch("C")
    reply = await pause(jet, "C", soon(60))
    assert reply["type"] == "io.nats.jetstream.api.v1.consumer_pause_response"
    assert reply["paused"] is True
    assert 55 * SECOND < reply["pause_remaining"] <= 60 * SECOND
    event = (await told.one()).json()
    assert (event["type"], event["paused"]) == ("io.nats.jetstream.advisory.v1.consumer_pause", True)
    assert event["pause_until"] == reply["pause_until"]
    await paused(jet, "C", wanted=True)
    info = await jet.info("C")
    assert 0 < info["pause_remaining"] <= 60 * SECOND
    assert info["config"]["pause_until"] == reply["pause_until"]
    inbox = jet.pull("C", {"batch": 1, "expires": 20 * SECOND})
    short = jet.pull("C", {"batch": 1, "expires": 300 * MILLISECOND})
    assert (await short.one()).status == 408  # pulls wait and expire
    await jet.ack(first)  # acks go on
    assert not inbox.messages
    reply = await pause(jet, "C", None)
    assert (reply["paused"], "pause_remaining" in reply) == (False, False)
    assert reply["pause_until"] == "0001-01-01T00:00:00Z"
    if not jet.ours:  # nats-server looks at pulls that waited through a pause when something else happens
        await paused(jet, "C", wanted=False)
        await jet.publish(b"3")
    assert (await inbox.one()).data == b"2"
    await paused(jet, "C", wanted=False)
    while (await told.one()).json()["paused"]:
        assert not jet.ours, "published twice"


async def test_the_answer_of_a_pause_always_tells_until_when(jet: Jet) -> None:
    await jet.consumer("C")
    zero = "0001-01-01T00:00:00Z"
    for body, until in (
        (b"", zero), ({}, zero), ({"pause_until": zero}, zero),
        ({"pause_until": "2020-01-01T00:00:00+02:00"}, "2019-12-31T22:00:00Z"),
        ({"pause_until": "1969-01-01T00:00:00.5Z"}, "1969-01-01T00:00:00.5Z"),
    ):  # fmt: skip
        reply = await jet.ask(f"CONSUMER.PAUSE.{jet.stream}.C", body)
        assert (reply["paused"], reply["pause_until"], len(reply)) == (False, until, 3)
    for name, body, code in (("C", {"pause_until": "x"}, 10025), ("NONE", {}, 10014)):
        reply = await jet.ask(f"CONSUMER.PAUSE.{jet.stream}.{name}", body)
        assert (reply["error"]["err_code"], reply["paused"], reply["pause_until"]) == (code, False, zero)


async def test_a_pause_ends_by_itself(jet: Jet) -> None:
    inbox = Inbox(jet.client)
    start = time.monotonic()
    created = await jet.consumer(
        "P", deliver_subject=inbox.subject, ack_policy="none", idle_heartbeat=200 * MILLISECOND, pause_until=soon(1.0)
    )
    assert created["config"]["metadata"]["_nats.req.level"] == "1"
    assert created.get("paused") is True
    await jet.publish(b"1")
    while (message := await inbox.one()).status:  # heartbeats come meanwhile
        assert message.status == 100
        assert message.get("Nats-Last-Consumer") == "0"
    assert 0.8 < time.monotonic() - start < 3.0
    assert message.data == b"1"


async def test_a_create_keeps_the_pause(jet: Jet) -> None:
    await jet.consumer("C")
    until = soon(60)
    reply = await pause(jet, "C", until)
    again = await jet.consumer("C", description="more", pause_until=soon(10))
    assert again["config"]["pause_until"] == reply["pause_until"]
    assert again["config"]["description"] == "more"


async def test_reset(jet: Jet) -> None:
    await jet.consumer("C", ack_wait=60 * SECOND)
    await jet.publish(*(b"%d" % n for n in range(1, 7)))
    messages = await jet.fetch("C", 5)
    await jet.ack(messages[0])
    await jet.ack(messages[1])
    reply = await jet.ask(f"CONSUMER.RESET.{jet.stream}.C")
    assert reply["type"] == "io.nats.jetstream.api.v1.consumer_reset_response"
    assert (reply["reset_seq"], reply["name"], reply["num_ack_pending"], reply["num_pending"]) == (3, "C", 0, 4)
    assert (reply["delivered"]["consumer_seq"], reply["delivered"]["stream_seq"]) == (0, 2)
    assert [ack_fields(m)[:3] for m in await jet.fetch("C", 4)] == [(1, n, n - 2) for n in range(3, 7)]
    reply = await jet.ask(f"CONSUMER.RESET.{jet.stream}.C", {"seq": 2})
    assert reply["reset_seq"] == 2
    assert [ack_fields(m)[:3] for m in await jet.fetch("C", 5)] == [(1, n, n - 1) for n in range(2, 7)]
    reply = await jet.ask(f"CONSUMER.RESET.{jet.stream}.C", {"seq": 9})
    assert (reply["reset_seq"], reply["num_pending"]) == (9, 0)


async def test_reset_stays_within_the_start(jet: Jet) -> None:
    await jet.publish(*(b"%d" % n for n in range(1, 7)))
    await jet.consumer("S", deliver_policy="by_start_sequence", opt_start_seq=4)
    await jet.consumer("N", deliver_policy="new")
    assert (await jet.refused(f"CONSUMER.RESET.{jet.stream}.S", {"seq": 3}))[:2] == (400, 10204)
    assert (await jet.refused(f"CONSUMER.RESET.{jet.stream}.N", {"seq": 3}))[:2] == (400, 10204)
    assert (await jet.ask(f"CONSUMER.RESET.{jet.stream}.S", {"seq": 5}))["reset_seq"] == 5
    assert [m.data for m in await jet.fetch("S", 2)] == [b"5", b"6"]


@pytest.mark.ours("4.12: nats-server is silent")
async def test_reset_of_what_is_not_there(jet: Jet) -> None:
    assert (await jet.refused(f"CONSUMER.RESET.{jet.stream}.NONE"))[:2] == (404, 10014)


async def test_unpin(jet: Jet) -> None:
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.*.{jet.stream}.C")
    await jet.consumer("C", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60 * SECOND)
    await jet.publish(b"1", b"2", b"3")
    first = await jet.pull("C", {"group": "g", "batch": 1, "expires": SECOND}).one()
    standby = jet.pull("C", {"group": "g", "batch": 1, "expires": 20 * SECOND})
    await standby.nothing(0.2)
    subject = f"CONSUMER.UNPIN.{jet.stream}.C"
    for body, code in ((b"", 10025), ({"group": ""}, 10025), ({"group": "a b"}, 10162), ({"group": "x"}, 10160)):
        assert (await jet.refused(subject, body))[:2] == (400, code)
    assert await jet.ask(subject, {"group": "g"}) == {"type": "io.nats.jetstream.api.v1.consumer_unpin_response"}
    second = await standby.one()
    assert second.data == b"2"
    assert second.get("Nats-Pin-Id") not in {None, first.get("Nats-Pin-Id")}
    events = {}
    while len(events) < 3:
        event = (await told.one()).json()
        kind = event["type"].removeprefix("io.nats.jetstream.advisory.v1.")
        if kind.startswith("consumer_group_"):
            events[kind, event.get("pinned_id", event.get("reason"))] = event["group"]
    assert events == {
        ("consumer_group_pinned", first.get("Nats-Pin-Id")): "g",
        ("consumer_group_unpinned", "admin"): "g",
        ("consumer_group_pinned", second.get("Nats-Pin-Id")): "g",
    }


async def test_stepdown(jet: Jet) -> None:
    await jet.consumer("C")
    subject = f"CONSUMER.LEADER.STEPDOWN.{jet.stream}"
    assert (await jet.refused(f"{subject}.NONE"))[:2] == (404, 10014)
    info = await jet.info("C")
    leader = info["cluster"]["leader"]
    if jet.replicas == 1:
        assert "replicas" not in info["cluster"]
        return
    assert len(info["cluster"]["replicas"]) == 2
    await jet.publish(b"1", b"2")
    [first] = await jet.fetch("C")
    waits = jet.pull("C", {"batch": 5, "expires": 60 * SECOND})
    assert (await waits.one()).data == b"2"
    assert (await jet.ask(f"{subject}.C"))["success"] is True
    assert (await waits.one()).header == b"NATS/1.0 409 Leadership Change\r\n\r\n"

    async def moved() -> bool:
        try:
            return (await jet.info("C"))["cluster"]["leader"] not in {"", leader}
        except (ClientError, KeyError, TimeoutError):
            return False

    await eventually(moved, 5, "the consumer has not moved")
    assert (await jet.ack(first)).data == b""
    await jet.publish(b"3")
    assert (await jet.fetch("C"))[0].data == b"3"
    counters = await jet.counters("C")
    assert (counters[3], counters[4], counters[6]) == (1, 2, 0)


async def test_stepdown_to_a_preferred_node(jet: Jet) -> None:
    await jet.consumer("C")
    subject = f"CONSUMER.LEADER.STEPDOWN.{jet.stream}.C"
    leader = (await jet.info("C"))["cluster"]["leader"]
    refusals = {
        "n9": 'preferred server "n9" not known',
        leader: f'preferred server "{leader}" is already leader',
    }
    for preferred, text in refusals.items():
        for more in ({}, {"tags": ["x"]}):
            answer = await jet.ask(subject, {"placement": {"preferred": preferred, **more}})
            if jet.replicas == 1:
                assert answer.get("success") is True
            else:
                assert (answer["error"]["err_code"], answer["error"]["description"]) == (10005, text)
    if jet.replicas == 1:
        return
    for placement in ({"tags": ["x"]}, {"cluster": "elsewhere"}):
        assert await jet.refused(subject, {"placement": placement}) == (400, 10005, "no replacement peer connected")
    assert (await jet.info("C"))["cluster"]["leader"] == leader
    target = (await jet.info("C"))["cluster"]["replicas"][0]["name"]
    assert (await jet.ask(subject, {"placement": {"preferred": target}}))["success"] is True
    if not jet.ours:  # nats-server only hopes that the one it asks for wins the election
        return

    async def moved() -> bool:
        try:
            return (await jet.info("C"))["cluster"]["leader"] == target
        except (ClientError, KeyError, TimeoutError):
            return False

    await eventually(moved, 5, f"the consumer is not with {target}")


async def gone(jet: Jet, name: str, within: float) -> float:
    async def is_gone() -> bool:
        return "error" in await jet.ask(f"CONSUMER.INFO.{jet.stream}.{name}")

    return await eventually(is_gone, within, f"{name} is still there")


async def test_nobody_uses_it_any_more(jet: Jet, shared: ProcessCluster) -> None:
    """A second without interest or pulls; a listener, a waiting pull and a durable name keep a consumer."""
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.DELETED.{jet.stream}.>")
    short = {"inactive_threshold": SECOND, "ack_policy": "none"}
    inbox = Inbox(jet.client)
    listener = await shared[1].connect()
    theirs = Inbox(listener)
    await listener.flush()
    await jet.consumer("PUSH", durable=False, deliver_subject=inbox.subject, **short)
    await jet.consumer("FAR", durable=False, deliver_subject=theirs.subject, **short)
    await jet.consumer("IDLE", durable=False, **short)
    await jet.consumer("DUR", **short)
    await jet.consumer("PULL", durable=False, **short)
    await jet.consumer("EVER", ack_policy="none")
    jet.pull("PULL", {"batch": 1, "expires": 60 * SECOND})
    await gone(jet, "IDLE", 5)
    await gone(jet, "DUR", 5)
    await asyncio.sleep(0.5)
    for name in ("PUSH", "FAR", "PULL", "EVER"):
        await jet.info(name)
    inbox.close()
    listener.close()
    await gone(jet, "PUSH", 6)
    await gone(jet, "FAR", 6)
    await jet.info("EVER")
    events = [m.json() for m in await told.take(4)]
    assert {event["consumer"] for event in events} == {"IDLE", "DUR", "PUSH", "FAR"}
    assert {event["type"] for event in events} == {"io.nats.jetstream.advisory.v1.consumer_action"}


async def test_a_created_and_deleted_consumer_is_published(jet: Jet) -> None:
    told = Inbox(jet.client, f"$JS.EVENT.ADVISORY.CONSUMER.*.{jet.stream}.C")
    await jet.consumer("C")
    await jet.client.api(f"CONSUMER.DELETE.{jet.stream}.C")
    actions = []
    while len(actions) < 2:
        event = (await told.one()).json()
        if event["type"].endswith(".consumer_action"):
            actions.append((event["stream"], event["consumer"], event["action"]))
    assert actions == [(jet.stream, "C", "create"), (jet.stream, "C", "delete")]
