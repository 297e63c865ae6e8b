"""kill -9 of every node at once: what consumers knew is known again, and what was acked is not delivered again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random

import pytest

from testkit.client import ClientError
from testkit.consumer_client import MILLISECOND, Inbox, Jet, ack_fields
from testkit.harness import ProcessCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

COUNT = 300


async def take_some(jet: Jet) -> tuple[set[int], set[int]]:
    """Fetches COUNT messages; acks (confirmed) four of five in an order of its own. Returns (acked, the others)."""
    found = {ack_fields(message)[1]: message for _ in range(4) for message in await jet.fetch("C", COUNT // 4, 10)}
    assert len(found) == COUNT
    kept = {seq for seq in found if seq % 5 == 3}
    acked = sorted(set(found) - kept, key=lambda seq: (seq % 7, -seq))
    for seq in acked:
        await jet.ack(found[seq], b"+TERM" if seq % 11 == 0 else b"+ACK")
    return set(acked), kept


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.ours("after this, acks that nats-server has confirmed come again now and then")
async def test_kill_all_nodes(cluster: ProcessCluster, server: str, retention: str) -> None:
    async with await cluster[0].connect() as client:
        jet = await Jet.start(client, "S", 3, server, retention=retention)
        await jet.publish(*[b"%d" % number for number in range(COUNT + 10)])
        await jet.consumer("C", ack_wait=300 * MILLISECOND, max_ack_pending=2 * COUNT)
        acked, kept = await take_some(jet)
    cluster.kill9_all()
    await cluster.start()
    async with await cluster[1].connect() as client:
        jet = Jet(client, "S", 3, server)

        async def answers() -> bool:
            return "error" not in await jet.ask("CONSUMER.INFO.S.C")

        await eventually(answers, 20, "the consumer answers")
        delivered, _, _, floor, ack_pending, _, pending = await jet.counters("C")
        assert delivered >= COUNT and (ack_pending, pending) == (len(kept), 10)
        assert floor == min(kept) - 1
        again: dict[int, int] = {}
        # INFO is the stream leader's answer. Nobody takes a pull before the node that has the consumer is so far.
        await eventually(lambda: jet.takes_pulls("C"), 20, "somebody takes a pull")
        while set(again) != kept | set(range(COUNT + 1, COUNT + 11)):
            for message in await jet.fetch("C", 1, 10):
                deliveries, seq, _, _ = ack_fields(message)
                assert seq not in acked, f"{seq} was acked"
                assert seq > COUNT or deliveries > again.get(seq, 1)
                again[seq] = deliveries
                await jet.ack(message)
        state = (await client.api("STREAM.INFO.S"))["state"]
        assert state["messages"] == (0 if retention == "workqueue" else COUNT + 10)
        assert (await jet.counters("C"))[3:5] == (COUNT + 10, 0)


async def consume(jet: Jet, name: str, rng: Random, until: asyncio.Event) -> int:
    """Pulls, acks most, naks, terms or forgets some; other things happen to the stream and the consumer as well.
    Returns how many messages came."""
    came = 0
    inbox = Inbox(jet.client)
    while not until.is_set():
        jet.pull(name, {"batch": rng.randint(1, 20), "expires": 300 * MILLISECOND}, inbox=inbox)
        await asyncio.sleep(0.05)
        messages, inbox.messages = [m for m in inbox.messages if not m.status], []
        came += len(messages)
        for message in messages:
            words = [b"+ACK"] * 6 + [b"-NAK", b'-NAK {"delay":100000000}', b"+TERM", b"+WPI", b""]
            if rng.random() < 0.9:
                jet.ack_soon(message, rng.choice(words))
        if rng.random() < 0.1:
            suffix, body = rng.choice(
                [
                    (f"STREAM.MSG.DELETE.{jet.stream}", {"seq": ack_fields(messages[0])[1] if messages else 1}),
                    (f"STREAM.PURGE.{jet.stream}", {"filter": f"{jet.prefix}.{rng.randint(0, 3)}", "keep": 5}),
                    (f"CONSUMER.RESET.{jet.stream}.{name}", {}),
                    (f"CONSUMER.LEADER.STEPDOWN.{jet.stream}.{name}", None),
                ]
            )
            payload = b"" if body is None else json.dumps(body).encode()
            jet.client.publish(f"$JS.API.{suffix}", payload, b"_INBOX.nobody")
    return came


@pytest.mark.ours("looks for a message in our log")
async def test_replicas_do_not_drift(cluster: ProcessCluster, server: str) -> None:
    """Everything that consumers do, on interest retention under limits, while nodes are killed and come back: every
    replica arrives at the same state, so none is found to differ from its leader."""
    rng = Random(7)
    until = asyncio.Event()
    async with await cluster[0].connect() as client:
        limits = {"max_msgs": 2000, "max_msgs_per_subject": 700}
        jet = await Jet.start(client, "S", 3, server, retention="interest", **limits)
        wait = {"ack_wait": 200 * MILLISECOND, "max_deliver": 3}
        await jet.consumer("A", **wait)
        await jet.consumer("B", filter_subject=f"{jet.prefix}.1", **wait)
        await jet.consumer("C", ack_policy="all", filter_subjects=[f"{jet.prefix}.1", f"{jet.prefix}.2"])
        await jet.consumer("D", deliver_policy="last_per_subject", filter_subject=f"{jet.prefix}.*", **wait)
        tasks = [asyncio.create_task(consume(jet, name, Random(name), until)) for name in "ABCD"]
        for victim in (1, 2, None, 1):
            for _ in range(40):
                for _ in range(20):
                    client.publish(f"{jet.prefix}.{rng.randint(0, 3)}", b"x" * rng.randint(0, 300))
                await asyncio.sleep(0.05)
            if victim is not None:
                cluster[victim].kill9()
                await asyncio.sleep(0.3)
                await cluster[victim].start()
        until.set()
        came = await asyncio.gather(*tasks)
        await cluster.wait_current("S")
        with contextlib.suppress(ClientError):
            await jet.publish(b"last")
        info = await client.api("STREAM.INFO.S")
        assert info["state"]["consumer_count"] == 4 and info["state"]["last_seq"] > 1000
        assert min(came) > 100, came
        await asyncio.sleep(1.5)  # checkpoints of replicas are compared now and then
    for node in cluster.nodes:
        assert "replica differs" not in node.log(), node.tail()
        assert "Traceback" not in node.log(), node.tail(60)
