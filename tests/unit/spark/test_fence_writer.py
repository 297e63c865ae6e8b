"""The fence against a model of a stream: whatever fails, and whenever, each row is stored once and in order."""

from __future__ import annotations

import base64
import itertools
import json
import random
from typing import Any

import pyarrow as pa
import pytest

from jetcluster.client.connection import Connection, Gather
from jetcluster.client.reply import ConnectionLostError, RequestTimeoutError, make_reply
from jetcluster.errors import ApiError, by_code
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.parser import Parser
from jetcluster.protocol.subjects import matches
from jetcluster.spark import fence_writer, publish
from jetcluster.spark.fence import FenceError, read_last
from jetcluster.spark.fence_writer import FenceWriter
from jetcluster.spark.message import PublishError
from jetcluster.spark.render import Rows


class Stream:
    """A stream that stores atomic batches, as far as the fence needs one; `fate` decides what goes wrong."""

    max_payload = 1 << 20

    def __init__(self, fate: random.Random | None = None, trouble: float = 0.0) -> None:
        self.stored: list[tuple[bytes, bytes, bytes]] = []
        self.removed: set[int] = set()
        self.stage: dict[bytes, list[tuple[bytes, bytes, bytes]]] = {}
        self.refuse: bytes | None = None
        self.commits = self.lost_connections = self._before = 0
        self._hidden = False
        self.expected = 0
        self._answers: list[tuple[bytes, bytes]] = []
        self._gathers: dict[bytes, Gather] = {}
        self.fate = fate or random.Random(0)
        self.trouble = trouble

    # Link

    @property
    def connection(self) -> Any:
        return self

    def lost(self) -> None:
        self.lost_connections += 1
        self.stage.clear()
        self._answers.clear()
        self._gathers.clear()

    # Connection

    def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        self._fail()
        if subject.startswith("STREAM.INFO."):
            last = self._before if self._happens() else len(self.stored)  # of a leader that does not know it is none
            return {"state": {"last_seq": last}}
        if "last_by_subj" in body:
            seq = self.last_within(body["last_by_subj"].encode())
            if not seq:
                raise by_code(10037)
        else:
            seq = body["seq"]
        self._hidden = not self._hidden and self._happens()  # by a leader of old, once
        if seq in self.removed or self._hidden:
            raise by_code(10037)
        subject_of, block, payload = self.stored[seq - 1]
        return {
            "message": {
                "seq": seq,
                "subject": subject_of.decode(),
                "hdrs": base64.b64encode(block).decode(),
                "data": base64.b64encode(payload).decode(),
            }
        }

    def expect(self, timeout: float) -> Any:
        self.expected += 1
        gather = Gather(self, b"%d" % self.expected, timeout)  # type: ignore[arg-type]
        gather.subject = b"_INBOX.%d" % self.expected
        self._gathers[gather.subject] = gather
        return gather

    def forget(self, token: bytes) -> None:
        self._gathers.pop(b"_INBOX." + token, None)

    def write_frames(self, frames: bytes) -> None:
        """Answers wait until they are asked for: by then more may be in flight."""
        for _, subject, reply, block, payload in Parser().feed(bytes(frames)):
            if reply and self._happens():
                self.stage.clear()  # another leader
            if reply and self._happens():
                raise ConnectionLostError("lost")
            answer = self._put(subject, block, payload)
            if reply:
                self._answers.append((reply, answer))

    def read_more(self, deadline: float) -> None:
        assert self._answers, "nothing is to come"
        reply, answer = self._answers.pop(0)
        self._fail()
        if gather := self._gathers.get(reply):
            if self._happens():
                gather.end = make_reply(b"NATS/1.0 503\r\n\r\n", b"")
            gather.heads.append(b"")
            gather.payloads.append(answer)

    def _put(self, subject: bytes, block: bytes, payload: bytes) -> bytes:
        batch, number = header_block.get(block, b"Nats-Batch-Id"), header_block.get(block, b"Nats-Batch-Sequence")
        if payload == self.refuse:
            return _error(10054)
        if not batch:
            staged = [(subject, block, payload)]
        else:
            staged = self.stage.setdefault(batch, [])
            if int(number or 0) != len(staged) + 1:
                self.stage.pop(batch)
                return _error(10176)
            staged.append((subject, block, payload))
            if header_block.get(block, b"Nats-Batch-Commit") is None:
                return b""
            self.stage.pop(batch)
        self.commits += 1
        within = header_block.get(staged[0][1], b"Nats-Expected-Last-Subject-Sequence-Subject")
        if within is not None:
            expected, last = (
                header_block.get(staged[0][1], b"Nats-Expected-Last-Subject-Sequence"),
                self.last_within(within),
            )
        else:
            expected, last = header_block.get(staged[0][1], b"Nats-Expected-Last-Sequence"), len(self.stored)
        if int(expected or 0) != last:
            return _error(10071, seq=last)
        self._before = len(self.stored)
        self.stored += staged
        return json.dumps({"stream": "S", "seq": len(self.stored)}).encode()

    def last_within(self, subject_filter: bytes) -> int:
        """The sequence of the last message that a filter matches; 0 for none."""
        places = (at for at in range(len(self.stored), 0, -1) if matches(self.stored[at - 1][0], subject_filter))
        return next(places, 0)

    def _happens(self) -> bool:
        return self.fate.random() < self.trouble

    def _fail(self) -> None:
        if self._happens():
            raise self.fate.choice([ConnectionLostError("lost"), RequestTimeoutError("silence")])


def _error(code: int, **fields: object) -> bytes:
    return json.dumps({"error": by_code(code, **fields).to_dict(), "stream": "S", "seq": 0}).encode()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "FIRST_PAUSE_SECONDS", 0.0)


def rows(count: int, start: int = 0) -> list[Rows]:
    """As record batches of one row."""
    return [columns([b"s.%d" % (i % 3)], [b"row %d" % i]) for i in range(start, start + count)]


def columns(subjects: list[bytes], payloads: list[bytes]) -> Rows:
    return Rows(pa.array(subjects, pa.binary()), None, pa.array(payloads, pa.binary()))


def writer(stream: Stream, batch: int = 0, size: int = 7, **options: Any) -> FenceWriter:
    return FenceWriter(stream, "S", "job", batch, atomic_batch=size, **options)  # type: ignore[arg-type]


def payloads(stream: Stream) -> list[bytes]:
    return [payload for _, _, payload in stream.stored]


def wanted(count: int) -> list[bytes]:
    return [b"row %d" % i for i in range(count)]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_batches_carry_fence_and_marker(stream: Stream) -> None:
    done = writer(stream)
    done.write(rows(16))
    assert payloads(stream) == wanted(16)
    assert (done.stored, done.skipped, done.last_seq, stream.commits) == (16, 0, 16, 3)
    fences = [header_block.get(block, b"Nats-Expected-Last-Sequence") for _, block, _ in stream.stored]
    assert {i: value for i, value in enumerate(fences) if value is not None} == {0: b"0", 7: b"7", 14: b"14"}
    markers = [header_block.get(block, b"Jc-Pipeline") for _, block, _ in stream.stored]
    assert {i: value for i, value in enumerate(markers) if value} == {6: b"job/0/7", 13: b"job/0/14", 15: b"job/0/16"}


def test_a_second_run_adds_nothing_and_the_next_batch_goes_on(stream: Stream) -> None:
    writer(stream).write(rows(16))
    again = writer(stream)
    again.write(rows(16))
    assert (again.stored, again.skipped, len(stream.stored)) == (0, 16, 16)
    writer(stream, batch=1).write(rows(5, 16))
    assert payloads(stream) == wanted(21)


def test_after_a_crash_only_what_is_missing_is_written(stream: Stream) -> None:
    with pytest.raises(ZeroDivisionError):
        writer(stream).write(row for i in range(20) if (row := rows(1, i)[0]) and 1 // (12 - i) is not None)
    assert payloads(stream) == wanted(7)
    again = writer(stream, size=5)
    again.write(rows(20))
    assert payloads(stream) == wanted(20)
    assert (again.stored, again.skipped) == (13, 7)


@pytest.mark.parametrize("seed", range(60))
def test_any_trouble(seed: int) -> None:
    """Connections that break before and after a batch is stored, leaders that change or are out of date, and two
    writers of the same rows, one of which thinks the other one is dead."""
    fate = random.Random(seed)
    stream = Stream(fate, 0.15)
    for batch in range(3):
        while True:
            cut = fate.choice([13, fate.randrange(14)])
            try:
                one = writer(stream, batch, fate.randrange(1, 9), retry_seconds=600)
                one.write(_ends_early(rows(13, 13 * batch), cut))
            except _DeadError:
                continue
            break
    assert payloads(stream) == wanted(39)


@pytest.mark.parametrize("seed", range(60))
def test_writers_of_parts_take_turns(seed: int) -> None:
    """Tasks have a part of the rows each and write in any order, as their turn comes, in any trouble; some die."""
    fate = random.Random(seed)
    stream = Stream(fate, 0.1)
    starts = [0, *sorted(fate.sample(range(1, 40), 4)), 40]
    parts = list(itertools.pairwise(starts))
    done: set[int] = set()
    gave_up = 0
    for _ in range(1000):
        at = fate.randrange(len(parts))
        first, stop = parts[at]
        one = writer(stream, size=fate.randrange(1, 9), retry_seconds=600, first=first, ends=False)
        if not one.await_turn(0.0):
            assert at > 0
            gave_up += 1
            continue
        try:
            one.write(_ends_early(rows(stop - first, first), fate.choice([99, fate.randrange(10)])))
        except _DeadError:
            continue
        assert one.stored + one.skipped == stop - first
        done.add(at)
        if len(done) == len(parts):
            break
    assert payloads(stream) == wanted(40)
    assert gave_up


def test_a_turn_that_does_not_come(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is for rows that come, not for all of them: each one that is stored begins it anew."""
    monkeypatch.setattr(fence_writer, "TURN_PAUSE_SECONDS", 0.0)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        if now < 30 and int(now) % 5 == 0:
            writer(stream, ends=False).write(rows(len(stream.stored) + 1))
        return now

    late = writer(stream, first=7, ends=False)
    monkeypatch.setattr(fence_writer.time, "monotonic", clock)
    assert not late.await_turn(6.0)
    assert 30 < now < 40
    assert late.await_turn(6.0) is (len(stream.stored) >= 7)
    writer(stream, ends=False).write(rows(7))
    assert late.await_turn(6.0)


class _DeadError(Exception):
    pass


def _ends_early(all_rows: list[Rows], cut: int) -> Any:
    for i, row in enumerate(all_rows):
        if i >= cut:
            raise _DeadError
        yield row


def test_twins(stream: Stream) -> None:
    """An executor that is taken for dead goes on writing while the next try of its task does: both are right."""
    first = writer(stream, size=4)

    def interrupted() -> Any:
        for i, row in enumerate(rows(20)):
            if i == 10:
                writer(stream, size=3).write(rows(15))
            yield row

    first.write(interrupted())
    assert payloads(stream) == wanted(20)


def test_another_writer_trips_the_fence(stream: Stream) -> None:
    def with_guest() -> Any:
        for i, row in enumerate(rows(20)):
            if i == 9:
                stream.stored.append((b"s.0", b"", b"guest"))
            yield row

    with pytest.raises(FenceError, match="last message, 8, was written by another writer"):
        writer(stream).write(with_guest())
    with pytest.raises(FenceError, match="written by another writer"):
        writer(stream).write(rows(20))
    assert payloads(stream) == [*wanted(7), b"guest"]


def test_rows_in_another_order_are_noticed(stream: Stream) -> None:
    writer(stream).write(rows(14))
    with pytest.raises(FenceError, match="the rows of job job have changed"):
        writer(stream).write(reversed(rows(20)))
    with pytest.raises(FenceError, match="holds 14 rows of batch 0 of job job, which has only 9 now"):
        writer(stream).write(rows(9))


def test_what_was_written_is_gone(stream: Stream) -> None:
    writer(stream).write(rows(14))
    stream.removed.add(14)
    with pytest.raises(FenceError, match="its last message, 14, is gone"):
        writer(stream).write(rows(20))
    writer(stream, batch=1, start_after=14).write(rows(3, 14))
    assert payloads(stream) == wanted(17)


def test_the_reason_of_a_refusal_is_found(stream: Stream) -> None:
    """The commit only says that the batch is not complete; which message was refused is asked for."""
    stream.refuse = b"row 3"
    with pytest.raises(PublishError, match=r"S refused a batch: message size exceeds maximum allowed \(10054\)"):
        writer(stream).write(rows(7))
    assert stream.stored == []


def test_patience_ends() -> None:
    stream = Stream(trouble=1.0)
    with pytest.raises(PublishError, match=r"writing to S: no success for 0\.05 s"):
        writer(stream, retry_seconds=0.05).write(rows(1))


def test_other_errors_of_the_stream_are_raised() -> None:
    class Gone(Stream):
        def api(self, subject: str, body: Any = None) -> dict[str, Any]:
            raise by_code(10059)

    with pytest.raises(ApiError, match="stream not found"):
        writer(Gone()).write(rows(1))


def test_the_end_of_a_stream() -> None:
    stream: Any = Stream()
    connection: Connection = stream
    assert read_last(connection, "S").seq == 0
    stream.stored.append((b"s", b"NATS/1.0\r\nJc-Pipeline: a/1/2\r\n\r\n", b"x"))
    assert read_last(connection, "S") == (1, b"a/1/2", True, b"x")
    stream.removed.add(1)
    assert read_last(connection, "S") == (1, None, False, b"")
