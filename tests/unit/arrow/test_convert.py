"""Frames -> record batches (arrow/convert.py, arrow/frames.py), with frames that the real reader makes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.arrow.convert import Converter, digest
from jetcluster.arrow.frames import MessageBatch
from jetcluster.arrow.schema import (
    KAFKA_TYPES,
    TYPES,
    arrow_schema,
)
from tests.unit.arrow.fake_server import T0, Row
from tests.unit.arrow.rows import BLOCK, MASKED, MIXED, PLAIN, batch_of


def columns(rows: list[Row], names: list[str], *, kafka: bool = False) -> dict[str, list[object]]:
    found = Converter(names, "S", kafka=kafka).convert(batch_of(rows))
    assert found.schema == arrow_schema(names, kafka=kafka)
    found.validate(full=True)
    return dict(found.to_pydict())


def test_all_columns_of_messages_without_headers() -> None:
    found = columns(PLAIN, list(TYPES))
    moment = datetime.fromtimestamp(T0 // 10**9, UTC)
    assert found == {
        "stream": ["S"] * 3,
        "subject": ["a.b", "a.c", "a.b"],
        "seq": [1, 2, 3],
        "time": [moment, moment.replace(microsecond=1), moment.replace(microsecond=2)],
        "time_ns": [T0, T0 + 1000, T0 + 2000],
        "headers": [None] * 3,
        "data": [b"one", b"", b"\x00\xff"],
        "headers_raw": [None] * 3,
        "subject_raw": [None] * 3,
        "digest": [digest(subject.encode(), b"", payload) for subject, _, payload in PLAIN],
    }


def test_headers_as_a_map_and_byte_for_byte_among_messages_without() -> None:
    found = columns(MIXED, ["seq", "subject", "headers", "headers_raw", "digest", "time_ns"])
    assert found["seq"] == [1, 2, 3] and found["subject"] == ["a.b", "h", "h"] and found["time_ns"][2] == T0 + 2000
    assert found["headers"] == [
        None,
        [("A", ["1", "3"]), ("b", ["2"])],
        [("Nats-Stream", ["X"]), ("Nats-Subject", ["y"]), ("Nats-Sequence", ["99"])],
    ]
    assert found["headers_raw"] == [None, BLOCK, MASKED]
    assert found["digest"] == [digest(subject.encode(), block, payload) for subject, block, payload in MIXED]


def test_headers_of_many_shapes() -> None:
    """Neighbours do not run into each other: names once and more than once, none at all, no value."""
    shapes = [
        (b"NATS/1.0\r\nA: 1\r\n\r\n", [("A", ["1"])]),
        (b"", None),
        (b"NATS/1.0\r\nA: 1\r\nA: 2\r\nB:\r\n\r\n", [("A", ["1", "2"]), ("B", [""])]),
        (b"NATS/1.0\r\nB: 3\r\nC:4:5\r\n\r\n", [("B", ["3"]), ("C", ["4:5"])]),
        (b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\n", []),
        (b"", None),
        (b"NATS/1.0\r\nX: 1\r\nY: 2\r\nX: 3\r\nY: 4\r\n\r\n", [("X", ["1", "3"]), ("Y", ["2", "4"])]),
        (b"NATS/1.0\r\nZ: 1\r\n\r\n", [("Z", ["1"])]),
    ]
    found = columns([("s", block, b"") for block, _ in shapes], ["headers"])
    assert found["headers"] == [wanted for _, wanted in shapes]


@pytest.mark.parametrize("block", [b"GARBAGE-HEADER\r\n\r\n", b"GARBAGE!\r\n\r\n", b"\r\n\r\n"])
def test_a_block_without_a_field_that_is_not_that_of_no_headers(block: bytes) -> None:
    """It has as many lines as the block of a message without headers."""
    found = columns([PLAIN[0], ("s", block, b""), PLAIN[1]], ["seq", "subject", "headers", "headers_raw"])
    assert found["seq"] == [1, 2, 3] and found["subject"] == ["a.b", "s", "a.c"]
    assert found["headers"] == [None, [], None] and found["headers_raw"] == [None, block, None]


def test_times_before_1970_are_cut_downwards() -> None:
    line = b"Nats-Time-Stamp: 1969-12-31T23:59:59.9999995Z"
    head = b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: 1\r\n%b\r\n" % line
    head += b"Nats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n\r\n"
    found = Converter(["time", "time_ns"], "S").convert(MessageBatch([head], [b""])).to_pydict()
    assert found["time_ns"] == [-500] and found["time"][0].microsecond == 999_999


def test_kafka_columns() -> None:
    found = columns(MIXED, list(KAFKA_TYPES), kafka=True)
    assert found["key"] == [b"a.b", b"h", b"h"] and found["value"] == [b"one", b"two", b"three"]
    assert found["topic"] == ["S"] * 3 and found["partition"] == [0] * 3 and found["offset"] == [1, 2, 3]
    assert found["headers"][:2] == [
        None,
        [{"key": "A", "value": b"1"}, {"key": "b", "value": b"2"}, {"key": "A", "value": b"3"}],
    ]


def test_no_message_at_all_and_bytes_that_are_no_text() -> None:
    assert columns([], ["seq", "subject", "headers", "time"]) == {"seq": [], "subject": [], "headers": [], "time": []}
    found = columns([("h", b"NATS/1.0\r\nA: \xff\r\n\r\n", b"")], ["headers", "headers_raw"])
    assert found["headers"] == [[("A", ["\ufffd"])]] and b"\xff" in found["headers_raw"][0]


def test_a_subject_that_is_no_text_is_there_byte_for_byte() -> None:
    batch = batch_of(PLAIN)
    batch.heads[1] = batch.heads[1].replace(b"Nats-Subject: a.c", b"Nats-Subject: a.\xff")
    found = Converter(["subject", "subject_raw", "digest"], "S").convert(batch).to_pydict()
    assert found["subject"] == ["a.b", "a.\ufffd", "a.b"]
    assert found["subject_raw"] == [None, b"a.\xff", None]
    assert found["digest"][1] == digest(b"a.\xff", b"", b"")


def test_a_digest_tells_what_is_where() -> None:
    parts = [(b"a", b"", b"bc"), (b"ab", b"", b"c"), (b"a", b"b", b"c"), (b"a", b"", b"bd")]
    assert len({digest(*one) for one in parts}) == len(parts)
    assert digest(b"orders.1", b"", b"x") == digest(b"orders.1", b"", b"x") and -(2**63) <= digest(*parts[0]) < 2**63
