"""Answers to batched Direct Gets in compiled columns equal those that Python makes of each message's two objects."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import native
from jetcluster.arrow.convert import Converter
from jetcluster.arrow.frames import ColumnBatch, MessageBatch, MissingFieldError
from jetcluster.model.times import rfc3339_bytes

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'jetcluster[arrow]'")

pytestmark = [
    pytest.mark.skipif(native.row_loops() is None, reason=f"no compiled loops: {native.why_pure}"),
    pytest.mark.thorough,
]

PREFIX = b"HMSG _INBOX.a.7 1 "
NAMES = ["seq", "time_ns", "subject", "subject_raw", "headers_raw", "headers", "data"]
BLOCKS = [
    b"", b"", b"", b"A: b\r\n", b"A: 1\r\nA:2\r\n", b"a\r:b\r\n",
    b"Nats-Stream: X\r\nNats-Subject: y\r\nNats-Sequence: 9\r\n",
    b"X:\t v \t\r\nY:\r\nZ:::\r\n", b"no colon\r\n: no name\r\n", b"".join(b"f%d: %d\r\n" % (n, n) for n in range(70)),
    b"Nats-Msg-Id: 5\r\nNats-Expected-Stream: S\r\n", b"\xff: \xff\r\n\r\n", b"Nats-Stream: X\r\n",
    b"Nats-Stream: X\r\nNats-Subject: y\r\nNats-Sequence: 9\r\nNats-Time-Stamp: z\r\nNats-Num-Pending: 3\r\n",
]  # fmt: skip
FIRST_LINES = [
    b"",
    b"X",
    b"\r",
    b"GARBAGE!",
    b"GARBAGE-HEADER",
    b"NATS/1.0 503 No",
    b"Nats-Stream: X",
    b"NATS/1.0\n",
    b"A: b",
]
"""Headers that clients may have published in place of NATS/1.0."""
SUBJECTS = [b"a", b"a.b", b"orders.\xff", "orders.é".encode(), b"x" * 300]
TIMES = [0, 1, -1, -500, 10**9, 1_795_167_385_123_456_789, 951_782_400 * 10**9, 4_107_542_399 * 10**9 + 5, -(10**18)]


def head_of(
    chance: random.Random, seq: int, pending: int, last: int, block: bytes, first_line: bytes = b"NATS/1.0"
) -> bytes:
    time = chance.choice(TIMES) if chance.random() < 0.3 else chance.randrange(-(1 << 62), 1 << 62)
    fields = [
        b"Nats-Stream: %b" % chance.choice([b"S", b"S", "Sé".encode()]), b"Nats-Subject: %b" % chance.choice(SUBJECTS),
        b"Nats-Sequence: %d" % seq, b"Nats-Time-Stamp: %b" % rfc3339_bytes(time or 1),
        b"Nats-Num-Pending: %d" % pending, b"Nats-Last-Sequence: %d" % last,
    ]  # fmt: skip
    return b"%b\r\n%b%b\r\n\r\n" % (first_line, block, b"\r\n".join(fields))


def answer(chance: random.Random, spoil: bool) -> list[tuple[bytes, bytes]]:
    """Frames in order; with `spoil` one of them has bytes changed, or a line too few."""
    count, seq, frames = chance.randrange(1, 6), chance.choice([0, 5, (1 << 63) - 1000]), []
    for at in range(count):
        before, seq = seq, seq + chance.randrange(1, 9)
        first_line = chance.choice(FIRST_LINES) if not spoil and chance.random() < 0.2 else b"NATS/1.0"
        head = head_of(chance, seq, count - at - 1, before, chance.choice(BLOCKS), first_line)
        frames.append((head, chance.choice([b"", b"x", b"\r\n", b"HMSG _INBOX.a.7 1 5 5\r\n", b"y" * 300])))
    if spoil:
        at = chance.randrange(count)
        raw = bytearray(frames[at][0])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(10, len(raw) - 4)
            raw[place : place + chance.randrange(3)] = chance.choice([b"", b"0", b"\r", b"\n", b"x", b":", b" "])
        frames[at] = bytes(raw), frames[at][1]
    return frames


def compiled(frames: list[tuple[bytes, bytes]], chance: random.Random) -> Any:
    """The columns of the frames, which come in pieces cut anywhere."""
    data = b"".join(
        b"%b%d %d\r\n%b%b\r\n" % (PREFIX, len(head), len(head) + len(payload), head, payload)
        for head, payload in frames
    )
    data += chance.choice(
        [b"", b"HMSG _INBOX.a.7 1 20 20\r\nNATS/1.0 204 EOB\r\n\r\n\r\n", b"HMSG _INBOX.a.8 1 5 5\r\n"]
    )
    columns = native.row_loops().Columns(PREFIX)
    end = sum(len(PREFIX) + len(b"%d %d" % (len(h), len(h) + len(p))) + 4 + len(h) + len(p) for h, p in frames)
    buffer, at = b"", 0
    while at < len(data):
        step = chance.randrange(1, len(data) + 1)
        buffer += data[at : at + step]
        at += step
        buffer = buffer[columns.take(buffer, 0) :]
    assert columns.fault or len(buffer) == len(data) - end, "it takes what is whole, and nothing behind it"
    return columns


def table(batch: MessageBatch | ColumnBatch) -> Any:
    found = Converter(NAMES, "S").convert(batch)
    found.validate(full=True)
    return found


@pytest.mark.thorough
@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 1 << 40), st.booleans())
def test_columns_are_those_of_python(seed: int, spoil: bool) -> None:
    chance = random.Random(seed)
    frames = answer(chance, spoil)
    columns = compiled(frames, chance)
    plain = MessageBatch([head for head, _ in frames], [payload for _, payload in frames])
    if columns.fault:
        assert spoil, columns.fault
        with pytest.raises(MissingFieldError, match=columns.fault):
            ColumnBatch(columns)
        return
    batch = ColumnBatch(columns)
    try:
        wanted = table(plain)
    except (MissingFieldError, pa.ArrowInvalid):  # a spoilt block may look like another one's lines
        assert spoil
        return
    assert table(batch).equals(wanted)
    assert (batch.count, batch.first, batch.last, batch.stream) == (plain.count, plain.first, plain.last, plain.stream)
    for left, last in ((0, plain.last), (1, plain.last), (0, plain.last - 1)):
        try:
            whole = batch.is_whole(left, last)
        except MissingFieldError:  # of what is no number, Python reads more
            assert spoil
            break
        assert whole == plain.is_whole(left, last)
    if spoil:  # they may not be in order
        return
    cut = chance.randrange(plain.first - 1, plain.last + 2)
    assert table(batch.below(cut)).equals(table(plain.below(cut)))


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from([b"A: 1", b"b:2 ", b"A:3", b": x", b"", b"c:\t", b"no", b"d : 4", b"\r: 5"]), max_size=4
        )
    )
)
def test_fields_of_any_blocks_are_those_of_python(blocks: list[list[bytes]]) -> None:
    chance, frames = random.Random(1), []
    for at, lines in enumerate(blocks):
        block = b"".join(line + b"\r\n" for line in lines)
        frames.append((head_of(chance, at + 1, len(blocks) - at - 1, at, block), b""))
    columns = native.row_loops().Columns(PREFIX)
    data = b"".join(b"%b%d %d\r\n%b\r\n" % (PREFIX, len(head), len(head), head) for head, _ in frames)
    assert columns.take(data, 0) == len(data), columns.fault
    if frames:
        assert table(ColumnBatch(columns)).equals(
            table(MessageBatch([head for head, _ in frames], [b""] * len(frames)))
        )


@pytest.mark.parametrize("block", [b"", b"A: 1\r\n"])
@pytest.mark.parametrize("first_line", FIRST_LINES)
def test_a_block_with_any_first_line_is_that_of_python(first_line: bytes, block: bytes) -> None:
    chance = random.Random(1)
    lines = (b"NATS/1.0", first_line, b"NATS/1.0")
    frames = [(head_of(chance, at + 1, 2 - at, at, block, line), b"x") for at, line in enumerate(lines)]
    columns = compiled(frames, chance)
    assert columns.count == 3 and not columns.fault
    found = table(ColumnBatch(columns))
    assert found.column(NAMES.index("headers_raw")).to_pylist()[1] == b"%b\r\n%b\r\n" % (first_line, block)
    assert found.equals(table(MessageBatch([head for head, _ in frames], [payload for _, payload in frames])))


def test_a_frame_with_another_first_line_that_is_no_message_is_left() -> None:
    columns = native.row_loops().Columns(PREFIX)
    for head in (
        b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
        b"GARBAGE\r\nNats-Stream: S\r\nNats-Subject: s\r\n\r\n",
    ):
        data = b"%b%d %d\r\n%b\r\n" % (PREFIX, len(head), len(head), head)
        assert columns.take(data + b"x" * 100, 0) == 0 and not columns.fault


def test_columns_that_are_none_are_refused() -> None:
    ends = bytearray(b"".join(n.to_bytes(4, "little") for n in (0, 9, 4)))
    for count, blocks in ((2, bytearray(9)), (1, bytearray(8)), (3, bytearray(9)), (-1, bytearray(9))):
        with pytest.raises(ValueError, match="not columns"):
            native.row_loops().header_fields(ends, blocks, count)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"Nats-Stream: ", b"Nats-Strean: ", "without Nats-Stream"),
        (b"Nats-Subject: ", b"Nats-Subjects: ", "without Nats-Subject"),
        (b"Nats-Sequence: ", b"Nats-Sequence: 99999999999999999999", "without Nats-Sequence"),
        (b"Nats-Sequence: ", b"Nats-Sequence: x", "without Nats-Sequence"),
        (b"Nats-Time-Stamp: ", b"Nats-Time-Stamp: x", "without Nats-Time-Stamp"),
    ],
)
def test_a_frame_without_a_field_is_a_fault_in_both(old: bytes, new: bytes, fault: str) -> None:
    chance = random.Random(1)
    head = head_of(chance, 5, 0, 4, b"")
    at = head.rindex(old)
    frames = [(head_of(chance, 4, 1, 3, b"A: b\r\n"), b""), (head[:at] + new + head[at + len(old) :], b"")]
    columns = compiled(frames, chance)
    assert fault in columns.fault and columns.count == 1
    with pytest.raises(MissingFieldError):
        ColumnBatch(columns)
    with pytest.raises((MissingFieldError, pa.ArrowInvalid)):
        table(MessageBatch([head for head, _ in frames], [payload for _, payload in frames]))


@pytest.mark.parametrize("text", ["2026-02-29", "2026-04-31", "2026-13-01", "1677-01-01", "2262-12-31", "0001-01-01"])
def test_times_that_are_none_or_do_not_fit_are_a_fault(text: str) -> None:
    head = b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: 1\r\n"
    head += b"Nats-Time-Stamp: %bT00:00:00Z\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n\r\n" % text.encode()
    assert "Nats-Time-Stamp" in compiled([(head, b"")], random.Random(1)).fault
    with pytest.raises(MissingFieldError, match="Nats-Time-Stamp"):
        table(MessageBatch([head], [b""]))
