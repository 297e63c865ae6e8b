from __future__ import annotations

import pytest

from jetcluster.stream.log.bodies import MAX_DEPTH, cut, decode_runs, encode_runs, load_object


@pytest.mark.parametrize(
    ("seqs", "times", "parts"),
    [
        ([], [], []),
        ([5], [9], [(5, 9, 1)]),
        ([1, 2, 3], [7, 8, 9], [(1, 7, 3)]),
        ([1, 2, 3], [7, 7, 9], [(1, 7, 1), (2, 7, 1), (3, 9, 1)]),
        ([1, 3, 4], [7, 8, 9], [(1, 7, 1), (3, 8, 2)]),
        ([1, 2, 3, 4], [1, 2, 9, 10], [(1, 1, 2), (3, 9, 2)]),
    ],
)
def test_cut(seqs: list[int], times: list[int], parts: list[tuple[int, int, int]]) -> None:
    count = len(seqs)
    runs = cut(seqs, times, [b"s"] * count, [b""] * count, [b"%d" % seq for seq in seqs])
    assert [(run.seq, run.ts, run.batch.count) for run in runs] == parts
    assert [payload for run in runs for _, _, payload in run.batch.messages()] == [b"%d" % seq for seq in seqs]
    again = decode_runs(b"head" + encode_runs(runs), 4)
    assert [(run.seq, run.ts, run.batch.raw) for run in again] == [(r.seq, r.ts, r.batch.raw) for r in runs]


def test_order_is_checked() -> None:
    runs = cut([1, 2], [1, 9], [b"s", b"s"], [b"", b""], [b"", b""])
    with pytest.raises(ValueError, match="order"):
        decode_runs(encode_runs(runs[::-1]), 0)


# JSON objects in the log (stream/log/bodies.py).


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "raw",
    [
        b"{}", b'{"a":{"b":[1,2]}}', nested(MAX_DEPTH), b'{"a":"%b"}' % (b"[" * 10_000),
        b'{"a":"\\"%b"}' % (b"{" * 10_000), b'{"a":[%b]}' % b",".join([b"[]"] * 10_000), '{"ä":"ö"}'.encode(),
    ],
)  # fmt: skip
def test_read(raw: bytes) -> None:
    assert isinstance(load_object(raw), dict)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"1", b"null", b"\xff", b'{"a"', nested(MAX_DEPTH + 1), b"[" * 200_000, b'{"a":' * 200_000,
        b'{"a":"x' + b"[" * 10_000, b'{"a":%b}' % (b"9" * 10_000), b'"' + b"\\" * 10_001,
    ],
)  # fmt: skip
def test_refused_with_one_kind_of_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        load_object(raw)
