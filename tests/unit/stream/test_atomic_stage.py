"""Stages of an atomic batch row by row; every answer was compared with nats-server 2.15.2 (R1 and R3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jetcluster.errors import ApiError
from jetcluster.stream.lead.atomic_stage import MESSAGE_OVERHEAD_BYTES, AtomicStage, BatchLimits, BatchQuota, Commit
from jetcluster.stream.rules import StreamRules
from testkit.twins.time import ManualTime
from tests.unit.stream.fake_store import block

Step = tuple[str, str | None, str | None]
"""Batch id, Nats-Batch-Sequence, Nats-Batch-Commit; None: no such header."""


def rules(**config: object) -> StreamRules:
    return StreamRules.from_config({"name": "S", "allow_atomic": True, **config})


class Rig:
    def __init__(self, limits: BatchLimits | None = None, room: BatchQuota | None = None, **config: object) -> None:
        self.time = ManualTime()
        self.room = room or BatchQuota(limits)
        self.abandoned: list[tuple[bytes, str]] = []
        self.stage = AtomicStage(rules(**config), self.room, self.time, lambda *event: self.abandoned.append(event))

    def add(self, step: Step, *more: str, payload: bytes = b"x") -> Commit | ApiError | None:
        batch_id, sequence, commit = step
        fields = [f"Nats-Batch-Id: {batch_id}"]
        fields += [f"Nats-Batch-Sequence: {sequence}"] if sequence is not None else []
        fields += [f"Nats-Batch-Commit: {commit}"] if commit is not None else []
        return self.stage.add(batch_id.encode(), b"a", block(*fields, *more), payload)

    def code(self, step: Step, *more: str, payload: bytes = b"x") -> int | str:
        """0: staged; an error's code; `commit`."""
        result = self.add(step, *more, payload=payload)
        if isinstance(result, ApiError):
            return result.err_code
        return "commit" if isinstance(result, Commit) else 0

    def run(self, steps: Sequence[Step]) -> list[int | str]:
        return [self.code(step) for step in steps]


ROWS: list[tuple[str, list[Step], list[int | str], list[str]]] = [
    ("one message", [("b", "1", "1")], ["commit"], []),
    ("three", [("b", "1", None), ("b", "2", None), ("b", "3", "1")], [0, 0, "commit"], []),
    ("eob", [("b", "1", None), ("b", "2", "eob")], [0, "commit"], []),
    ("id of 64 bytes", [("i" * 64, "1", "1")], ["commit"], []),
    ("id of 65 bytes", [("i" * 65, "1", "1")], [10179], []),
    ("long id before bad sequence", [("i" * 65, "x", "1")], [10179], []),
    *[
        (f"sequence {text!r}", [("b", text, None)], [10175], [])
        for text in (None, "", "x", "-1", "+1", "1.0", "9" * 20, "9" * 23)
    ],
    ("a blank and a zero in front", [("b", " 1", None), ("b", "02", "1")], [0, "commit"], []),
    ("unknown", [("b", "2", None), ("b", "0", None)], [10176, 10176], []),
    ("unknown, beyond the limit", [("b", "1001", None), ("b", "1002", "eob")], [10199, 10199], []),
    ("unknown, eob at the limit", [("b", "1001", "eob")], [10176], []),
    *[
        (f"commit {text!r}", [("b", "1", None), ("b", "2", text), ("b", "3", "1")], [0, 10200, 10176], [])
        for text in ("", "0", "EOB", "true", "1 ")
    ],
    ("invalid commit first", [("b", "1", "x"), ("b", "2", "1")], [10200, 10176], []),
    ("gap", [("b", "1", None), ("b", "3", None), ("b", "2", None)], [0, 10176, 10176], ["incomplete"]),
    ("sequence again", [("b", "1", None), ("b", "1", None), ("b", "1", "1")], [0, 10176, "commit"], ["incomplete"]),
    ("eob alone", [("b", "1", "eob")], [10176], ["incomplete"]),
    ("commit again", [("b", "1", None), ("b", "2", "1"), ("b", "2", "1")], [0, "commit", 10176], []),
    ("the id is free again", [("b", "1", "1"), ("b", "1", "1")], ["commit", "commit"], []),
    (
        "interleaved",
        [("b", "1", None), ("c", "1", None), ("b", "2", "1"), ("c", "2", "1")],
        [0, 0, "commit", "commit"],
        [],
    ),
]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(("steps", "codes", "reasons"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_rows(steps: list[Step], codes: list[int | str], reasons: list[str], rig: Rig) -> None:
    assert rig.run(steps) == codes
    assert [reason for _, reason in rig.abandoned] == reasons


def test_a_commit_holds_the_messages_in_order_as_they_are_to_be_stored(rig: Rig) -> None:
    rig.add(("b", "1", None), "Nats-Required-Api-Level: 2", "Foo: 1", payload=b"1")
    commit = rig.add(("b", "2", "1"), payload=b"2")
    assert commit == Commit(
        b"b",
        [b"a", b"a"],
        [
            block("Nats-Batch-Id: b", "Nats-Batch-Sequence: 1", "Foo: 1"),
            block("Nats-Batch-Id: b", "Nats-Batch-Sequence: 2", "Nats-Batch-Commit: 1"),
        ],
        [b"1", b"2"],
        True,
    )


def test_eob_is_not_stored_and_marks_the_last_message(rig: Rig) -> None:
    rig.add(("b", "1", None), "Foo: 1")
    commit = rig.add(("b", "2", "eob"), payload=b"not stored")
    assert isinstance(commit, Commit)
    assert commit.payloads == [b"x"]
    assert commit.headers == [block("Nats-Batch-Id: b", "Nats-Batch-Sequence: 1", "Foo: 1", "Nats-Batch-Commit: 1")]
    assert commit.plain


@pytest.mark.parametrize(
    "field",
    ["Nats-Msg-Id: 1", "Nats-TTL: 5s", "Nats-Batch-Id: again", "KV-Operation: PURGE", "Foo: " + "x" * 65_500],
)
def test_what_has_to_be_checked_is_not_plain(field: str, rig: Rig) -> None:
    rig.add(("b", "1", None), field)
    commit = rig.add(("b", "2", "1"))
    assert isinstance(commit, Commit) and not commit.plain


@pytest.mark.parametrize(
    ("level", "code"), [("0", 0), ("2", 0), ("3", 0), ("5", 0), ("", 0), ("6", 10185), ("99", 10185), ("x", 10185)]
)
def test_required_api_level(level: str, code: int, rig: Rig) -> None:
    assert rig.code(("b", "1", None), f"Nats-Required-Api-Level: {level}") == code
    assert rig.abandoned == ([(b"b", "unsupported")] if code else [])
    assert len(rig.stage) == (0 if code else 1)


def test_a_sealed_stream_refuses_first_and_keeps_what_is_open(rig: Rig) -> None:
    rig.add(("b", "1", None))
    rig.stage.configure(rules(sealed=True))
    assert rig.code(("i" * 65, "x", "y")) == 10109
    assert len(rig.stage) == 1


def test_a_message_that_is_too_large_does_not_count() -> None:
    rig = Rig(max_msg_size=100)
    assert rig.run([("b", "1", None)]) == [0]
    assert rig.code(("b", "2", None), payload=b"x" * 100) == 10054
    assert rig.run([("b", "2", None), ("b", "3", "1")]) == [0, "commit"]
    rig.add(("b", "1", None))
    rig.code(("b", "2", None), payload=b"x" * 100)
    assert rig.code(("b", "3", None)) == 10176


def test_switching_batches_off_drops_them_silently(rig: Rig) -> None:
    rig.add(("b", "1", None))
    rig.stage.configure(rules(allow_atomic=False))
    assert rig.code(("i" * 65, "1", "1")) == 10174
    rig.stage.configure(rules())
    assert rig.code(("b", "2", "1")) == 10176
    assert rig.abandoned == [] and (rig.room.open, rig.room.staged_bytes) == (0, 0)


def test_size_limit_counts_what_would_be_stored() -> None:
    rig = Rig(BatchLimits(messages=3))
    for n in "123":
        rig.add(("b", n, None))
    assert rig.code(("b", "4", "eob")) == "commit"
    for n in "123":
        rig.add(("b", n, None))
    result = rig.add(("b", "4", "1"))
    assert isinstance(result, ApiError)
    assert (result.err_code, result.description) == (10199, "atomic publish batch is too large: 3")
    assert rig.code(("b", "4", None)) == 10199, "unknown by now, and beyond the limit"
    assert rig.abandoned == [(b"b", "large")]


def test_open_batches_of_a_stream_and_of_the_server() -> None:
    room = BatchQuota(BatchLimits(per_stream=2, total=3))
    one, two = Rig(room=room), Rig(room=room)
    assert one.run([("a", "1", None), ("b", "1", None), ("c", "1", None)]) == [0, 0, 10210]
    assert two.run([("a", "1", None), ("b", "1", None)]) == [0, 10210]
    assert one.run([("a", "2", "1"), ("c", "1", None)]) == ["commit", 0]
    one.stage.clear()
    assert room.open == 1
    assert two.code(("b", "1", None)) == 0


def test_defaults_are_the_real_ones() -> None:
    assert BatchLimits()[:4] == (50, 1000, 1000, 10.0)
    rig = Rig()
    assert [rig.code((f"{n}", "1", None)) for n in range(51)] == [0] * 50 + [10210]


def test_an_idle_batch_is_abandoned(rig: Rig) -> None:
    rig.add(("b", "1", None))
    rig.time.advance(9)
    rig.add(("b", "2", None))  # arms the timer anew
    rig.add(("c", "1", None))
    rig.time.advance(9)
    rig.add(("c", "2", None))
    rig.stage.tick()
    assert rig.abandoned == []
    rig.time.advance(1)
    rig.stage.tick()
    assert rig.abandoned == [(b"b", "timeout")]
    assert rig.code(("b", "3", "1")) == 10176
    rig.time.advance(8.9)
    assert rig.code(("c", "3", "1")) == "commit"


def test_a_message_in_time_for_the_tick_but_not_for_the_timeout(rig: Rig) -> None:
    rig.add(("b", "1", None))
    rig.time.advance(10)
    assert rig.run([("b", "2", "1"), ("b", "1", None)]) == [10176, 0]
    assert rig.abandoned == [(b"b", "timeout")]


def test_bytes_of_one_batch_are_bounded() -> None:
    rig = Rig(BatchLimits(batch_bytes=3 * (MESSAGE_OVERHEAD_BYTES + 1000)))
    codes = [rig.code(("b", str(n), None), payload=b"x" * 900) for n in range(1, 5)]
    assert codes == [0, 0, 0, 10199]
    assert rig.abandoned == [(b"b", "large")]
    assert (rig.room.open, rig.room.staged_bytes) == (0, 0)


def test_bytes_of_the_server_are_bounded() -> None:
    room = BatchQuota(BatchLimits(total_bytes=3 * (MESSAGE_OVERHEAD_BYTES + 1000)))
    one, two = Rig(room=room), Rig(room=room)
    assert [one.code(("b", str(n), None), payload=b"x" * 900) for n in (1, 2)] == [0, 0]
    assert [two.code(("b", str(n), None), payload=b"x" * 900) for n in (1, 2)] == [0, 10176]
    assert two.abandoned == [(b"b", "incomplete")]
    assert isinstance(one.add(("b", "3", "1")), Commit)
    assert (room.open, room.staged_bytes) == (0, 0)
