from __future__ import annotations

import json

import pytest

from jetcluster.stream.read.get_request import GetRequest, MalformedRequest


def test_all_fields() -> None:
    request = GetRequest.decode(
        b'{"seq":1,"last_by_subj":"a","next_by_subj":"b","batch":2,"max_bytes":3,"multi_last":["c","d"],'
        b'"start_time":"1970-01-01T00:00:01Z","up_to_seq":18446744073709551615,'
        b'"up_to_time":"1970-01-01T00:00:02Z","no_hdr":true,"other":{"x":[1.5]}}'
    )
    assert (request.seq, request.last_by_subj, request.next_by_subj) == (1, b"a", b"b")
    assert (request.batch, request.max_bytes, request.multi_last) == (2, 3, [b"c", b"d"])
    assert (request.start_time, request.up_to_time) == (1_000_000_000, 2_000_000_000)
    assert (request.up_to_seq, request.no_hdr, request.unknown) == ((1 << 64) - 1, True, ["other"])


def test_go_leniencies() -> None:
    request = GetRequest.decode(b' {"SEQ":4,"last_by_subj":null,"No_Hdr":true,"seq":5} ')
    assert (request.seq, request.last_by_subj, request.no_hdr, request.unknown) == (5, b"", True, [])
    assert not GetRequest.decode(b"null").selects
    assert GetRequest.decode(b'{"multi_last":[null,"a"]}').multi_last == [b"", b"a"]


def test_subjects_that_are_no_utf8_are_kept() -> None:
    assert GetRequest.decode(b'{"last_by_subj":"a\xff"}').last_by_subj == b"a\xff"
    assert GetRequest.decode('{"last_by_subj":"ä"}'.encode()).last_by_subj == "ä".encode()
    assert GetRequest.decode(b'{"last_by_subj":"\\ud800"}').last_by_subj == b"?"


@pytest.mark.parametrize(
    "payload",
    [
        b"x", b"[]", b"1", b'"a"', b"{", b'{"seq":1}x', b'{"seq":"x"}', b'{"seq":1.0}', b'{"seq":1e3}', b'{"seq":-1}',
        b'{"seq":18446744073709551616}', b'{"seq":true}', b'{"batch":"1"}', b'{"batch":1.5}', b'{"max_bytes":[]}',
        b'{"batch":9223372036854775808}', b'{"last_by_subj":1}', b'{"multi_last":"a"}', b'{"multi_last":[1]}',
        b'{"start_time":"yesterday"}', b'{"start_time":5}', b'{"up_to_time":""}', b'{"no_hdr":1}', b'{"seq":NaN}',
        b"[" * 100_000, b'{"seq":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedRequest):
        GetRequest.decode(payload)


VALUES = {
    "seq": 1,
    "last": ("last_by_subj", "a"),
    "next": ("next_by_subj", "a"),
    "batch": 1,
    "max_bytes": 1,
    "start_time": "2026-01-01T00:00:00Z",
    "multi_last": ["a"],
    "up_to_seq": 1,
    "up_to_time": "2026-01-01T00:00:00Z",
}

# Which fields go together, row by row; X is a conflict.
MATRIX = """
           seq last next batch max_bytes start_time multi_last up_to_seq up_to_time
seq        ok  X    ok   ok    ok        X          ok         ok        ok
last       X   ok   X    X     ok        X          X          ok        ok
next       ok  X    ok   ok    ok        ok         X          ok        ok
start_time X   X    ok   ok    ok        ok         ok         ok        ok
multi_last ok  X    X    ok    ok        ok         ok         ok        ok
"""


def cells() -> list[tuple[str, str, bool]]:
    head, *rows = [line.split() for line in MATRIX.strip().splitlines()]
    return [(row[0], column, cell == "X") for row in rows for column, cell in zip(head, row[1:], strict=True)]


def body(*names: str) -> bytes:
    fields = {}
    for name in names:
        value = VALUES[name]
        fields.update([value] if isinstance(value, tuple) else [(name, value)])
    return json.dumps(fields).encode()


@pytest.mark.parametrize(("row", "column", "conflict"), cells())
def test_conflict_matrix(row: str, column: str, conflict: bool) -> None:
    request = GetRequest.decode(body(row, column))
    assert request.selects
    assert request.conflicts is conflict


def test_conflicts_beyond_the_rows() -> None:
    assert GetRequest.decode(body("multi_last", "up_to_seq", "up_to_time")).conflicts
    assert GetRequest.decode(b'{"seq":1,"batch":-1}').conflicts
    assert len(cells()) == 45


@pytest.mark.parametrize("names", [(), ("batch",), ("batch", "max_bytes"), ("up_to_seq",), ("up_to_time",)])
def test_requests_that_select_nothing(names: tuple[str, ...]) -> None:
    assert not GetRequest.decode(body(*names)).selects
