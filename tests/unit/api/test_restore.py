"""Restores: odd archives, the bounds of their work and room, and consumers that are brought back (api/restore.py)."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.api import restore
from jetcluster.api.request import RestoreRoom
from jetcluster.budget import at_once
from jetcluster.errors import PASSING, ApiError, by_code
from jetcluster.protocol import s2, stream_archive
from jetcluster.store.api import Msg
from jetcluster.stream.rules import RESTORING
from testkit.attacks import compressed, uvarint
from testkit.twins.bus import MemBus
from testkit.twins.time import SeededRng
from tests.unit.api.fake_cluster import EMPTY_STATE, Client


class Receiver(restore.RestoreReceiver):
    """One whose commands go nowhere: what fills one is thrown away."""

    def steps(self, data: bytes) -> Iterator[None]:
        self._received += len(data)
        yield from self._decoding(data)

    @property
    def is_full(self) -> bool:
        return self._is_full

    @property
    def runs(self) -> int:
        return self._runs

    def messages(self) -> list[Msg]:
        """Return and forget those of the next command."""
        messages, self._messages = self._messages, []
        self._messages_bytes = self._runs = 0
        return messages


def receiver_of(bus: MemBus, room: RestoreRoom | None = None, declared: int = 0) -> Receiver:
    context: Any = SimpleNamespace(rng=SeededRng(1), restore_room=room or RestoreRoom())
    request: Any = SimpleNamespace(bus=bus, account="A")
    assignment: Any = SimpleNamespace(name="S")
    return Receiver(context, request, assignment, declared)


def archived(*entries: tuple[bytes, int, bytes], end: bool = True) -> bytes:
    """(name, sequence, payload) of each entry; not compressed."""
    body = b"".join(stream_archive.encode(name, seq, seq, b"", payload) for name, seq, payload in entries)
    return s2.STREAM_ID + b"".join(s2.encode(stream_archive.MAGIC + body + (stream_archive.END if end else b"")))


@dataclass
class Work:
    steps: int = 0
    longest: float = 0.0
    """Processor seconds of the longest step."""


def work(receiver: Receiver, data: bytes, done: Work | None = None) -> None:
    """All steps of `data`; what fills a command is thrown away."""
    done = done or Work()
    decoding = receiver.steps(data)
    while True:
        begun = time.process_time()
        try:
            next(decoding)
        except StopIteration:
            return
        finally:
            done.longest = max(done.longest, time.process_time() - begun)
        done.steps += 1
        if receiver.is_full:
            receiver.messages()


IGNORED = stream_archive.encode(b"N", 0, 0, b"", b"p" * 58)


def test_an_archive_of_what_is_no_message_ends() -> None:
    """Some hundred bytes for megabytes of entries that go nowhere."""
    bomb = compressed(IGNORED, 4 << 20)
    assert len(bomb) < 200
    data = archived((stream_archive.STATE_NAME, 0, b"{}"), end=False) + bomb * 25
    begun = time.process_time()
    with pytest.raises(stream_archive.ArchiveError, match="belongs to no stream"):
        work(receiver_of(MemBus()), data)
    assert time.process_time() - begun < 1.0
    few = archived((stream_archive.STATE_NAME, 0, b"{}"), *[(b"N", 0, b"x")] * 500, (b"s", 1, b""))
    receiver = receiver_of(MemBus())
    work(receiver, few)
    assert receiver._reader.finished


def test_what_an_archive_decompresses_to_is_bounded_by_what_was_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "ALLOWED_BYTES", 4 << 20)
    payload = bytes(16 << 20)
    entry = stream_archive.encode(b"s", 1, 1, b"", payload)[: -len(payload)]
    data = archived(end=False) + b"".join(s2.encode(entry)) + compressed(bytes(64), 4 << 20) * 4
    with pytest.raises(stream_archive.ArchiveError, match="larger"):
        work(receiver_of(MemBus()), data)
    receiver = receiver_of(MemBus(), declared=16 << 20)
    work(receiver, data)
    assert receiver._last[0] == 1, "an honest archive says how much it holds"


@pytest.mark.parametrize("kind", ["literals", "crc", "messages", "skipped", "zeros"])
def test_a_step_of_a_restore_is_short(kind: str) -> None:
    literals = uvarint(400_000) + b"\x00A" * 400_000
    data = {
        "literals": s2.STREAM_ID + b"\x00" + (len(literals) + 4).to_bytes(3, "little") + b"CRC?" + literals,
        "crc": s2.STREAM_ID + b"\x01" + ((4 << 20) + 4).to_bytes(3, "little") + b"CRC?" + bytes(4 << 20),
        "messages": archived(*[(b"s", seq * 2, b"") for seq in range(1, 30_000)]),
        "skipped": s2.STREAM_ID + b"\x80\x00\x00\x00" * 100_000,
        "zeros": archived(end=False) + compressed(bytes(64), 4 << 20),
    }[kind]
    done = Work()
    gc.collect()
    gc.disable()
    try:
        work(receiver_of(MemBus()), data, done)
    except (s2.S2Error, stream_archive.ArchiveError):
        assert kind in ("literals", "crc", "zeros"), "which are reported at the end, or are no archive"
    finally:
        gc.enable()
    assert done.steps > 20
    assert done.longest < 0.03  # noise; a step takes a millisecond or less


def test_commands_of_a_restore_have_a_bound_of_runs() -> None:
    receiver = receiver_of(MemBus())
    found = []
    for _ in receiver.steps(archived(*[(b"s", seq * 2, b"") for seq in range(1, 5000)])):
        if receiver.is_full:
            found.append(len(receiver.messages()))
    assert max(found) <= restore.COMMAND_RUNS + restore.STEP_ENTRIES
    receiver = receiver_of(MemBus())
    for _ in receiver.steps(archived(*[(b"s", seq, b"") for seq in range(1, 5000)])):
        pass
    assert receiver.runs == 1, "what one of our own streams took in as one batch goes in together"
    assert not receiver.is_full


def test_times_that_go_back_in_an_archive_do_not_go_back_in_the_stream() -> None:
    """A search by bisection would take the second message for older than it is, and max_age would remove it."""
    times = (10, 20, 5, 6, 30)
    body = b"".join(stream_archive.encode(b"s", at, seq, b"", b"") for seq, at in enumerate(times, 1))
    receiver = receiver_of(MemBus())
    work(receiver, s2.STREAM_ID + b"".join(s2.encode(stream_archive.MAGIC + body + stream_archive.END)))
    assert receiver.runs == 3
    assert [message.ts for message in receiver.messages()] == [10, 20, 21, 22, 30]


def test_restores_of_a_node_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "MAX_HELD_BYTES", 100_000)
    bus, room = MemBus(), RestoreRoom()
    receivers = [receiver_of(bus, room) for _ in range(4)]
    for number, receiver in enumerate(receivers):
        receiver.subject += b"%d" % number
        receiver.listen()
    taken = 0
    for _ in range(100):
        for receiver in receivers:
            taken += bus.publish(receiver.subject, bytes(1000), b"reply")
    assert 60 < taken <= 70
    for receiver in receivers:
        receiver._count(over=True)
    assert room.held == 0


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_chunks_that_nobody_waits_for_are_bounded_whatever_their_size(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "MAX_WAITING_BYTES", 100_000)
    bus = MemBus()
    receiver = receiver_of(bus)
    receiver.listen()
    taken = 0
    while bus.publish(receiver.subject, b"x" * size, b"reply") and taken < 10_000:
        taken += 1
    assert 10 < taken < 1000


CONSUMER = {
    "config": {"durable_name": "C", "ack_policy": "explicit", "num_replicas": 3},
    "state": {"delivered": {"consumer_seq": 1, "stream_seq": 1}, "ack_floor": {"consumer_seq": 1, "stream_seq": 1}},
}


class Restored:
    """A client that restores a stream of one replica with one message and one consumer."""

    def __init__(
        self, *trouble: ApiError, config: dict[str, Any] | None = None, own: dict[str, Any] | None = None
    ) -> None:
        self.client = Client()
        self.asked: list[dict[str, Any]] = []
        self._trouble = list(trouble)
        cluster = self.client.cluster
        for kind in ("restore", "restore_end"):
            cluster.answers[kind] = lambda body: {}
        cluster.answers["consumer_create"] = self._created
        self._content = {**CONSUMER, "config": {**CONSUMER["config"], **(config or {})}}
        if own is not None:
            self._content["state"] = {**own, "jetcluster": own}

    def _created(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        if self._trouble:
            raise self._trouble.pop(0)
        return {}

    async def run(self, headers: bytes = b"") -> dict[str, Any]:
        client = self.client
        wish = {"config": {"name": "S", "subjects": ["s"]}, "state": {}}
        begun = await client.ask("STREAM.RESTORE.S", wish, headers)
        content = json.dumps(self._content).encode()
        consumer = stream_archive.CONSUMER_PREFIX + b"C", 0, content
        data = archived((stream_archive.STATE_NAME, 0, b"{}"), consumer, (b"s", 1, b"x"))
        assert await client.raw(begun["deliver_subject"], data) == b""
        answer: dict[str, Any] = json.loads(await client.raw(begun["deliver_subject"]))
        return answer

    @property
    def there(self) -> bool:
        return self.client.cluster.machine.assignment("A", "S") is not None


async def test_a_consumer_whose_stream_has_no_leader_for_a_moment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "AGAIN_SECONDS", 0.01)
    passes = [by_code(err_code) for err_code in sorted(PASSING)]
    restored = Restored(*passes)
    answer = await restored.run()
    assert "error" not in answer and restored.there
    assert len(restored.asked) == len(passes) + 1
    assert len({body["request"] for body in restored.asked}) == 1, "one that was carried out is not refused as a second"
    assert restored.asked[-1]["config"]["num_replicas"] == 1


async def test_a_restore_fails_that_cannot_bring_a_consumer_back() -> None:
    restored = Restored(by_code(10100))
    answer = await restored.run()
    assert answer["error"]["err_code"] == 10062
    assert "consumer C: filtered consumer not unique" in answer["error"]["description"]
    await asyncio.sleep(0)
    assert not restored.there and len(restored.asked) == 1
    unknown = Restored(config={"ack_policy": "what"})
    assert (await unknown.run())["error"]["err_code"] == 10062
    await asyncio.sleep(0)
    assert not unknown.there and not unknown.asked


async def test_a_restore_fails_whose_stream_has_no_leader_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "CONSUMER_SECONDS", 0.0)
    restored = Restored(by_code(10008))
    assert (await restored.run())["error"]["err_code"] == 10008
    await asyncio.sleep(0)
    assert not restored.there


@pytest.mark.parametrize("err_code", [10008, 10044])
async def test_a_stream_that_is_restored_is_not_deleted_as_its_leader_cannot_be_asked(err_code: int) -> None:
    """It is an ordinary one by then, and may have been published to."""
    restored = Restored()
    refusal = by_code(err_code)

    def ready(body: dict[str, Any]) -> dict[str, Any]:
        assignment = restored.client.cluster.machine.assignment("A", "S")
        if assignment is not None and not assignment.config.get(RESTORING):
            raise refusal
        return {"state": EMPTY_STATE, "cluster": {"name": "C1", "leader": "N1"}, "page": [7, 0, 100_000]}

    restored.client.cluster.answers["ready"] = ready
    answer = await restored.run()
    assert answer["error"]["err_code"] == 10008, "whether it is there is not known"
    await asyncio.sleep(0)
    assert restored.there


def test_a_consumer_of_an_archive_is_read_in_steps() -> None:
    """8 MiB of JSON would keep the loop for a tenth of a second, and building models of it for seconds."""
    member = b'"%d":{"Sequence":%d,"Timestamp":1}'
    pending = b",".join(member % (n, n) for n in range(1, 100_001))
    numbers = b'{"consumer_seq":9,"stream_seq":9}'
    raw = b'{"config":{},"state":{"delivered":%b,"ack_floor":%b,"pending":{%b}}}' % (numbers, numbers, pending)
    steps, longest, count = restore.reading(raw), 0.0, 0
    gc.disable()  # a collection is no step
    while True:
        begun = time.process_time()
        try:
            next(steps)
        except StopIteration as stop:
            found = stop.value
            break
        longest, count = max(longest, time.process_time() - begun), count + 1
    gc.enable()
    assert found == json.loads(raw)
    assert count > 100 and longest < 0.02
    assert at_once(restore.reading(b"[]")) == {}
    for wrong in (b"{", b"[" * 100_000, b"{" + b'"a":' * 100_000):
        with pytest.raises(ValueError, match=r".*"):
            at_once(restore.reading(wrong))


async def test_a_consumer_whose_letters_wait_is_the_one_that_it_was() -> None:
    state = {"delivered": {"consumer_seq": 1, "stream_seq": 1}, "ack_floor": {"consumer_seq": 0, "stream_seq": 0}}
    for own, created in (({"letters": [[1, 1, 1, 7, ""]], "created": 5}, 5), ({}, None)):
        restored = Restored(config={"max_deliver": 1, "dead_letter": {"subject": "dead.x"}}, own=state | own)
        assert "error" not in await restored.run()
        assert restored.asked[-1].get("created") == created


async def test_letters_of_a_restored_consumer_go_only_where_its_client_may_publish() -> None:
    restored = Restored(config={"max_deliver": 1, "dead_letter": {"subject": "away.x"}})
    restored.client.bus.is_guarded = lambda filter: filter == b"away.x"  # type: ignore[method-assign]
    answer = await restored.run(b"NATS/1.0\r\nNats-Deliver-Guarded: 1\r\n\r\n")
    assert "dead_letter subject is not permitted" in answer["error"]["description"] and not restored.asked
    again = Restored(config={"max_deliver": 1, "dead_letter": {"subject": "away.x"}})
    assert "error" not in await again.run() and again.asked
