"""Fast-ingest batches (ADR-50) over nodes that die: what was acknowledged is stored on all replicas, nothing twice and
nothing out of order, and the publisher always hears what lets it go on."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from testkit.client import Client, Msg, create_stream
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import read_all, wait_direct

pytestmark = pytest.mark.cluster

WAIT = 0.3
"""Seconds without an answer after which a publisher pings, as ADR-50 wants it."""


class Publisher:
    """One batch after the other, of payloads `<name> <batch> <sequence>`. `acked` are those that were acknowledged as
    stored, `ended` how batches ended."""

    def __init__(self, client: Client, subject: str, gap: str, name: str) -> None:
        self.client, self.subject, self.gap, self.name = client, subject, gap, name
        self.acked: set[bytes] = set()
        self.ended: list[tuple[int, str]] = []
        """(messages, "end" or the code of an error)."""
        self.gaps = 0
        self._numbers = itertools.count()
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def batch(self, stop: asyncio.Event) -> None:
        """One batch, until it ends by itself or `stop` is set."""
        number = next(self._numbers)
        stem = f"{self.client.inbox.decode()}.{self.name}-{number}.20.{self.gap}"
        sid = self.client.subscribe(f"{stem}.>", self._take)
        sent: list[bytes] = [b""]
        lost: set[int] = set()

        def send(operation: int) -> None:
            body = b"" if operation >= 3 else f"{self.name} {number} {len(sent)}".encode()
            seq = len(sent) - 1 if operation == 4 else len(sent)
            if operation < 3:
                sent.append(body)
            self.client.publish(self.subject, body, f"{stem}.{seq}.{operation}.$FI".encode())

        def settled(up_to: int) -> None:
            self.acked |= {sent[seq] for seq in range(1, min(up_to, len(sent) - 1) + 1) if seq not in lost}

        send(0)
        acked, per_ack, ending = -1, 1, False
        while True:
            try:
                answer = await asyncio.wait_for(self._heard.get(), WAIT)
            except TimeoutError:
                if acked < 0:  # the first message is gone, or its answer
                    self.ended.append((0, "silence"))
                    break
                send(3 if ending else 4)
                continue
            if answer.get("type") == "ack":
                acked, per_ack = answer["seq"], answer["msgs"]
                settled(acked)
                while len(sent) <= acked + 2 * per_ack and not stop.is_set():
                    send(1)
                if stop.is_set() and not ending:
                    ending = True
                    send(3)
            elif answer.get("type") == "gap":
                self.gaps += 1
                lost |= set(range(answer["last_seq"], answer["seq"]))
            elif "batch" in answer:
                settled(answer["count"])
                self.ended.append((answer["count"], "end"))
                break
            elif answer.get("status") != 503:  # without a leader for a moment: the ping will tell
                self.ended.append((acked, str(answer["error"]["err_code"])))
                break
        self.client.unsubscribe(sid)
        while not self._heard.empty():
            self._heard.get_nowait()

    def _take(self, msg: Msg) -> None:
        self._heard.put_nowait({"status": msg.status} if msg.status else json.loads(msg.data))

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.batch(stop)


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(("seq", "operation"), [(4, 3), (5, 1), (6, 4)], ids=["end", "gap", "ping"])
async def test_who_ends_a_batch_is_answered_at_its_own_reply_subject(
    tidy: ProcessCluster, server: str, replicas: int, seq: int, operation: int
) -> None:
    """All in one write: what came before is not stored yet when the end comes."""
    async with await tidy[0].connect() as client:
        await create_stream(client, "S", ["s"], replicas, allow_batched=True)
        heard: dict[bytes, dict[str, Any]] = {}
        client.subscribe("fast.>", lambda msg: heard.update({msg.subject: json.loads(msg.data)}))
        await client.flush()
        reply = "fast.b.20.fail.%d.%d.$FI"
        for number, kind in ((1, 0), (2, 1), (3, 1), (seq, operation)):
            client.publish("s", b"" if kind >= 3 else b"%d" % number, (reply % (number, kind)).encode())
        await eventually(lambda: any("batch" in answer for answer in heard.values()), 5, "the end of the batch")
        if server != "jetcluster" and replicas > 1:
            return  # nats-server tells it at the last message's there
        last = heard[(reply % (seq, operation)).encode()]
        assert (last["batch"], last["count"], last["seq"]) == ("b", 3, 3), heard


@pytest.mark.parametrize("replicas", [1, 3])
async def test_what_is_acked_survives_the_leader(server: str, replicas: int) -> None:
    """Publishers of both modes, connected to nodes that follow; the leader is killed in the middle, three times."""
    async with ProcessCluster(3, server) as cluster:
        async with await cluster[0].connect() as client:
            config = {"name": "S", "subjects": ["s"], "num_replicas": replicas, "allow_direct": True}
            await client.api("STREAM.CREATE.S", config | {"allow_batched": True})
        told: list[Publisher] = []
        for life in range(3):
            leader = await cluster.stream_leader("S")
            away = next(node for node in cluster.nodes if node is not leader)
            stop = asyncio.Event()
            async with await away.connect() as one, await away.connect() as two:
                publishers = [Publisher(one, "s", "fail", f"a{life}"), Publisher(two, "s", "ok", f"b{life}")]
                running = [asyncio.create_task(each.run(stop)) for each in publishers]
                await _grown(publishers, 500)
                leader.kill9()
                if replicas == 1:
                    await leader.start()
                await _grown(publishers, 500)
                stop.set()
                await asyncio.wait_for(asyncio.gather(*running), 30)
            if not leader.alive:
                await leader.start()
            told += publishers
        if replicas == 3:
            await cluster.wait_current("S")
        for node in cluster.nodes:
            async with await node.connect() as client:
                last = (await client.api("STREAM.INFO.S"))["state"]["last_seq"]
                await wait_direct(client, "S", last)
                _check(await read_all(client, "S"), told)


async def _grown(publishers: list[Publisher], more: int) -> None:
    goal = [len(each.acked) + more for each in publishers]
    await eventually(
        lambda: all(len(each.acked) >= least for each, least in zip(publishers, goal, strict=True)),
        60,
        f"acked {[len(each.acked) for each in publishers]} of {goal}",
    )


def _check(stored: dict[int, bytes], told: list[Publisher]) -> None:
    bodies = [stored[seq].decode() for seq in sorted(stored)]
    assert len(set(bodies)) == len(bodies)
    batches: dict[str, list[int]] = {}
    for body in bodies:
        batch, _, seq = body.rpartition(" ")
        batches.setdefault(batch, []).append(int(seq))
    for seqs in batches.values():
        assert seqs == sorted(seqs)
    for publisher in told:
        lost = {body.decode() for body in publisher.acked} - set(bodies)
        assert not lost, (publisher.name, sorted(lost)[:5], publisher.ended)
        if publisher.gap == "fail":
            for batch, seqs in batches.items():
                if batch.startswith(f"{publisher.name} "):
                    assert seqs == list(range(1, len(seqs) + 1)), batch
            for number, (count, how) in enumerate(publisher.ended):
                assert how != "end" or len(batches[f"{publisher.name} {number}"]) == count
