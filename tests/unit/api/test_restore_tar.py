"""Restores of archives of format V1 through the API: what goes into the stream; of a bad one nothing is left."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import random
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from jetcluster.api import restore
from jetcluster.api.spool import Spool
from jetcluster.model.limits import AccountLimits
from jetcluster.protocol import s2, stream_archive
from jetcluster.protocol.tar_archive import TarSurvey
from jetcluster.stream.log.bodies import decode_runs
from testkit.attacks import compressed
from testkit.twins.old_archive import (
    File,
    archive,
    block_index,
    consumer,
    consumer_state,
    erased,
    framed,
    index,
    meta,
    record,
    tar,
    tombstone,
)
from testkit.twins.time import SeededRng
from tests.unit.api.fake_cluster import Client

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
FIRST = record(1, 10, b"s", b"a") + record(2, 20, b"s", b"b", HEADERS) + erased(3, 25, 40) + record(4, 30, b"s", b"d")
SECOND = record(5, 40, b"s", b"e") + tombstone(4, 30) + record(6, 50, b"s", b"f")
FILES: list[File] = [
    ("meta.inf", meta("S", {"subjects": ["s"], "description": "old"})),
    ("meta.sum", b"0" * 16),
    ("msgs/1.blk", FIRST),
    ("msgs/2.blk", SECOND),
    ("msgs/index.db", index([(1, 2, 2, ()), (2, 5, 6, ())], 8, 2, SECOND[-8:])),
    *consumer("C", consumer_state((1, 2), (2, 5), [(5, 2, 1_700_000_000)], {5: 3})),
]


class Restored:
    """A client that restores an archive of format V1, and what came of it."""

    def __init__(self, folder: Path | None) -> None:
        self.client = Client()
        self.folder = folder
        self.spools: list[Spool] = []
        self.messages: list[tuple[int, int, bytes, bytes, bytes]] = []
        self.end: dict[str, Any] = {}
        self.consumers: list[dict[str, Any]] = []
        if folder is not None:
            self.client.context.spool = self._spool
        cluster = self.client.cluster
        cluster.answers["restore"] = self._stored
        cluster.answers["restore_end"] = self._ended
        cluster.answers["consumer_create"] = self._created

    def _spool(self) -> Spool:
        assert self.folder is not None
        self.spools.append(Spool(self.folder, os, SeededRng(len(self.spools))))
        return self.spools[-1]

    def _stored(self, body: dict[str, Any]) -> dict[str, Any]:
        for run in decode_runs(base64.b64decode(body["runs"]), 0):
            for at, message in enumerate(run.batch.messages()):
                self.messages.append((run.seq + at, run.ts + at, *message))
        return {}

    def _ended(self, body: dict[str, Any]) -> dict[str, Any]:
        self.end = body
        return {}

    def _created(self, body: dict[str, Any]) -> dict[str, Any]:
        self.consumers.append(body)
        return {}

    async def run(self, data: bytes, *, chunk: int = 1 << 20, request: dict[str, Any] | None = None) -> dict[str, Any]:
        wish = {"config": {"name": "S", "subjects": ["s"]}, "state": {}} if request is None else request
        begun = await self.client.ask("STREAM.RESTORE.S", wish or None)
        for at in range(0, len(data), chunk):
            if told := await self.client.raw(begun["deliver_subject"], data[at : at + chunk]):
                break
        else:
            told = await self.client.raw(begun["deliver_subject"])
        answer: dict[str, Any] = json.loads(told)
        async with asyncio.timeout(5):
            while self.client.context.restore_room.aside or ("error" in answer and self.config is not None):
                await asyncio.sleep(0.001)
        return answer

    @property
    def config(self) -> Mapping[str, Any] | None:
        assignment = self.client.cluster.machine.assignment("A", "S")
        return None if assignment is None else assignment.config

    def check_nothing_left(self) -> None:
        assert self.config is None
        room = self.client.context.restore_room
        assert room.restores == room.held == 0 and not room.aside
        assert not any(spool.is_open for spool in self.spools)
        assert self.folder is None or not list(self.folder.iterdir())


@pytest.mark.parametrize("chunk", [9, 1 << 20])
async def test_an_archive_is_restored(tmp_path: Path, chunk: int) -> None:
    restored = Restored(tmp_path)
    answer = await restored.run(archive(FILES), chunk=chunk)
    assert "error" not in answer
    assert restored.messages == [
        (2, 20, b"s", HEADERS, b"b"),
        (5, 40, b"s", b"", b"e"),
        (6, 50, b"s", b"", b"f"),
    ]
    assert restored.end == {"last_seq": 8, "last_ts": 50}
    (found,) = restored.consumers
    assert found["name"] == "C" and found["config"]["durable_name"] == "C"
    assert found["restored"] == {
        "delivered": [2, 5],
        "floor": [1, 2],
        "pending": [[5, 2, 1_700_000_000_000_000_000, 4]],
    }
    assert restored.config is not None
    assert not any(spool.is_open for spool in restored.spools)
    assert restored.client.context.restore_room.held == 0


async def test_frames_may_be_shorter_than_the_beginning_that_tells_the_format(tmp_path: Path) -> None:
    def in_small_frames(content: bytes) -> bytes:
        pieces = [content[at : at + 3] for at in range(0, 30, 3)] + [content[30:]]
        return s2.STREAM_ID + b"".join(frame for piece in pieces for frame in s2.encode(piece))

    restored = Restored(tmp_path)
    assert "error" not in await restored.run(in_small_frames(tar(FILES)))
    assert [message[0] for message in restored.messages] == [2, 5, 6]
    newer = stream_archive.MAGIC + stream_archive.encode(b"s", 7, 7, b"", b"of format V2") + stream_archive.END
    restored = Restored(tmp_path)
    assert "error" not in await restored.run(in_small_frames(newer))
    assert restored.messages == [(7, 7, b"s", b"", b"of format V2")] and not restored.spools


async def test_a_request_without_a_configuration_takes_that_of_the_archive(tmp_path: Path) -> None:
    restored = Restored(tmp_path)
    assert "error" not in await restored.run(archive(FILES), request={})
    assert restored.config is not None and restored.config["description"] == "old"


async def test_many_messages_go_into_many_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "COMMAND_RUNS", 10)
    restored = Restored(tmp_path)
    block = b"".join(record(seq, seq * 100, b"s", b"%d" % seq) for seq in range(1, 500))
    assert "error" not in await restored.run(archive([FILES[0], ("msgs/1.blk", block)]), chunk=5000)
    assert [message[0] for message in restored.messages] == list(range(1, 500))
    commands = [kind for _, kind, _ in restored.client.cluster.asked if kind == "restore"]
    assert len(commands) > 5


BAD: dict[str, tuple[bytes, str]] = {
    "cut": (archive(FILES, end=False), "not complete"),
    "without its end frame": (archive(FILES) + b"\x01\xff", "not complete"),
    "no archive": (framed(b"no archive, but long enough for a header" * 50), "unknown archive format"),
    "short": (framed(b"short"), "not complete"),
    "endless beginning": (s2.STREAM_ID + b"\x80\x00\x00\x10" + bytes(1 << 20), "not complete"),
    "no JSON": (archive([("meta.inf", b"{"), *FILES[1:]]), "meta.inf is no JSON"),
    "deep": (archive([("meta.inf", b"[" * 100_000), *FILES[1:]]), "meta.inf is no JSON"),
    "no object": (archive([("meta.inf", b"[]"), *FILES[1:]]), "meta.inf is no JSON object"),
    "consumer's JSON": (archive([*FILES[:5], ("obs/C/meta.inf", b"[]"), FILES[-1]]), "consumer C: no object"),
    "consumer's state": (archive([*FILES[:-1], ("obs/C/o.dat", b"\x16\x02")]), "consumer C: the state of a consumer"),
    "consumer without a state": (
        framed(
            stream_archive.MAGIC
            + stream_archive.encode(b"consumers/C", 0, 0, b"", b'{"state":{}}')
            + stream_archive.END
        ),
        "consumer C: the state of a consumer has no delivered",
    ),
    "order": (archive([FILES[0], ("msgs/1.blk", SECOND), ("msgs/2.blk", FIRST)]), "messages out of order"),
    "damaged": (archive([FILES[0], ("msgs/1.blk", FIRST + b"\xff" * 40)]), "msgs/1.blk is damaged"),
    "behind the end": (archive(FILES) + b"".join(s2.encode(b"x" * 512)), "behind the end"),
}


@pytest.mark.parametrize("name", BAD)
async def test_of_a_bad_archive_nothing_is_left(tmp_path: Path, name: str) -> None:
    data, text = BAD[name]
    restored = Restored(tmp_path)
    answer = await restored.run(data)
    assert answer["error"]["err_code"] == 10062
    assert text in answer["error"]["description"]
    restored.check_nothing_left()


def of_either_format(version: int, subject: bytes, headers: bytes) -> bytes:
    """An archive of a message as it should be and another."""
    if version == 1:
        block = record(1, 1, b"s", b"x") + record(2, 2, subject, b"x", headers)
        return archive([FILES[0], ("msgs/1.blk", block)])
    messages = stream_archive.encode(b"s", 1, 1, b"", b"x") + stream_archive.encode(subject, 2, 2, headers, b"x")
    return framed(stream_archive.MAGIC + messages + stream_archive.END)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "subject", [b"s 9 0\r\n\r\nMSG forged 9 1\r\nx\r\nMSG s", b"a b", b"a\tb", b"a\n", b"\x0b", b"\x0ca"]
)
async def test_a_subject_that_makes_lines_of_its_own_is_refused(tmp_path: Path, version: int, subject: bytes) -> None:
    restored = Restored(tmp_path)
    answer = await restored.run(of_either_format(version, subject, HEADERS))
    assert answer["error"]["err_code"] == 10062
    assert f"nobody can publish to the subject of message 2: {subject!r}" in answer["error"]["description"]
    restored.check_nothing_left()
    assert not restored.messages


async def test_a_message_without_a_subject_is_refused(tmp_path: Path) -> None:
    for version, text in ((1, "nobody can publish to the subject of message 2: b''"), (2, "entry out of bounds")):
        restored = Restored(tmp_path)
        answer = await restored.run(of_either_format(version, b"", b""))
        assert answer["error"]["err_code"] == 10062 and text in answer["error"]["description"]
        restored.check_nothing_left()
    restored = Restored(tmp_path)
    answer = await restored.run(archive([FILES[0], ("msgs/1.blk", record(1, 1, b"", b"the first of all"))]))
    assert "subject of message 1: b''" in answer["error"]["description"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("subject", [b"a.*", b"a.>", b"\xff\xfe", b"a\0\x1b\x7f", b"l" * 65_535])
@pytest.mark.parametrize("headers", [b"", b"no headers at all", b"NATS/1.0\r\n"])
async def test_what_a_stream_may_have_been_sent_is_restored(
    tmp_path: Path, version: int, subject: bytes, headers: bytes
) -> None:
    """Streams take such from any client that may publish, who could make archives useless otherwise."""
    restored = Restored(tmp_path)
    answer = await restored.run(of_either_format(version, subject, headers))
    assert "error" not in answer
    assert restored.messages[1] == (2, 2, subject, headers, b"x")


@pytest.mark.parametrize("version", [1, 2])
async def test_a_message_of_an_archive_is_no_status(tmp_path: Path, version: int) -> None:
    """A puller takes 409 for the end of its request, a mirror 100 for a heartbeat."""
    for status in (b" 409 Consumer Deleted", b" 100", b"x"):
        restored = Restored(tmp_path)
        block = b"NATS/1.0%b\r\nA: b\r\n\r\n" % status
        assert "error" not in await restored.run(of_either_format(version, b"s", block))
        assert restored.messages[1] == (2, 2, b"s", HEADERS, b"x")


async def test_an_archive_must_show_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "MAX_BEGINNING_BYTES", 1000)
    restored = Restored(tmp_path)
    answer = await restored.run(s2.STREAM_ID + b"\x80\x00\x00\x00" * 1000, chunk=100)
    assert "unknown archive format" in answer["error"]["description"]
    restored.check_nothing_left()


async def test_without_a_disk_it_is_refused() -> None:
    restored = Restored(None)
    answer = await restored.run(archive(FILES))
    assert "has no disk" in answer["error"]["description"]
    restored.check_nothing_left()


async def test_a_full_disk_ends_the_restore(tmp_path: Path) -> None:
    restored = Restored(tmp_path)
    restored.folder = tmp_path / "gone"
    answer = await restored.run(archive(FILES))
    assert "cannot be set aside" in answer["error"]["description"]
    assert restored.config is None


async def test_what_restores_hold_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "MAX_HELD_BYTES", 30_000)
    restored = Restored(tmp_path)
    many = b"".join(tombstone(seq, 1) for seq in range(1, 1 << 20, 4096))
    answer = await restored.run(archive([FILES[0], ("msgs/1.blk", many)]), chunk=2000)
    assert "too much is being restored" in answer["error"]["description"]
    restored.check_nothing_left()


async def test_what_the_second_reading_holds_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one passes over a long message that was erased, and comes in one chunk."""
    whole = tar([FILES[0], ("msgs/1.blk", erased(1, 1, 2 << 20) + record(2, 2, b"s"))])
    at = whole.index(b"\xa5" * (2 << 20))
    data = framed(whole[:at]) + compressed(b"\xa5" * 64, 2 << 20) + framed(whole[at + (2 << 20) :])
    assert len(data) < 10_000
    for most, fits in ((5 << 20, True), (1 << 20, False)):
        monkeypatch.setattr(restore, "MAX_HELD_BYTES", most)
        restored = Restored(tmp_path)
        answer = await restored.run(data)
        if fits:
            assert "error" not in answer and len(restored.messages) == 1
        else:
            assert "too much is being restored" in answer["error"]["description"]
            restored.check_nothing_left()


async def test_what_is_set_aside_has_the_room_of_its_account_and_of_the_server(tmp_path: Path) -> None:
    data = archive([FILES[0], ("msgs/1.blk", b"".join(record(seq, seq, b"s", bytes(1000)) for seq in range(1, 400)))])
    cases = (1000, 1 << 40, 10002), (-1, 1000, 10023), (1 << 20, 1 << 20, None)

    def returning(value: Any) -> Callable[..., Any]:
        return lambda *_: value

    for account, node, err_code in cases:
        restored = Restored(tmp_path)
        context = restored.client.context
        context.own_limits, context.spool_bytes = returning(AccountLimits(max_storage=account)), returning(node)
        answer = await restored.run(data, chunk=500)
        assert answer.get("error", {}).get("err_code") == err_code, answer
        if err_code is None:
            assert len(restored.messages) == 399 and not context.restore_room.aside
        else:
            restored.check_nothing_left()


@pytest.mark.parametrize("what", ["tombstones", "a message again and again", "an unknown file", "erased messages"])
async def test_what_is_no_message_is_bounded_by_what_was_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Twenty bytes for four megabytes of it, and the client may have declared any size."""
    monkeypatch.setattr(restore, "ALLOWED_BYTES", 1 << 20)
    monkeypatch.setattr(restore, "MAX_RATIO", 16)
    pattern = {
        "tombstones": tombstone(1, 1),
        "a message again and again": record(1, 1, b"s"),
        "an unknown file": bytes(30),
        "erased messages": erased(1, 1),
    }[what]
    size = (4 << 20) // len(pattern) * len(pattern)
    name = "msgs/x" if "unknown" in what else "msgs/1.blk"
    info = tarfile.TarInfo(name)
    info.size = size * 1000
    head = framed(tar([FILES[0]], end=False) + info.tobuf())
    restored = Restored(tmp_path)
    wish = {"config": {"name": "S", "subjects": ["s"]}, "state": {"bytes": 1 << 62}}
    answer = await restored.run(head + compressed(pattern, size) * 1000, request=wish)
    assert "larger than what was received can hold" in answer["error"]["description"]
    restored.check_nothing_left()


async def test_messages_are_bounded_by_what_was_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "ALLOWED_BYTES", 10_000)
    monkeypatch.setattr(restore, "MAX_RATIO", 0)
    block = b"".join(record(seq, seq, b"s", bytes(1000)) for seq in range(1, 100))
    data = archive([FILES[0], ("msgs/1.blk", block)])
    for declared, fits in ((0, False), (100_000, True)):
        wish = {"config": {"name": "S", "subjects": ["s"]}, "state": {"bytes": declared}}
        assert ("error" not in await Restored(tmp_path).run(data, request=wish)) == fits


LAST = b"8" * 8
LONG: dict[str, Callable[[], list[File]]] = {
    "messages": lambda: [("msgs/1.blk", b"".join(record(seq, seq, b"s", b"") for seq in range(1, 40_000)))],
    "tombstones": lambda: [("msgs/1.blk", tombstone(1, 1) * 40_000)],
    "subjects": lambda: [("msgs/index.db", index([], 9, 1, LAST, {b"s.%d" % n: 2 for n in range(30_000)}))],
    "indexes": lambda: [("msgs/index.db", index([(n, 1, 9, (5,)) for n in range(3000)], 9, 1, LAST))],
    "deleted": lambda: [("msgs/1.idx", block_index(1, 1 << 40, range(2, 40_000), LAST))],
    "files": lambda: [(f"msgs/{number}.blk", b"") for number in range(1, 1000)],
    "fields": lambda: [("x" * 1000, b"")] * 300,
}


@pytest.mark.parametrize("kind", LONG)
def test_a_step_of_a_survey_is_short(kind: str) -> None:
    files = LONG[kind]()
    data, longest, steps = tar([FILES[0], *files]), 0.0, 0
    survey = TarSurvey()
    gc.collect()
    gc.disable()
    try:
        reading = survey.feed(data)
        while True:
            begun = time.process_time()
            if next(reading, StopIteration) is StopIteration:
                break
            longest, steps = max(longest, time.process_time() - begun), steps + 1
    finally:
        gc.enable()
    assert survey.finished and steps > 100
    assert longest < 0.03  # noise; a step takes a millisecond or less


async def test_random_damage_is_answered_and_leaves_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    whole = tar(FILES)
    outcomes = {"restored": 0, "refused": 0}
    for number in range(60):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        raw = bytearray(framed(bytes(data)))
        if number % 3 == 0:  # in the frames, where the checksums find it
            raw = bytearray(framed(whole))
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.2:
            del raw[rng.randrange(len(raw)) :]
        restored = Restored(tmp_path)
        answer = await restored.run(bytes(raw), chunk=rng.choice([50, 1 << 20]))
        if "error" in answer:
            outcomes["refused"] += 1
            assert answer["error"]["err_code"] == 10062, answer
            assert "cannot be taken in" not in answer["error"]["description"], answer
            restored.check_nothing_left()
        else:
            outcomes["restored"] += 1
            assert not any(spool.is_open for spool in restored.spools)
    assert min(outcomes.values()) > 5, outcomes
