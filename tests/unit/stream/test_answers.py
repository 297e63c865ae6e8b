"""Answers to publishers whose messages could not be stored."""

from __future__ import annotations

import json

import pytest

from jetcluster.errors import by_code
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    LeavingError,
    NotLeaderError,
    RaftError,
    StorageFullError,
)
from jetcluster.stream.lead.answers import NO_RESPONDERS, TOO_MANY_REQUESTS, Answers, PubAcks, RefusedError
from tests.unit.consumer.rig import Frame, InboxBus

FULL = by_code(10077, err="maximum messages exceeded")


def answers(*, no_ack: bool = False) -> tuple[Answers, list[Frame]]:
    bus = InboxBus()
    return Answers(bus, PubAcks("S", ""), no_ack=no_ack), bus.listen(b">")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackpressureError("x"), 10167),
        (EntryTooLargeError("x"), 10054),
        (StorageFullError("x"), 10077),
        (RefusedError(FULL), 10077),
        (RaftError("x"), 10008),
    ],
)
def test_each_reason_has_its_code(error: RaftError, code: int) -> None:
    told, frames = answers()
    told.not_proposed([b"r1", b"", b"r2"], error)
    assert [frame.subject for frame in frames] == [b"r1", b"r2"]
    assert {json.loads(frame.payload)["error"]["err_code"] for frame in frames} == {code}
    assert {frame.headers for frame in frames} == {TOO_MANY_REQUESTS if code == 10167 else b""}
    assert told.refused == 3
    found = told.error_of(error)
    assert found is not None and found.err_code == code


def test_who_leaves_says_that_nobody_is_here_and_who_does_not_lead_says_nothing() -> None:
    told, frames = answers()
    told.not_proposed([b"r"], LeavingError("x"))
    assert frames == [Frame(b"r", b"", NO_RESPONDERS, b"")]
    told.not_proposed([b"r"], NotLeaderError("x"))
    assert len(frames) == 1 and told.refused == 2
    assert told.error_of(LeavingError("x")) is told.error_of(NotLeaderError("x")) is None


def test_an_empty_answer_never_acknowledges_a_delivery() -> None:
    told, frames = answers()
    for reply in (b"$JS.ACK.S.C.1", b"", b"r"):
        told.note(reply)
        told.not_proposed([reply], LeavingError("x"))
    assert {frame.subject for frame in frames} == {b"r"} and len(frames) == 2
    told.refuse([b"$JS.ACK.S.C.1"], FULL)
    assert frames[2].payload, "an error is no acknowledgement"


def test_a_stream_without_acks_tells_nothing() -> None:
    told, frames = answers(no_ack=True)
    told.note(b"r")
    told.refuse([b"r"], FULL)
    told.too_many([b"r"])
    assert frames == [] and told.refused == 2
