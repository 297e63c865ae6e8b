"""Symptoms of consumers, mirrors and backups (docs/symptoms) on one server: the texts, and what ends each."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cli.commands import run_command
from jetcluster.doctor.consumer_rules import look_at_consumer
from jetcluster.doctor.facts import UpstreamFacts
from jetcluster.doctor.stream_rules import look_at_stream
from testkit.client import Client, ClientError, Msg, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from tests.cluster.test_symptoms import create, found, logged, said, text_of
from tests.symptom_page import shown
from tests.unit.doctor.cases import consumer as facts
from tests.unit.doctor.cases import stream

pytestmark = [pytest.mark.cluster, pytest.mark.ours("the pages are about this server"), pytest.mark.thorough]

MS = 1_000_000
AGAIN = "\n".join(f"{one.code}  {one.what}" for one in look_at_consumer(facts(ack_pending=10, redelivered=10)))
"""The finding, for which more messages have to come again than are made here."""
UPSTREAM = UpstreamFacts("UP", 0, 12.0, "stream not found", mirror=True)
SILENT = "\n".join(
    f"{one.code}  {one.what}\n{one.why}" for one in look_at_stream(stream(name="COPY", upstreams=(UPSTREAM,)))
)
"""The finding, for which the upstream has to be silent for longer."""


@pytest.fixture(scope="module")
def node(server: str) -> Iterator[Node]:
    cluster = ProcessCluster(1, server, config="jetstream { max_file_store: 4MB }", monitor=True)
    asyncio.run(cluster.__aenter__())
    yield cluster[0]
    asyncio.run(cluster.__aexit__(None))


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with await node.connect() as connected:
        yield connected


async def consumer(client: Client, stream: str, name: str, **config: Any) -> None:
    body = {"stream_name": stream, "config": {"durable_name": name, "ack_policy": "explicit", **config}}
    await client.api(f"CONSUMER.CREATE.{stream}.{name}", body)


class Pull:
    """Returns the answer to one request for messages."""

    def __init__(self, client: Client, stream: str, name: str, **request: Any) -> None:
        self.got: list[Msg] = []
        inbox = f"pull.{stream}.{name}.{id(self)}"
        client.subscribe(inbox, self.got.append)
        body = json.dumps({"batch": 10, "expires": 5000 * MS, **request}).encode()
        client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", body, inbox.encode())

    async def until(self, count: int) -> list[Msg]:
        await eventually(lambda: len(self.got) >= count, 10.0, f"{len(self.got)} of {count} came")
        return self.got


async def filled(client: Client, name: str, **config: Any) -> None:
    await create_stream(client, name, [f"{name}.>"], 1, **config)
    for number in range(5):
        await said(client, f"{name}.{number}", b"x")


async def test_a_consumer_waits_for_acks(node: Node, client: Client) -> None:
    await filled(client, "ACKS")
    await consumer(client, "ACKS", "C", max_ack_pending=2)
    pull = Pull(client, "ACKS", "C")
    first = list(await pull.until(2))
    shown("a-consumer-waits-for-acks", await found(node, "JC402"))
    for message in first:
        client.publish(message.reply.decode(), b"+ACK")
    assert len(await pull.until(4)) == 4


async def test_a_consumer_is_paused(node: Node, client: Client) -> None:
    await filled(client, "PAUSE")
    await consumer(client, "PAUSE", "C", pause_until="2100-01-01T00:00:00Z")
    pull = Pull(client, "PAUSE", "C")
    shown("a-consumer-is-paused", await found(node, "JC403"))
    await client.api("CONSUMER.PAUSE.PAUSE.C", {})
    assert len(await pull.until(5)) == 5


async def test_messages_come_again_and_then_no_more(node: Node, client: Client) -> None:
    await filled(client, "AGAIN", retention="workqueue")
    await consumer(client, "AGAIN", "C", ack_wait=100 * MS, max_deliver=2)
    pull = Pull(client, "AGAIN", "C")
    seen = [message.reply.decode() for message in await pull.until(10)]
    shown("messages-come-again", *seen, AGAIN)
    told: list[dict[str, Any]] = []
    await filled(client, "GIVEN", retention="interest")
    client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.GIVEN.C", lambda m: told.append(m.json()))
    await consumer(client, "GIVEN", "C", ack_wait=50 * MS, max_deliver=1)
    await said(client, "GIVEN.1", b"x")
    Pull(client, "GIVEN", "C")
    shown("a-consumer-gave-messages-up", await found(node, "JC406"))
    await eventually(lambda: bool(told), 5.0, "no advisory")
    await client.api("STREAM.MSG.DELETE.GIVEN", {"seq": told[0]["stream_seq"]})
    assert (await client.api("STREAM.INFO.GIVEN"))["state"]["messages"] == 0


async def test_a_consumer_is_gone(client: Client) -> None:
    await filled(client, "DELETED")
    await consumer(client, "DELETED", "C", filter_subject="DELETED.none")
    pull = Pull(client, "DELETED", "C")
    await client.flush()
    await client.api("CONSUMER.DELETE.DELETED.C")
    gone = text_of((await pull.until(1))[0])
    next_pull = await said(client, "$JS.API.CONSUMER.MSG.NEXT.DELETED.C", {"batch": 1})
    info = await said(client, "$JS.API.CONSUMER.INFO.DELETED.C")
    shown("a-consumer-is-gone", gone, next_pull, info)
    await consumer(client, "DELETED", "C")
    assert len(await Pull(client, "DELETED", "C").until(5)) == 5


async def test_a_work_queue_takes_one_consumer_per_message(client: Client) -> None:
    await create_stream(client, "QUEUE", ["QUEUE.>"], 1, retention="workqueue")
    await consumer(client, "QUEUE", "A", filter_subject="QUEUE.a")
    with pytest.raises(ClientError) as all_of_them:
        await consumer(client, "QUEUE", "B")
    with pytest.raises(ClientError) as the_same:
        await consumer(client, "QUEUE", "B", filter_subject="QUEUE.a")
    shown("a-work-queue-refuses-a-consumer", all_of_them.value, the_same.value)
    await consumer(client, "QUEUE", "B", filter_subject="QUEUE.b")


async def test_replicas_need_a_cluster(client: Client) -> None:
    shown("replicas-1-not-supported-10074", await create(client, "R3", num_replicas=3))


async def test_a_mirror_hears_nothing(node: Node, client: Client) -> None:
    await filled(client, "UP")
    await client.api("STREAM.CREATE.COPY", {"name": "COPY", "mirror": {"name": "UP"}})

    async def copied() -> bool:
        return bool((await client.api("STREAM.INFO.COPY"))["state"]["messages"] == 5)

    await eventually(copied, 10.0, "the mirror is empty")
    await client.api("STREAM.DELETE.UP")
    await logged(node, "nothing is heard of the upstream")
    await filled(client, "UP")
    shown("a-mirror-hears-nothing-of-its-upstream", await logged(node, "was deleted and created again"), SILENT)
    await client.api("STREAM.DELETE.COPY")
    await client.api("STREAM.CREATE.COPY", {"name": "COPY", "mirror": {"name": "UP"}})
    await eventually(copied, 10.0, "the mirror that was made again is empty")


async def test_a_server_may_store_no_more(client: Client) -> None:
    await create_stream(client, "LARGE", ["LARGE"], 1)
    refused = ""

    async def full() -> bool:
        nonlocal refused
        refused = await said(client, "LARGE", b"x" * 500_000)
        return "seq" not in refused

    await eventually(full, 20.0, "more fits than may be", every=0.0)
    shown("insufficient-resources-10023", refused)
    await client.api("STREAM.PURGE.LARGE")
    assert '"seq"' in await said(client, "LARGE", b"x")
    await client.api("STREAM.DELETE.LARGE")


async def saved(url: str, *subjects: str) -> None:
    async with await Client.connect(url) as client:
        if not subjects:
            await filled(client, "SAVED")
        for subject in subjects:
            await said(client, subject, b"x")


@contextmanager
def renewed(lock: Path) -> Iterator[None]:
    """A run on another machine, which shows all the time that it is alive."""
    over = threading.Event()

    def beat(beats: int) -> None:
        new = lock.with_name("new")
        new.write_text(json.dumps({"owner": "process 7 of host1", "token": "t", "beats": beats, "work": "backup"}))
        new.replace(lock)

    def keep() -> None:
        for beats in itertools.count():
            beat(beats)
            if over.wait(0.1):
                return

    beat(0)
    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_backups_that_fail(node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a coroutine: the command handles signals, which only a main thread may."""
    folder, only = str(tmp_path / "backups"), ("--stream", "SAVED")
    asyncio.run(saved(node.url))

    def run(*words: str) -> tuple[int, str]:
        code = run_command(list(words))
        out = capsys.readouterr()
        return code, out.out + out.err

    backup = ("backup", folder, *only, "-s", node.url)
    code, away = run("backup", folder, *only, "--timeout", "1s", "-s", "nats://127.0.0.1:1")
    assert code == 2
    shown("a-backup-reaches-no-server", away)
    assert run(*backup)[0] == 0
    lock = tmp_path / "backups" / "lock.json"
    with renewed(lock):
        code, locked = run(*backup)
    assert code == 1
    shown("a-backup-is-locked", locked)
    lock.unlink()
    asyncio.run(saved(node.url, "SAVED.more"))
    code, there = run("restore", folder, *only, "-s", node.url)
    assert code == 1
    shown("a-restore-is-refused", there)
    assert run("restore", folder, *only, "--as", "OTHER", "--subject", "other.>", "-s", node.url)[0] == 0
    blobs = [path for path in (tmp_path / "backups" / "blobs").rglob("*") if path.is_file()]
    largest = max(blobs, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    code, damaged = run("backup", "verify", folder)
    assert code == 4
    shown("a-backup-is-damaged", damaged)
    assert run(*backup, "--verify")[0] == 0
    assert run("backup", "verify", folder)[0] == 0
