"""Bytes of results for the rolling hash: different results have different ones."""

from __future__ import annotations

from jetcluster.errors import by_code
from jetcluster.stream.ports import BatchResult, Counted, Duplicate, JobStep, PublishResult, digest_bytes

ERROR = by_code(10077, err="full")
RESULTS = {
    b"s5+3": PublishResult(5, 3, None),
    b"v5,d5,5=9,e10077:full": PublishResult(5, 4, [5, Duplicate(5), Counted(5, b"9"), ERROR]),
    b"v5": PublishResult(5, 1, [5]),
    b"b5+3": BatchResult(5, 3, None),
    b"e10077:full": BatchResult(0, 0, ERROR),
    b"n5": 5,
    b"xj7:3:0": JobStep(7, 3, done=False),
    b"xj7:3:1": JobStep(7, 3, done=True),
}


def test_bytes_of_results() -> None:
    """They are part of a hash that nodes of two versions compare: these bytes stay as they are."""
    assert {digest_bytes(result): result for result in RESULTS.values()} == RESULTS
    assert digest_bytes(ERROR) == b"e10077:full"
