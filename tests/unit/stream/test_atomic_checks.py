"""Checks of an atomic batch row by row, through the machine; compared with nats-server 2.15.2 (R1 and R3)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jetcluster.store.batch import Batch
from jetcluster.stream.apply import atomic_checks
from jetcluster.stream.apply.atomic_checks import AtomicChecks, Passed
from jetcluster.stream.log import commands
from jetcluster.stream.ports import BatchResult
from tests.unit.stream.fake_store import block
from tests.unit.stream.test_machine import SECOND, Stream

Message = tuple[str, list[str]]
"""Subject, header fields besides those of the batch."""


class Atomic(Stream):
    def __init__(self, **config: object) -> None:
        super().__init__(allow_atomic=True, **config)

    def batch(
        self, *messages: Message, payload: bytes = b"x", allow_msg_id: bool = False, plain: bool = False
    ) -> object:
        """The last sequence, or (err_code, description)."""
        headers = [
            block("Nats-Batch-Id: b", f"Nats-Batch-Sequence: {i}", *fields) for i, (_, fields) in enumerate(messages, 1)
        ]
        batch = Batch.encode([subject.encode() for subject, _ in messages], headers, [payload] * len(messages))
        rows, state = dict(self.store.rows), self.store.state
        for command in commands.encode_atomic(self.now, batch, plain=plain, allow_msg_id=allow_msg_id):
            result = self.apply(command)
        assert isinstance(result, BatchResult)
        if result.error is None:
            assert result.size == len(messages)
            return result.last_seq
        assert (self.store.rows, self.store.state) == (rows, state), "refused, and yet something changed"
        return result.error.err_code, result.error.description


WRONG = 10164, "wrong last sequence"


def wrong(seq: int) -> tuple[int, str]:
    return 10071, f"wrong last sequence: {seq}"


LAST = "Nats-Expected-Last-Sequence"
SUBJECT = "Nats-Expected-Last-Subject-Sequence"
OF = "Nats-Expected-Last-Subject-Sequence-Subject"

ROWS: list[tuple[str, list[Message], object]] = [
    # before: 1 is on p, 2 on q
    ("fits", [("p", []), ("x", [])], 4),
    ("a", [("x", ["Nats-Expected-Last-Msg-Id: z"])],
     (10177, "atomic publish unsupported header used: Nats-Expected-Last-Msg-Id")),
    ("a, empty", [("x", ["Nats-Expected-Last-Msg-Id:"])], 3),
    ("a'", [("x", []), ("x", ["Nats-Msg-Id: z"])], (10177, "atomic publish unsupported header used: Nats-Msg-Id")),
    ("c", [("x", ["Foo: " + "x" * 66_000])], (10097, "header size exceeds maximum allowed of 64k")),
    ("a before c", [("x", ["Nats-Expected-Last-Msg-Id: z", "Foo: " + "x" * 66_000])],
     (10177, "atomic publish unsupported header used: Nats-Expected-Last-Msg-Id")),
    ("d, no number", [("x", ["Nats-Incr: z"])], (10171, "message counter increment is invalid")),
    ("d, no counters", [("x", ["Nats-Incr: 5"])], (10168, "message counters is disabled")),
    ("e", [("x", ["Nats-Expected-Stream: T"])], (10060, "expected stream does not match")),
    ("e, right", [("x", ["Nats-Expected-Stream: S"])], 3),
    ("f", [("x", ["Nats-TTL: 5s"])], (10166, "per-message TTL is disabled")),
    ("h", [("x", ["Nats-Stream-Source: z"])], (10227, "message stream source header is not allowed")),
    ("j", [("x", [f"{LAST}: 2"]), ("x", [])], 4),
    ("j, wrong", [("x", [f"{LAST}: 1"])], wrong(2)),
    ("j, junk", [("x", [f"{LAST}: abc"])], wrong(2)),
    ("j, empty", [("x", [f"{LAST}:"])], 3),
    ("j', right", [("x", []), ("x", [f"{LAST}: 3"])], WRONG),
    ("j', wrong", [("x", []), ("x", [f"{LAST}: 2"])], wrong(3)),
    ("k, none yet", [("x", [f"{SUBJECT}: 0"]), ("y", [f"{SUBJECT}: 0"])], 4),
    ("k, one", [("p", [f"{SUBJECT}: 1"]), ("q", [f"{SUBJECT}: 2"])], 4),
    ("k, written", [("x", []), ("x", [f"{SUBJECT}: 0"])], WRONG),
    ("k, written, by the other header", [("x", []), ("y", [f"{SUBJECT}: 0", f"{OF}: x"])], WRONG),
    ("k, written after its check", [("x", [f"{SUBJECT}: 0"]), ("x", [f"{SUBJECT}: 0"])], WRONG),
    ("k, checked, then written", [("x", [f"{SUBJECT}: 0", f"{OF}: y"]), ("y", [f"{SUBJECT}: 0"])], 4),
    ("k, a wildcard over what was written", [("w.x", []), ("w.y", [f"{SUBJECT}: 0", f"{OF}: w.*"])], 4),
    ("k, a wildcard", [("x", [f"{SUBJECT}: 2", f"{OF}: >"])], 3),
    ("k'", [("x", []), ("q", [f"{SUBJECT}: 1"])], wrong(2)),
    ("k', junk", [("q", [f"{SUBJECT}: x"])], wrong(2)),
    ("k'', agreeing", [("x", [f"{SUBJECT}: 0", f"{OF}: n"]), ("y", [f"{SUBJECT}: 0", f"{OF}: n"])], 4),
    ("k'', differing", [("x", [f"{SUBJECT}: 0", f"{OF}: n"]), ("y", [f"{SUBJECT}: 5", f"{OF}: n"])], wrong(0)),
    ("l", [("x", [f"{OF}: p"])], (10193, "missing sequence for expected last sequence per subject")),
    ("m", [("x", ["Nats-Schedule: @every 5s"])], (10188, "message schedules is disabled")),
    ("n", [("x", ["Nats-Rollup: sub"])], (10111, "rollup not permitted")),
    ("the first message that fails", [("x", ["Nats-Rollup: sub"]), ("x", ["Nats-Expected-Stream: T"])],
     (10111, "rollup not permitted")),
    ("e before f", [("x", ["Nats-TTL: 5s", "Nats-Expected-Stream: T"])], (10060, "expected stream does not match")),
    ("f before j", [("x", [f"{LAST}: 9", "Nats-TTL: 5s"])], (10166, "per-message TTL is disabled")),
    ("h before j", [("x", [f"{LAST}: 9", "Nats-Stream-Source: z"])],
     (10227, "message stream source header is not allowed")),
    ("j before m", [("x", [f"{LAST}: 9", "Nats-Schedule: z"])], wrong(2)),
    ("j before n", [("x", [f"{LAST}: 9", "Nats-Rollup: sub"])], wrong(2)),
    ("j before l", [("x", [f"{LAST}: 9", f"{OF}: p"])], wrong(2)),
    ("m before n", [("x", ["Nats-Schedule: z", "Nats-Rollup: sub"])], (10188, "message schedules is disabled")),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_rows(messages: list[Message], expected: object) -> None:
    stream = Atomic()
    stream.one("p")
    stream.one("q")
    assert stream.batch(*messages) == expected
    assert stream.one("after") == (expected + 1 if isinstance(expected, int) else 3), "a refusal takes no sequence"


@pytest.mark.parametrize(
    ("messages", "expected", "left"),
    [
        ([("x", ["Nats-Rollup: zz"])], (10111, 'rollup value invalid: "zz"'), [1, 2, 3]),
        ([("x", []), ("x", ["Nats-Rollup: sub"])], (10111, "batch rollup sub invalid"), [1, 2, 3]),
        ([("x", ["Nats-Rollup: sub"])] * 2, (10111, "batch rollup sub invalid"), [1, 2, 3]),
        ([("x", []), ("x", ["Nats-Rollup: all"])], (10111, "batch rollup all invalid"), [1, 2, 3]),
        ([("p", ["Nats-Rollup: sub"]), ("p", []), ("q", ["Nats-Rollup: SUB"])], 6, [4, 5, 6]),
        ([("p", []), ("q", ["Nats-Rollup: sub"])], 5, [1, 3, 4, 5]),
        ([("x", ["Nats-Rollup: all"]), ("x", [])], 5, [4, 5]),
    ],
)
def test_rollups(messages: list[Message], expected: object, left: list[int]) -> None:
    stream = Atomic(allow_rollup_hdrs=True)
    for subject in "pqp":
        stream.one(subject)
    assert stream.batch(*messages) == expected
    assert stream.seqs() == left


def x(n: int, subject: str = "x") -> list[Message]:
    return [(subject, [])] * n


FULL, FULL_BYTES = (10077, "maximum messages exceeded"), (10077, "maximum bytes exceeded")
FULL_SUBJECT = (10077, "maximum messages per subject exceeded")


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("config", "messages", "expected"),
    [
        ({"max_msgs": 3}, x(3), FULL),
        ({"max_msgs": 3}, x(2), 3),
        ({"max_msgs": 3, "max_msgs_per_subject": 1}, x(3, "p"), FULL),
        ({"max_bytes": 32 + 2 * 90}, x(2), 3),
        ({"max_bytes": 31 + 2 * 90}, x(2), FULL_BYTES),
        ({"max_msgs_per_subject": 1, "discard_new_per_subject": True}, [("a", []), ("b", [])], 3),
        ({"max_msgs_per_subject": 1, "discard_new_per_subject": True}, x(2), FULL_SUBJECT),
        ({"max_msgs_per_subject": 1, "discard_new_per_subject": True}, [("x", []), ("p", [])], FULL_SUBJECT),
        ({"max_msgs_per_subject": 2, "discard_new_per_subject": True}, [("x", []), ("p", [])], 3),
    ],
)
def test_discard_new(config: dict[str, object], messages: list[Message], expected: object, plain: bool) -> None:
    stream = Atomic(discard="new", **config)
    stream.one("p")
    assert stream.batch(*messages, plain=plain) == expected


def test_a_rollup_is_exempt_from_the_limit_per_subject() -> None:
    stream = Atomic(discard="new", max_msgs_per_subject=1, discard_new_per_subject=True, allow_rollup_hdrs=True)
    stream.one("p")
    assert stream.batch(("x", []), ("p", ["Nats-Rollup: sub"])) == 3
    assert stream.seqs() == [2, 3]


def test_discard_old_evicts_the_head_of_the_batch_itself() -> None:
    stream = Atomic(max_msgs=3)
    stream.one("p")
    assert stream.batch(*x(5), plain=True) == 6
    assert stream.seqs() == [4, 5, 6]


@pytest.mark.parametrize("plain", [False, True])
def test_what_changed_between_proposal_and_apply_is_decided_in_apply(plain: bool) -> None:
    assert Atomic(sealed=True).batch(*x(2), plain=plain) == (10109, "invalid operation on sealed stream")
    assert Atomic(max_msg_size=20).batch(*x(2), plain=plain) == (10054, "message size exceeds maximum allowed")
    stream = Atomic()
    stream.apply(commands.encode_update_config(0, {"name": "S"}))
    assert stream.batch(*x(2), plain=plain) == (10174, "atomic publish is disabled")


def test_message_ids_where_they_are_allowed() -> None:
    duplicate = 10201, "atomic publish batch contains duplicate message id"
    stream = Atomic()
    stream.one("p", "Nats-Msg-Id: 0")
    one, two = [("x", [f"Nats-Msg-Id: {n}"]) for n in (1, 2)]
    assert stream.batch(one, ("x", ["Nats-Msg-Id: 0"]), allow_msg_id=True) == duplicate
    assert stream.batch(one, one, allow_msg_id=True) == duplicate
    assert stream.batch(one, two, allow_msg_id=True) == 3
    assert stream.batch(x(1)[0], two, allow_msg_id=True) == duplicate
    stream.restart()
    assert stream.batch(one, allow_msg_id=True) == duplicate
    stream.now += 121 * SECOND
    assert stream.batch(one, allow_msg_id=True) == 4
    assert stream.one("p", "Nats-Expected-Last-Msg-Id: 1") == 5


def test_counters_count_through_the_batch() -> None:
    stream = Atomic(allow_msg_counter=True)
    assert stream.batch(*x(1), payload=b"", plain=True) == (10169, "message counter increment is missing")
    assert stream.batch(("c", ["Nats-Incr: 1"])) == (10170, "message counter has payload")
    assert stream.batch(("c", ["Nats-Incr: 1", f"{LAST}: 0"]), payload=b"")[0] == 10171  # type: ignore[index]
    assert stream.batch(("c", ["Nats-Incr: 1"]), ("c", ["Nats-Incr: +4"]), ("d", ["Nats-Incr: -3"]), payload=b"") == 3
    assert stream.batch(("c", ["Nats-Incr: 10"]), ("d", []), payload=b"")[0] == 10169  # type: ignore[index]
    assert stream.batch(("c", ["Nats-Incr: 10"]), payload=b"") == 4
    assert [m.payload for m in stream.store.rows.values()] == [
        b'{"val":"1"}', b'{"val":"5"}', b'{"val":"-3"}', b'{"val":"15"}'
    ]  # fmt: skip


def test_ttls_and_schedules() -> None:
    stream = Atomic(allow_msg_ttl=True, allow_msg_schedules=True, allow_rollup_hdrs=True, subjects=[">"])
    assert stream.batch(("x", ["Nats-TTL: zz"])) == (10165, "invalid per-message TTL")
    assert stream.batch(("x", ["Nats-TTL: 1s"]), ("y", ["Nats-TTL: 100s"])) == 2
    stream.now += 2 * SECOND
    stream.apply(commands.encode_expire(stream.now))
    assert stream.seqs() == [2]
    schedule = ["Nats-Schedule: @every 1h", "Nats-Schedule-Target: t"]
    assert stream.batch(("s", ["Nats-Schedule: zz", "Nats-Schedule-Target: t"]))[0] == 10189  # type: ignore[index]
    assert stream.batch(("s", schedule), ("s", schedule)) == (10111, "batch rollup sub invalid")
    assert stream.batch(("s", schedule), ("y", [])) == 4
    assert b"Nats-Rollup: sub" in stream.store.rows[3].headers
    assert stream.machine.fire_command(stream.now + 7200 * SECOND) is not None


def test_subjects_are_mapped_before_they_are_checked() -> None:
    stream = Atomic(subject_transform={"src": "in.*", "dest": "out.{{wildcard(1)}}"})
    assert stream.batch(("in.1", []), ("in.1", [f"{SUBJECT}: 0"])) == WRONG
    assert stream.batch(("in.1", []), ("in.2", [f"{SUBJECT}: 0"])) == 2
    assert stream.batch(("in.1", [f"{SUBJECT}: 0"])) == wrong(1)
    assert [m.subject for m in stream.store.rows.values()] == [b"out.1", b"out.2"]


ENDS = [
    [], ["Nats-Msg-Id: 1"], ["Nats-Msg-Id: 2"], [f"{LAST}: 2"], [f"{LAST}: 3"], ["Nats-Msg-Id: 1", f"{LAST}: 2"],
    ["Nats-Msg-Id:"], ["Nats-TTL: 5s"], ["KV-Operation: PURGE"], ["Foo: 1"], ["Nats-Foo: 1"], [f"{OF}: p"],
]  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"allow_rollup_hdrs": True},
        {"allow_msg_ttl": True},
        {"max_msgs": 3},
        {"name": "KV_b", "allow_rollup_hdrs": True},
    ],
)
@pytest.mark.parametrize(
    "middle", [[], ["Foo: 1"], ["Nats-Msg-Id: 3"], ["Nats-TTL: 5s"], ["Foo: 1\nKV-Operation: PURGE"]]
)
def test_a_batch_with_meaning_at_its_ends_only_is_as_one_checked_in_full(
    config: dict[str, object], middle: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is remembered of it: the ids in the window, and that of the last message."""
    short = 0
    store = atomic_checks.store

    def noted(staging: Any, batch: Batch, first_seq: int, ts: int, checked: Any) -> None:
        nonlocal short
        short += isinstance(checked, Passed)
        store(staging, batch, first_seq, ts, checked)

    def outcome(first: list[str], last: list[str]) -> object:
        stream = Atomic(**config)
        stream.one("p")
        stream.one("q", "Nats-Msg-Id: 2")
        answer = stream.batch(("x", first), ("y", middle), ("z", last), allow_msg_id=True)
        expects = stream.one("r", "Nats-Expected-Last-Msg-Id: 1")
        after = [stream.one("r", f"Nats-Msg-Id: {n}") for n in (1, 2, 3)]
        return answer, expects, after, stream.store.rows, stream.machine.hash

    for first, last in itertools.product(ENDS, ENDS):
        with monkeypatch.context() as patch:
            patch.setattr(atomic_checks, "store", noted)
            found = outcome(first, last)
            patch.setattr(AtomicChecks, "_meaning_at_ends", lambda self: False)
            assert found == outcome(first, last), (first, last)
    assert short == (0 if middle and middle != ["Foo: 1"] else 22)  # of those that are not refused
