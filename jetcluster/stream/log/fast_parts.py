"""`FastPart`: the messages of one command that belong to a fast-ingest batch (ADR-50), and their outcomes.

A command has the messages published in one turn of the loop, of several batches and of none. It also has the place of
each in its batch, so that every replica knows the progress of each batch:

    u16 parts, then each
        u8 flags | u16 flow | u16 length of stem | u16 length of id | u16 runs | stem | id, then its runs
            u32 place in the command | u32 messages | u64 sequence in the batch

A part without runs ends its batch: the end came without a message, and was answered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.records import NamedTuple
from jetcluster.store.keys import MAX_SEQ
from jetcluster.stream.ports import Counted, Duplicate, PublishResult, Verdict

_COUNT: Final = struct.Struct("<H")
_HEAD: Final = struct.Struct("<BHHHH")
_RUN: Final = struct.Struct("<IIQ")
_GAP_OK: Final = 1
_COMMITS: Final = 2
_ENDS: Final = 4

ENDED: Final = errors.by_code(10208)
"""Verdict on a message after a refused one in a batch that takes no gaps. It is not sent: the batch was answered."""


class FastRun(NamedTuple):
    """Messages that are adjacent both in the command and in the batch."""

    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    seq: int

    @property
    def end(self) -> int:
        """Sequence of the last one."""
        return self.seq + self.count - 1


class FastPart(NamedTuple):
    """The messages of one batch in one command, in order; at least one run, or none if it `ends`."""

    batch_id: bytes
    stem: bytes
    """Beginning of the publisher's reply subjects."""
    flow: int
    gap_ok: bool
    commits: bool
    """The last message is the last one of the batch."""
    runs: Sequence[FastRun] = ()
    ends: bool = False
    """The batch ends without a message."""

    @property
    def messages(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def begins(self) -> bool:
        return not self.ends and self.runs[0].seq == 1


class SettledPart(NamedTuple):
    """Progress of a batch with one command."""

    seq: int
    """The last settled message: stored, a duplicate or, in a batch that takes gaps, refused. 0: none."""
    stored: int
    """Stream sequence of the last stored message, or 0."""
    refused: list[tuple[int, ApiError]]
    """(sequence in the batch, error); at most one, and none stored after it, in a batch that takes no gaps."""
    last: Verdict | None
    """Verdict on the part's last message; None: all were stored."""


def settle(part: FastPart, result: PublishResult) -> SettledPart:
    """Works out a batch's progress from the result of a command."""
    verdicts = result.verdicts
    end = part.runs[-1]
    if verdicts is None:
        last = end.start + end.count - 1
        return SettledPart(end.end, result.first_seq + last, [], None)
    seq = stored = 0
    refused: list[tuple[int, ApiError]] = []
    for run in part.runs:
        for k in range(run.count):
            verdict = verdicts[run.start + k]
            if isinstance(verdict, ApiError):
                refused.append((run.seq + k, verdict))
                if not part.gap_ok:
                    return SettledPart(seq, stored, refused, verdict)
            elif not isinstance(verdict, Duplicate):
                stored = verdict.seq if isinstance(verdict, Counted) else verdict
            seq = run.seq + k
    return SettledPart(seq, stored, refused, verdicts[end.start + end.count - 1])


class FastGate:
    """Holds back what a publisher sent after a refused message, in a batch that takes no gaps."""

    __slots__ = ("_ended", "_owners", "_parts")

    def __init__(self, parts: Sequence[FastPart], ended: Sequence[bool]) -> None:
        """`ended[n]`: batch `n` had a refused message in an earlier command."""
        self._parts = parts
        self._ended = list(ended)
        self._owners: dict[int, int] = {}
        """Numbers of the messages' parts, by place in the command. Filled by `verdicts`."""

    @property
    def open(self) -> bool:
        """True when no message is held back unless this command has a refused one."""
        return not any(self._ended)

    def owns(self, place: int) -> bool:
        """True when the message belongs to a batch; valid once `verdicts` runs."""
        return place in self._owners

    def verdicts(self, count: int, admit: Callable[[int], Verdict]) -> list[Verdict]:
        """Verdicts on `count` messages, each admitted by its place in the command or held back."""
        owners = self._owners
        for number, part in enumerate(self._parts):
            for run in part.runs:
                owners.update(dict.fromkeys(range(run.start, run.start + run.count), number))
        verdicts: list[Verdict] = []
        for place in range(count):
            owner = owners.get(place)
            if owner is None:
                verdicts.append(admit(place))
                continue
            verdict = ENDED if self._ended[owner] else admit(place)
            if isinstance(verdict, ApiError) and not self._parts[owner].gap_ok:
                self._ended[owner] = True
            verdicts.append(verdict)
        return verdicts


def encode_parts(parts: Sequence[FastPart]) -> bytes:
    pieces = [_COUNT.pack(len(parts))]
    for batch_id, stem, flow, gap_ok, commits, runs, ends in parts:
        flags = (_GAP_OK if gap_ok else 0) | (_COMMITS if commits else 0) | (_ENDS if ends else 0)
        pieces.append(_HEAD.pack(flags, flow, len(stem), len(batch_id), len(runs)) + stem + batch_id)
        pieces += [_RUN.pack(*run) for run in runs]
    return b"".join(pieces)


def decode_parts(raw: bytes, at: int, messages: int) -> list[FastPart]:
    """Decodes the parts of a command of `messages` messages. Raises ValueError, struct.error."""
    (count,) = _COUNT.unpack_from(raw, at)
    at += _COUNT.size
    parts = []
    for _ in range(count):
        flags, flow, stem_size, id_size, run_count = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        stem, batch_id = raw[at : at + stem_size], raw[at + stem_size : at + stem_size + id_size]
        at += stem_size + id_size
        end = at + run_count * _RUN.size
        runs = [FastRun(*fields) for fields in _RUN.iter_unpack(raw[at:end])]
        at = end
        ends = bool(flags & _ENDS)
        if flags & ~(_GAP_OK | _COMMITS | _ENDS) or len(runs) != run_count or ends == bool(runs) or not flow:
            raise ValueError("not a fast batch")
        if ends:
            parts.append(FastPart(batch_id, stem, flow, bool(flags & _GAP_OK), bool(flags & _COMMITS), ends=True))
            continue
        if any(run.start + run.count > messages or not run.count or not run.seq for run in runs):
            raise ValueError("a fast batch beyond its command")
        if runs[-1].end > MAX_SEQ or any(after.seq <= before.end for before, after in pairwise(runs)):
            raise ValueError("sequences of a fast batch out of order")
        parts.append(FastPart(batch_id, stem, flow, bool(flags & _GAP_OK), bool(flags & _COMMITS), runs))
    if at != len(raw):
        raise ValueError("trailing bytes")
    return parts
