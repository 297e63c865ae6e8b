from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.stream import commands
from jetcluster.stream.commands import CommandError, FastPublish
from jetcluster.stream.fast_parts import (
    ENDED,
    FastGate,
    FastPart,
    FastRun,
    SettledPart,
    decode_parts,
    encode_parts,
    settle,
)
from jetcluster.stream.ports import Counted, Duplicate, PublishResult, Verdict

NO: ApiError = errors.by_code(10071, seq=1)
RUNS = [FastRun(0, 2, 5), FastRun(3, 1, 9)]


def part(runs: list[FastRun] = RUNS, *, gap_ok: bool = True) -> FastPart:
    return FastPart(b"id", b"p.id.10.ok", 10, gap_ok, False, runs)


def test_parts_come_back_as_they_were() -> None:
    parts = [part(), FastPart(b"x" * 64, b"", 65_535, False, True, [FastRun(2, 1, 1)])]
    raw = encode_parts(parts)
    assert decode_parts(raw, 0, 4) == parts
    command = commands.encode_fast(7, parts, Batch.encode([b"a"] * 4, [], [b""] * 4))
    decoded = commands.decode(command)
    assert isinstance(decoded, FastPublish) and decoded.parts == parts and decoded.ts == 7


def test_a_part_may_say_that_its_batch_is_over_and_nothing_else() -> None:
    over = FastPart(b"id", b"", 10, True, False, ends=True)
    parts = [over, part(), over._replace(gap_ok=False)]
    assert decode_parts(encode_parts(parts), 0, 4) == parts and not over.begins
    command = commands.encode_fast(7, [over], b"")
    assert commands.decode(command) == FastPublish(7, None, [over])
    for wrong in ([over._replace(runs=RUNS)], [part([])]):
        with pytest.raises(ValueError):
            decode_parts(encode_parts(wrong), 0, 4)
    with pytest.raises(CommandError):
        commands.decode(commands.encode_fast(7, [part()], b""))  # messages that are not there


@given(st.binary(max_size=80))
def test_bytes_that_are_no_parts_are_no_command(raw: bytes) -> None:
    batch = Batch.encode([b"a"] * 4, [], [b""] * 4)
    head = commands.HEAD.pack(commands.FAST_PUBLISH, 0, 7)
    try:
        decoded = commands.decode(head + struct.pack("<I", len(raw)) + raw + batch)
    except CommandError:
        return
    assert isinstance(decoded, FastPublish)
    assert all(run.start + run.count <= 4 for each in decoded.parts for run in each.runs)


@pytest.mark.parametrize(
    "runs",
    [
        [], [FastRun(3, 2, 1)], [FastRun(0, 0, 1)], [FastRun(0, 1, 0)], [FastRun(0, 2, (1 << 64) - 1)],
        [FastRun(0, 2, 5), FastRun(2, 1, 6)],
    ],
)  # fmt: skip
def test_a_part_must_stay_inside_its_command(runs: list[FastRun]) -> None:
    with pytest.raises(ValueError):
        decode_parts(encode_parts([part(runs)]), 0, 4)


@pytest.mark.parametrize(
    ("verdicts", "gap_ok", "settled"),
    [
        (None, True, SettledPart(9, 23, [], None)),
        ([20, 21, 22, 23], False, SettledPart(9, 23, [], 23)),
        ([20, NO, 22, 23], True, SettledPart(9, 23, [(6, NO)], 23)),
        ([20, NO, 22, ENDED], False, SettledPart(5, 20, [(6, NO)], NO)),
        ([NO, ENDED, 22, ENDED], False, SettledPart(0, 0, [(5, NO)], NO)),
        ([20, Duplicate(3), 22, Counted(23, b"8")], False, SettledPart(9, 23, [], Counted(23, b"8"))),
        ([20, 21, 22, NO], True, SettledPart(9, 21, [(9, NO)], NO)),
        ([Duplicate(1), Duplicate(2), 22, Duplicate(3)], True, SettledPart(9, 0, [], Duplicate(3))),
    ],
)
def test_how_far_a_batch_has_come(verdicts: list[Verdict] | None, gap_ok: bool, settled: SettledPart) -> None:
    assert settle(part(gap_ok=gap_ok), PublishResult(20, 4, verdicts)) == settled


def test_nothing_passes_behind_a_refused_message_of_a_batch_without_gaps() -> None:
    """Messages 1 and 2 are of the batch that takes none, 0 and 3 of nobody, 4 of one that takes gaps."""
    parts = [part([FastRun(1, 2, 1)], gap_ok=False), part([FastRun(4, 1, 1)])]

    def admit(place: int) -> Verdict:
        return NO if place in (1, 3, 4) else place

    gate = FastGate(parts, [False, False])
    assert gate.open
    assert gate.verdicts(5, admit) == [0, NO, ENDED, NO, NO]
    ended = FastGate(parts, [True, False])
    assert not ended.open
    assert ended.verdicts(5, lambda place: place) == [0, ENDED, ENDED, 3, 4]
