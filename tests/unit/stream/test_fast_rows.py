"""Rows of fast-ingest batches: the same on all replicas, also after a restart, and bounded."""

from __future__ import annotations

import random

import pytest

from jetcluster.store.batch import Batch
from jetcluster.stream.apply import fast_rows
from jetcluster.stream.apply.fast_rows import HOLD_NS, MAX_ROWS, FastRowError, FastRows
from jetcluster.stream.apply.machine import StateError
from jetcluster.stream.log import commands
from jetcluster.stream.log.fast_parts import ENDED, FastPart, FastRun
from jetcluster.stream.ports import SIDE_FAST, PublishResult
from tests.unit.stream.fake_store import NaiveStore, block
from tests.unit.stream.test_machine import Stream

WRONG = block("Nats-Expected-Last-Sequence: 99")


def fast(
    stream: Stream, *parts: tuple[str, int, int], gap_ok: bool = True, wrong: int = -1, commits: bool = False
) -> PublishResult:
    """Applies a command: (batch, first sequence, messages) one behind the other; message `wrong` is refused."""
    made, at = [], 0
    for name, seq, count in parts:
        stem = f"p.{name}".encode()
        made.append(FastPart(name.encode(), stem, 10, gap_ok, commits, [FastRun(at, count, seq)]))
        at += count
    headers = [WRONG if place == wrong else b"" for place in range(at)]
    batch = Batch.encode([b"a"] * at, headers, [b"x"] * at)
    result = stream.apply(commands.encode_fast(stream.now, made, batch))
    assert isinstance(result, PublishResult)
    return result


def test_a_row_says_how_far_the_batch_has_come() -> None:
    stream = Stream()
    fast(stream, ("b", 1, 3), ("c", 1, 1))
    fast(stream, ("b", 4, 2))
    row = stream.machine.fast.by_id[b"b"]
    assert (row.seq, row.stored, row.flow, row.stem, row.gap_ok, row.ended) == (5, 6, 10, b"p.b", True, False)
    stream.restart()
    again = stream.machine.fast.by_id[b"b"]
    assert again.encode() == row.encode()


def test_the_committing_message_takes_the_row_along() -> None:
    stream = Stream()
    fast(stream, ("b", 1, 3))
    fast(stream, ("b", 4, 1), commits=True)
    assert not stream.machine.fast.by_id
    stream.restart()
    assert not stream.machine.fast.by_id
    assert stream.seqs() == [1, 2, 3, 4]


def test_a_refused_message_ends_a_batch_without_gaps_for_all_commands_behind_it() -> None:
    """The publisher had sent them before it heard of the refusal."""
    stream = Stream()
    result = fast(stream, ("b", 1, 4), gap_ok=False, wrong=2)
    assert result.verdicts is not None
    assert result.verdicts[:2] == [1, 2] and result.verdicts[3] is ENDED
    stream.restart()
    assert fast(stream, ("b", 5, 2), gap_ok=False).verdicts == [ENDED, ENDED]
    assert fast(stream, ("other", 1, 2), gap_ok=False).verdicts is None
    assert fast(stream, ("b", 1, 2), gap_ok=False).verdicts is None  # a new one of the same name
    assert fast(stream, ("b", 3, 1), gap_ok=False).verdicts is None


def test_a_refused_message_is_a_gap_where_those_are_taken() -> None:
    stream = Stream()
    fast(stream, ("b", 1, 4), wrong=2)
    assert fast(stream, ("b", 5, 2)).verdicts is None
    assert stream.seqs() == [1, 2, 3, 4, 5]
    assert stream.machine.fast.by_id[b"b"].seq == 6


def test_rows_go_when_they_are_old_and_when_there_are_too_many() -> None:
    stream = Stream()
    fast(stream, ("old", 1, 1))
    stream.now += HOLD_NS // 2
    fast(stream, ("b", 1, 1))
    stream.now += HOLD_NS // 2 + 10
    fast(stream, ("c", 1, 1))
    assert list(stream.machine.fast.by_id) == [b"b", b"c"]
    stream.now += HOLD_NS // 2
    stream.one("a")  # any command does it
    assert list(stream.machine.fast.by_id) == [b"c"]
    for n in range(0, MAX_ROWS, 100):
        fast(stream, *[(f"n{n + k}", 1, 1) for k in range(100)])
    assert len(stream.machine.fast.by_id) == MAX_ROWS
    assert b"c" not in stream.machine.fast.by_id
    stream.restart()
    assert len(stream.machine.fast.by_id) == MAX_ROWS


def test_replicas_stay_alike_whichever_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_rows, "MAX_ROWS", 3)
    random_ = random.Random(5)
    one, two = Stream(), Stream()
    for _ in range(300):
        two.now = one.now = one.now + random_.choice([1, 10**9, HOLD_NS])
        names = random_.sample("bcdef", random_.randint(1, 3))
        parts = [(name, random_.choice([1, 2, 7]), random_.randint(1, 3)) for name in names]
        wrong, gap_ok, commits = random_.randint(-4, 3), random_.random() < 0.5, random_.random() < 0.2
        results = [fast(each, *parts, gap_ok=gap_ok, wrong=wrong, commits=commits) for each in (one, two)]
        assert results[0] == results[1]
        if random_.random() < 0.3:
            two.restart()
        assert one.machine.hash == two.machine.hash
        rows = [[(key, row.encode()) for key, row in each.machine.fast.by_id.items()] for each in (one, two)]
        assert rows[0] == rows[1]
        assert len(rows[0]) <= 3


@pytest.mark.parametrize("row", [b"", b"\xff" * 60])
def test_a_row_of_another_version_is_an_error(row: bytes) -> None:
    store = NaiveStore()
    store.side_put(SIDE_FAST, b"b", row)
    with pytest.raises(FastRowError):
        FastRows(store)
    stream = Stream()
    stream.store.side_put(SIDE_FAST, b"b", row)
    with pytest.raises(StateError):
        stream.machine.reload()
