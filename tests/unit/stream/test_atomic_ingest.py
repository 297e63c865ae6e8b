from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import errors
from jetcluster.raft.api import BackpressureError, LeavingError, RaftError, StorageFullError
from jetcluster.stream.lead.atomic_stage import AtomicStage, BatchLimits
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import BatchCommit, BatchPart, Publish
from jetcluster.stream.ports import BatchResult
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_ingest import CLIENT, Rig


class Batches(Rig):
    def send(
        self,
        sequence: int,
        commit: str | None = None,
        *,
        reply: bytes = b"r",
        batch_id: str = "b",
        payload: bytes = b"x",
        more: Sequence[str] = (),
    ) -> None:
        fields = [f"Nats-Batch-Id: {batch_id}", f"Nats-Batch-Sequence: {sequence}"]
        fields += [f"Nats-Batch-Commit: {commit}"] if commit is not None else []
        self.ingest.on_message(b"a", reply, block(*fields, *more), payload, CLIENT)

    def decoded(self) -> list[object]:
        return [commands.decode(command) for command in self.log.commands]


@pytest.fixture
def rig() -> Batches:
    return Batches()


def test_staged_messages_are_answered_at_once_and_proposed_with_the_commit(rig: Batches) -> None:
    rig.send(1, reply=b"r1")
    rig.send(2, reply=b"")
    assert rig.bus.sent == [(b"r1", b"", b"")] and not rig.turn
    rig.send(3, "1", reply=b"r3")
    (commit,) = rig.decoded()
    assert isinstance(commit, BatchCommit) and not isinstance(commit.body, bytes)
    assert (commit.ts, commit.parts, commit.plain, commit.allow_msg_id) == (rig.time.time_ns(), 0, True, True)
    assert commit.body.count == 3
    assert len(rig.bus.sent) == 1 and rig.ingest.pending_messages == 3
    rig.ingest.on_applied(101, BatchResult(7, 3, None))
    assert rig.bus.sent[1:] == [(b"r3", b'{"stream":"S","seq":7,"batch":"b","count":3}', b"")]
    assert (rig.ingest.pending_messages, rig.ingest.pending_bytes) == (0, 0)


def test_the_ack_of_a_batch_with_a_long_rollup_waits_for_its_job() -> None:
    rig = Batches(rolls_up=lambda subjects, headers: b"sub" in headers[-1])
    rig.send(1, "1", reply=b"plain", batch_id="a")
    rig.send(1, reply=b"")
    rig.send(2, "1", reply=b"long", more=["Nats-Rollup: sub"])
    assert [one.rolls_up for one in rig.decoded()] == [False, True]  # type: ignore[attr-defined]
    rig.ingest.on_applied(101, BatchResult(7, 1, None))
    rig.ingest.on_applied(102, BatchResult(9, 2, None, 102))
    assert [reply for reply, _, _ in rig.bus.sent] == [b"plain"]
    rig.ingest.on_job_done(101)
    assert len(rig.bus.sent) == 1
    rig.ingest.on_job_done(102)
    assert rig.bus.sent[1:] == [(b"long", b'{"stream":"S","seq":9,"batch":"b","count":2}', b"")]


def test_a_subject_that_is_too_long_is_refused_when_it_comes_and_the_batch_goes_on(rig: Batches) -> None:
    rig.send(1)
    for fields in (["Nats-Batch-Sequence: 2"], ["Nats-Batch-Sequence: 2", "Nats-Batch-Commit: 1"]):
        rig.ingest.on_message(b"x" * 65_536, b"r", block("Nats-Batch-Id: b", *fields), b"", CLIENT)
        assert rig.errors()[-1] == 10077
    rig.send(2, "1")
    (commit,) = rig.decoded()
    assert isinstance(commit, BatchCommit) and not isinstance(commit.body, bytes)
    assert list(commit.body.subjects) == [b"a"] and commit.body.count == 2


@pytest.mark.parametrize("allowed", [True, False])
def test_whether_message_ids_are_allowed_is_in_the_command(allowed: bool, rig: Batches) -> None:
    """Replicas may be configured differently, and the leader's configuration may change while a batch is open."""
    room = rig.stage.room
    rig.send(1)
    room.limits = room.limits._replace(allow_msg_id=allowed)
    rig.send(2, "1", more=["Nats-Msg-Id: x"])
    (commit,) = rig.decoded()
    assert isinstance(commit, BatchCommit) and commit.allow_msg_id is allowed


def test_the_domain_and_odd_ids_in_the_ack() -> None:
    rig = Batches(domain="D")
    rig.send(1, "1", batch_id='%d "\u00fc"')
    rig.ingest.on_applied(101, BatchResult(1, 1, None))
    (ack,) = rig.bus.sent
    assert ack[1].startswith(b'{"stream":"S","domain":"D","seq":1,"batch":')
    assert json.loads(ack[1])["batch"] == '%d "\u00fc"'


def test_what_was_published_before_the_commit_is_proposed_before_it(rig: Batches) -> None:
    rig.send(1)
    rig.publish(2)
    rig.send(2, "1")
    rig.publish(1)
    rig.end_turn()
    first, commit, last = rig.decoded()
    assert isinstance(first, Publish) and first.batch.count == 2
    assert isinstance(commit, BatchCommit)
    assert isinstance(last, Publish)


def test_an_empty_id_is_an_ordinary_message(rig: Batches) -> None:
    rig.publish(1, headers=block("Nats-Batch-Id:", "Nats-Batch-Sequence: 1"))
    rig.end_turn()
    assert [publish.batch.count for publish in rig.log.publishes()] == [1]


def test_a_refused_batch_gets_its_error(rig: Batches) -> None:
    rig.send(1)
    rig.send(3)
    rig.send(1, "1")
    rig.ingest.on_applied(101, BatchResult(0, 0, errors.by_code(10071, seq=4)))
    assert rig.errors()[0] == 503, "the zero-byte answer"
    assert rig.errors()[1:] == [10176, 10071]
    assert rig.abandoned == [(b"b", "incomplete")]
    assert rig.ingest.refused == 2


@pytest.mark.parametrize(
    ("error", "code", "headers"),
    [
        (LeavingError(None), 503, b"NATS/1.0 503\r\n\r\n"),
        (BackpressureError("full"), 10167, b"NATS/1.0 429 Too Many Requests\r\n\r\n"),
        (StorageFullError("disk"), 10077, b""),
        (RaftError("?"), 10008, b""),
    ],
)
def test_a_batch_that_cannot_be_proposed_is_gone_with_an_answer(error: RaftError, code: int, headers: bytes) -> None:
    rig = Batches()
    rig.log.error = error
    rig.send(1, "1")
    assert rig.errors() == [code] and rig.bus.sent[0][2] == headers
    assert rig.ingest.pending_messages == 0
    rig.log.error = None
    rig.send(2, "1")
    assert rig.errors()[1:] == [10176]


def test_too_much_waiting() -> None:
    rig = Batches(max_pending_messages=2)
    rig.send(1)
    rig.send(2, "1")
    rig.send(1, "1")
    assert rig.errors()[1:] == [10167] and len(rig.log.commands) == 1


def test_lost_leadership_leaves_the_commit_without_an_answer(rig: Batches) -> None:
    rig.send(1, "1")
    rig.ingest.on_dropped(101)
    assert rig.ingest.pending_messages == 0
    rig.ingest.on_applied(101, BatchResult(1, 1, None))
    assert rig.bus.sent == []


def test_a_stream_without_acks_answers_nothing() -> None:
    rig = Batches(no_ack=True)
    rig.send(1)
    rig.send(2, "1")
    rig.ingest.on_applied(101, BatchResult(2, 2, None))
    rig.send(7)
    rig.ingest.configure(StreamRules.from_config({"no_ack": False, "allow_atomic": True}))
    assert rig.bus.sent == []
    rig.send(7)
    assert rig.errors() == [10176]


def test_a_long_batch_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PART_BYTES", 500)
    rig = Batches()
    rig.send(1, payload=b"x" * 600)
    rig.send(2, "1", payload=b"x" * 600)
    *parts, commit = rig.decoded()
    assert parts and all(isinstance(part, BatchPart) for part in parts)
    assert isinstance(commit, BatchCommit) and commit.parts == len(parts)
    rig.ingest.on_applied(100 + len(parts) + 1, BatchResult(2, 2, None))
    assert json.loads(rig.bus.sent[-1][1])["count"] == 2


def test_when_a_part_is_refused_nothing_more_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PART_BYTES", 500)
    rig = Batches()
    rig.send(1, payload=b"x" * 2000)
    propose = rig.log.propose

    def full_after_one(command: bytes) -> int:
        if rig.log.commands:
            raise BackpressureError("full")
        return propose(command)

    rig.ingest.batches._propose = full_after_one
    rig.send(2, "1")
    assert len(rig.log.commands) == 1 and rig.errors()[1:] == [10167]
    assert (rig.ingest.pending_messages, rig.ingest.pending_bytes) == (0, 0)


class NeverExpecting:
    expected = b""


STEPS = st.tuples(
    st.sampled_from("bbbbc"),
    st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, -1]),
    st.sampled_from([None] * 8 + ["1", "eob", "x"]),
    st.sampled_from(["", "", "", "Foo: 1", "Nats-TTL: 1s", "Nats-Required-Api-Level: 2", "Nats-Request-Info: {}"]),
    st.sampled_from([1, 1, 1, 60, 900]),
    st.sampled_from([0.0, 0.0, 0.0, 0.0, 4.0, 10.0]),
    st.sampled_from([None] * 12 + [{"sealed": True}, {"max_msg_size": 200}, {"allow_atomic": False}, {}]),
)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEPS, max_size=40), limit=st.sampled_from([3, 5, 1000]))
def test_the_short_cut_for_messages_alike_changes_nothing(steps: list[tuple[Any, ...]], limit: int) -> None:
    """The same conversation with and without `AtomicStage.expected`."""
    limits = BatchLimits(messages=limit, batch_bytes=3000, total_bytes=4000)
    fast, slow = Batches(limits=limits), Batches(limits=limits)
    slow.ingest._stage = NeverExpecting()  # type: ignore[assignment]
    next_of = {"b": 1, "c": 1}
    for batch_id, skew, commit, more, size, pause, config in steps:
        sequence = next_of[batch_id] + skew
        next_of[batch_id] = 1 if commit is not None else next_of[batch_id] + 1
        for rig in (fast, slow):
            if config is not None:
                rig.ingest.configure(StreamRules.from_config({"allow_atomic": True} | config))
            rig.time.advance(pause)
            fields = [more] if more else []
            rig.send(sequence, commit, batch_id=batch_id, payload=b"x" * size, more=fields)
        if fast.bus.sent and fast.bus.sent[-1][1]:
            next_of[batch_id] = 1
    assert fast.bus.sent == slow.bus.sent
    assert fast.log.commands == slow.log.commands
    assert fast.abandoned == slow.abandoned
    assert fast.stage.room.staged_bytes == slow.stage.room.staged_bytes


@pytest.mark.parametrize(
    ("limits", "payload", "pause", "code"),
    [
        (BatchLimits(messages=2), b"x", 0.0, 10199),
        (BatchLimits(batch_bytes=1000), b"x" * 600, 0.0, 10199),
        (BatchLimits(total_bytes=1000), b"x" * 600, 0.0, 10176),
        (BatchLimits(), b"x" * 600, 0.0, 10054),
        (BatchLimits(), b"x", 10.0, 10176),
        (BatchLimits(), b"x", 9.0, 503),
    ],
)
def test_the_short_cut_keeps_the_limits(limits: BatchLimits, payload: bytes, pause: float, code: int) -> None:
    rig = Batches(limits=limits)
    if code == 10054:
        rig.ingest.configure(StreamRules.from_config({"allow_atomic": True, "max_msg_size": 500}))
    rig.send(1)
    rig.send(2)
    rig.time.advance(pause)
    rig.send(3, payload=payload)
    assert rig.errors() == [503, 503, code], "503 stands for zero bytes"


def test_the_short_cut_is_taken(monkeypatch: pytest.MonkeyPatch, rig: Batches) -> None:
    taken = []
    add = rig.stage.add_expected

    def watched(subject: bytes, payload: bytes) -> bool:
        taken.append(payload)
        return add(subject, payload)

    monkeypatch.setattr(AtomicStage, "add_expected", lambda self, subject, payload: watched(subject, payload))
    for n in range(1, 12):
        rig.send(n, payload=b"%d" % n, more=["Foo: 1"])
    assert taken == [b"%d" % n for n in range(2, 12)]
    rig.send(12, "eob")
    (commit,) = rig.decoded()
    assert isinstance(commit, BatchCommit) and not isinstance(commit.body, bytes)
    assert [p for _, _, p in commit.body.messages()] == [b"%d" % n for n in range(1, 12)]
