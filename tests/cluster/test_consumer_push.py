"""Push consumers on the wire."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from testkit.consumer_client import MILLISECOND, SECOND, Inbox, Jet, ack_fields, shown
from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster


async def bound(jet: Jet, name: str, *, wanted: bool = True) -> None:
    async def is_bound() -> bool:
        return bool((await jet.info(name)).get("push_bound")) is wanted

    await eventually(is_bound, 5, f"push_bound is not {wanted}")


async def test_delivery_with_its_own_subject(jet: Jet) -> None:
    inbox = Inbox(jet.client)
    await jet.publish(b"before", subject="x")
    await jet.consumer("P", deliver_subject=inbox.subject)
    await jet.publish(b"after", subject="y", headers={"Own": "1"})
    first, second = await inbox.take(2)
    assert (first.subject, first.header, first.data) == (f"{jet.prefix}.x".encode(), b"", b"before")
    assert second.header == b"NATS/1.0\r\nOwn: 1\r\n\r\n"
    assert [ack_fields(m)[:3] for m in (first, second)] == [(1, 1, 1), (1, 2, 2)]
    await bound(jet, "P")


async def test_created_before_anybody_listens(jet: Jet) -> None:
    """nats-py's KV watch creates its consumer so."""
    await jet.publish(b"1", b"2")
    created = await jet.consumer("P", deliver_subject="later.inbox." + jet.prefix, ack_policy="none")
    assert created["num_pending"] == 2
    assert "push_bound" not in created
    await asyncio.sleep(0.2)
    inbox = Inbox(jet.client, "later.inbox." + jet.prefix)
    assert [m.data for m in await inbox.take(2)] == [b"1", b"2"]
    inbox.close()
    await bound(jet, "P", wanted=False)
    await jet.publish(b"3")
    await asyncio.sleep(0.2)
    again = Inbox(jet.client, "later.inbox." + jet.prefix)
    assert (await again.one()).data == b"3"


class Order:
    """In which order a request is answered and messages come to a deliver subject, on one connection."""

    def __init__(self, jet: Jet, name: str) -> None:
        self.seen: list[str] = []
        self.target = f"first.{jet.prefix}.{name}"
        self._answers = f"_INBOX.answer.{jet.prefix}.{name}"
        self._jet = jet
        jet.client.subscribe(self.target, lambda msg: self.seen.append("delivery"))
        jet.client.subscribe(self._answers, lambda msg: self.seen.append("answer"))

    async def of(self, config: dict[str, Any], deliveries: int) -> None:
        """The consumer is asked for; its answer must come first, then all deliveries, and soon."""
        body = json.dumps(self._jet.request({"deliver_subject": self.target, **config})).encode()
        subject = f"$JS.API.CONSUMER.CREATE.{self._jet.stream}.{config.get('name') or config['durable_name']}"
        began = time.monotonic()
        self._jet.client.publish(subject, body, self._answers.encode())
        await eventually(lambda: len(self.seen) > deliveries, 5, "the answer and the deliveries")
        if self._jet.ours:  # of a cluster of nats-server they may overtake each other on their way between nodes
            first = self.seen.index("answer")
            assert self.seen == ["answer"] + ["delivery"] * deliveries, f"{first} came before the answer"
        assert time.monotonic() - began < 2.0


async def test_the_answer_of_a_creation_comes_before_the_first_delivery(jet: Jet) -> None:
    """Clients know by it what the consumer is, and whether what comes is theirs."""
    await jet.publish(*(b"%d" % n for n in range(100)))
    for round_ in range(10):
        name = f"P{round_}"
        await Order(jet, name).of({"name": name, "max_ack_pending": 1000}, 100)


async def test_the_answer_of_a_new_deliver_subject_comes_before_its_deliveries(jet: Jet) -> None:
    await jet.consumer("P", deliver_subject=f"nobody.{jet.prefix}")
    await jet.publish(*(b"%d" % n for n in range(100)))
    await Order(jet, "P").of({"durable_name": "P"}, 100)


async def test_listeners_on_other_nodes(jet: Jet, shared: ProcessCluster) -> None:
    clients = [await node.connect() for node in shared.nodes]
    inboxes = [Inbox(client, f"push.all.{jet.prefix}") for client in clients]
    for client in clients:
        await client.flush()
    await asyncio.sleep(0.2)
    await jet.consumer("P", deliver_subject=f"push.all.{jet.prefix}", ack_policy="none")
    await jet.publish(*(b"%d" % n for n in range(20)))
    for inbox in inboxes:
        assert [m.data for m in await inbox.take(20)] == [b"%d" % n for n in range(20)]
    for client in clients:
        client.close()


async def test_deliver_groups(jet: Jet, shared: ProcessCluster) -> None:
    subject = f"push.group.{jet.prefix}"
    plain = Inbox(jet.client, subject)
    await jet.consumer("P", deliver_subject=subject, deliver_group="g")
    await jet.publish(b"0")
    await plain.nothing(0.3)  # only a member of the queue group counts as interest
    assert (await jet.counters("P"))[:2] == (0, 0)
    plain.close()
    async with await shared[1].connect() as one, await shared[2].connect() as two:
        members = [Inbox(one, subject, "g"), Inbox(two, subject, "g"), Inbox(one, subject, "g")]
        await one.flush()
        await two.flush()
        await asyncio.sleep(0.2)
        await jet.publish(*(b"%d" % n for n in range(1, 60)))
        await eventually(lambda: sum(len(member.messages) for member in members) == 60, 5, "not all were delivered")
        assert sorted(int(m.data) for member in members for m in member.messages) == list(range(60))
        assert all(m.subject == f"{jet.prefix}.a".encode() for member in members for m in member.messages)
        assert sum(bool(member.messages) for member in members) >= 2


async def test_idle_heartbeats(jet: Jet) -> None:
    inbox = Inbox(jet.client)
    await jet.consumer("P", deliver_subject=inbox.subject, ack_policy="none", idle_heartbeat=200 * MILLISECOND)
    await jet.publish(b"1", b"2")
    messages = await inbox.take(4)
    assert [m.data for m in messages if not m.status] == [b"1", b"2"]
    beat = messages[-1]
    assert beat.header == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"
    assert (beat.subject, beat.reply, beat.data) == (inbox.subject.encode(), b"", b"")


async def test_flow_control_and_its_stall(jet: Jet) -> None:
    """A window of 2 MiB at first; a request when half of it is on its way; nothing more when it is full."""
    inbox = Inbox(jet.client)
    chunk = b"x" * 256 * 1024
    for _ in range(32):
        await jet.publish(chunk)
    await jet.consumer(
        "P", deliver_subject=inbox.subject, ack_policy="none", flow_control=True, idle_heartbeat=300 * MILLISECOND
    )
    requests, beats, got = [], [], 0

    async def stalled() -> bool:
        nonlocal got
        for msg in inbox.messages:
            if msg.status and msg.reply:
                requests.append(msg)
            elif msg.status:
                beats.append(msg)
            else:
                got += 1
        inbox.messages.clear()
        return bool(beats) and beats[-1].get("Nats-Consumer-Stalled") is not None

    await eventually(stalled, 5, "it does not stall")
    assert 8 <= got <= 12, f"{got} chunks of 256 KiB in a window of 2 MiB"
    [request] = requests
    assert request.header == b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    assert request.reply.startswith(f"$JS.FC.{jet.stream}.P.".encode())
    assert beats[-1].get("Nats-Consumer-Stalled") == request.reply.decode()
    jet.client.publish(request.reply.decode())

    async def answered() -> bool:
        nonlocal got
        for msg in inbox.messages:
            if msg.status and msg.reply:
                jet.client.publish(msg.reply.decode())
            got += not msg.status
        inbox.messages.clear()
        return got == 32

    await eventually(answered, 5, "it does not go on")


async def test_replay_as_it_was_published(jet: Jet) -> None:
    for n in range(3):
        await jet.publish(b"%d" % n)
        await asyncio.sleep(0.2)
    inbox = Inbox(jet.client)
    start = time.monotonic()
    await jet.consumer("P", deliver_subject=inbox.subject, ack_policy="none", replay_policy="original")
    await inbox.take(3)
    assert 0.35 < time.monotonic() - start < 2.0
    start = time.monotonic()
    await jet.publish(b"live")
    await inbox.one()
    assert time.monotonic() - start < 1.0


async def test_rate_limit(jet: Jet) -> None:
    for _ in range(20):
        await jet.publish(b"x" * 128 * 1024)
    inbox = Inbox(jet.client)
    start = time.monotonic()
    await jet.consumer("P", deliver_subject=inbox.subject, ack_policy="none", rate_limit_bps=16_000_000)
    await inbox.take(20, 10.0)
    # 2.6 MB at 2 MB/s, less a first burst of at most a second's worth
    assert 0.25 < time.monotonic() - start < 4.0


async def test_headers_only(jet: Jet) -> None:
    await jet.publish(b"12345")
    inbox = Inbox(jet.client)
    await jet.consumer("P", deliver_subject=inbox.subject, ack_policy="none", headers_only=True)
    message = await inbox.one()
    assert (message.header, message.data) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")


async def test_last_per_subject_then_live(jet: Jet) -> None:
    """A KV watch reads the newest message of each key, in order, then everything that follows."""
    for subject, data in (("k1", b"old"), ("k2", b"2"), ("k1", b"new"), ("k3", b"3")):
        await jet.publish(data, subject=subject)
    inbox = Inbox(jet.client)
    created = await jet.consumer(
        "W", durable=False, deliver_subject=inbox.subject, ack_policy="none", deliver_policy="last_per_subject",
        filter_subject=f"{jet.prefix}.>", max_deliver=1, mem_storage=True, num_replicas=1,
    )  # fmt: skip
    assert created["num_pending"] == 3
    await jet.publish(b"4", subject="k1")
    await jet.publish(b"5", subject="k1")
    messages = await inbox.take(5)
    assert [m.data for m in messages] == [b"2", b"new", b"3", b"4", b"5"]
    assert [ack_fields(m)[2] for m in messages] == [1, 2, 3, 4, 5]
    assert ack_fields(messages[-1])[3] == 0


async def test_ordered_consumer_as_clients_build_it(jet: Jet) -> None:
    """Ephemeral, no acks: cseq without gaps; deleted and made again behind the last good message."""
    await jet.publish(*(b"%d" % n for n in range(50)))
    config = {
        "ack_policy": "none", "max_deliver": 1, "ack_wait": 22 * 3600 * SECOND, "flow_control": True,
        "idle_heartbeat": 5 * SECOND, "mem_storage": True, "num_replicas": 1,
    }  # fmt: skip
    first = Inbox(jet.client)
    created = await jet.ask(f"CONSUMER.CREATE.{jet.stream}", jet.request({**config, "deliver_subject": first.subject}))
    messages = await first.take(50)
    assert [ack_fields(m)[:3] for m in messages] == [(1, n, n) for n in range(1, 51)]
    assert [ack_fields(m)[3] for m in messages] == list(range(49, -1, -1))
    assert (await jet.ask(f"CONSUMER.DELETE.{jet.stream}.{created['name']}"))["success"]
    second = Inbox(jet.client)
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": 31, "deliver_subject": second.subject}
    again = await jet.ask(f"CONSUMER.CREATE.{jet.stream}", jet.request({**config, **start}))
    assert (again["num_pending"], again["delivered"]["stream_seq"]) == (20, 30)
    assert [ack_fields(m)[1:3] for m in await second.take(20)] == [(n + 30, n) for n in range(1, 21)]
    await first.nothing(0.1)


async def test_acks_wait_and_max_ack_pending(jet: Jet) -> None:
    inbox = Inbox(jet.client)
    await jet.publish(*(b"%d" % n for n in range(5)))
    await jet.consumer("P", deliver_subject=inbox.subject, max_ack_pending=2)
    first, second = await inbox.take(2)
    await inbox.nothing(0.2)
    assert (await jet.ack(first)).data == b""
    third = await inbox.one()
    assert third.data == b"2"
    await jet.ack(second)
    await jet.ack(third)
    assert [m.data for m in await inbox.take(2)] == [b"3", b"4"]


async def test_redelivery_when_nobody_acks(jet: Jet) -> None:
    inbox = Inbox(jet.client)
    await jet.publish(b"1")
    await jet.consumer("P", deliver_subject=inbox.subject, ack_wait=300 * MILLISECOND, max_deliver=2)
    assert [ack_fields(m)[0] for m in await inbox.take(2)] == [1, 2]
    await inbox.nothing(0.6)


async def test_new_deliver_subject(jet: Jet) -> None:
    """10013 while somebody listens on the old one."""
    old, new = Inbox(jet.client), Inbox(jet.client)
    await jet.consumer("P", deliver_subject=old.subject, ack_policy="none")
    await jet.publish(b"1")
    await old.one()
    subject = f"CONSUMER.CREATE.{jet.stream}.P"
    body = jet.request({"durable_name": "P", "deliver_subject": new.subject, "ack_policy": "none"})
    assert (await jet.refused(subject, body))[:2] == (400, 10013)
    old.close()
    await bound(jet, "P", wanted=False)
    assert (await jet.ask(subject, body))["config"]["deliver_subject"] == new.subject
    await jet.publish(b"2")
    assert (await new.one()).data == b"2"
    assert shown(old.messages) == []
