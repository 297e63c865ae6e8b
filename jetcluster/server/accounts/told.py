"""`Told`: the streams' last sequences that one connection was told are stored, by the PubAcks that passed to it here.

A mirror whose upstream is gone asks for it: its copy is what a reader may get that was told of nothing later
(`replica.reads.confirm`). PubAcks are known by their bytes, as other nodes and leaf links bring them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from jetcluster import native
from jetcluster.protocol.bus import TOLD_ANYTHING

MAX_STREAMS: Final = 32
"""Streams remembered per connection; with more, the one told of least recently is forgotten."""
OLDER_NS: Final = 10_000_000_000
"""Nanoseconds by which an ack must be older than a stream to be of an earlier one of its name: clocks drift, and the
stream's servers may have agreed on the time a little later."""

_START: Final = b'{"stream":"'
_SEQ: Final = b',"seq":'
_MAX_HEAD_BYTES: Final = 1024
_MAX_DIGITS: Final = 18


class Told:
    """The sequences that one connection was told of."""

    __slots__ = ("_last", "_lost")

    def __init__(self) -> None:
        self._last: dict[bytes, tuple[int, int, int, int]] = {}
        """Stream, as `stream.lead.answers.PubAcks.stream` -> (highest sequence, when it was told, highest one told
        after it, when one was told after it). A stream that was created anew begins with lower ones."""
        self._lost = False
        """A stream was forgotten."""

    def note(self, told: Iterable[tuple[bytes, int]], now: int) -> None:
        """Notes (stream, sequence) pairs at `now`, nanoseconds of `Clock.uptime`."""
        last = self._last
        for stream, seq in told:
            known = last.pop(stream, None)
            if known is None or seq >= known[0]:
                last[stream] = seq, now, 0, 0
            else:
                last[stream] = known[0], known[1], max(known[2], seq), now
            if len(last) > MAX_STREAMS:
                del last[next(iter(last))]
                self._lost = True

    def of(self, stream: bytes, created: int) -> int:
        """Returns the last sequence told of the stream that was created then (as `now` of `note`), 0 for none."""
        known = self._last.get(stream)
        if known is None:
            return TOLD_ANYTHING if self._lost else 0
        highest, when, later, later_when = known
        since = created - OLDER_NS
        if when >= since:
            return highest
        return later if later_when >= since else 0


def told_by(messages: Sequence[tuple[bytes, ...]], place: int, count: int) -> Sequence[tuple[bytes, int]]:
    """Returns (stream, highest sequence) of the PubAcks in a row among `count` messages from `place` on, whose payload
    is their last part."""
    if native.told_by is not None and isinstance(messages, list):
        return native.told_by(messages, place, count)
    found: list[tuple[bytes, int]] = []
    for message in messages[place : place + count]:
        ack = told(message[-1])
        if ack is None:
            continue
        if found and found[-1][0] == ack[0]:
            found[-1] = max(found[-1], ack)
        else:
            found.append(ack)
    return found


def told(payload: bytes) -> tuple[bytes, int] | None:
    """Returns (stream, sequence) of a PubAck; None for any other payload, and for one that names its domain last."""
    if not payload.startswith(_START):
        return None
    comma = payload.find(_SEQ, 0, _MAX_HEAD_BYTES)
    begin = end = comma + len(_SEQ)
    while end < len(payload) and 48 <= payload[end] <= 57:
        end += 1
    if comma < 0 or not 0 < end - begin <= _MAX_DIGITS:
        return None
    if payload[end : end + 1] not in (b"}", b",") or payload.startswith(b',"domain"', end):
        return None
    seq = int(payload[begin:end])
    return (payload[: comma + 1], seq) if seq else None
