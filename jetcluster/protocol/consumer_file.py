"""The state of a consumer in an archive of format V1: `obs/<name>/o.dat`, a file of nats-server.

    u8 22 | u8 version | ack floor: consumer's sequence, stream's | delivered: the same | pending
    | if there are any: time, seconds, and of each: stream's sequence, consumer's sequence (version 2), seconds
    | redelivered | each: stream's sequence, count

Numbers are Go's varints. Sequences of pending messages are counted from the ack floor, and their times back from the
one before them (in version 1 on from it). Version 1 has as delivered how far it is beyond the ack floor.
"""

from __future__ import annotations

from typing import Any, Final

from jetcluster.budget import Steps
from jetcluster.protocol.stream_archive import ArchiveError

MAX_PENDING: Final = 50_000
"""Pending messages beyond which a consumer begins at its ack floor, as `consumer.state.archived` has it."""
STEP_NUMBERS: Final = 500
_MAGIC: Final = 22
_SECOND: Final = 1_000_000_000
_LIMIT: Final = 1 << 63

Fields = dict[str, Any]


def decoding(raw: bytes) -> Steps[Fields]:
    """Returns the `state` of a consumer as archives of format V2 have it, in steps. Raises ArchiveError."""
    try:
        return (yield from _Numbers(raw).state())
    except IndexError:
        raise ArchiveError("the state of a consumer is cut off") from None


class _Numbers:
    """The numbers of a file, one after the other. Raises IndexError at its end."""

    def __init__(self, raw: bytes) -> None:
        if raw[:1] != bytes((_MAGIC,)) or raw[1:2] not in (b"\x01", b"\x02"):
            raise ArchiveError("the state of a consumer is of an unknown kind")
        self._raw = raw
        self._version = raw[1]
        self._at = 2

    def state(self) -> Steps[Fields]:
        floor = (self._next(), self._next())
        delivered = (self._next(), self._next())
        if self._version == 1:
            delivered = (delivered[0] + max(floor[0] - 1, 0), delivered[1] + max(floor[1] - 1, 0))
        if max(*floor, *delivered) >= _LIMIT:
            raise ArchiveError("the state of a consumer is out of bounds")
        found: Fields = {
            "delivered": {"consumer_seq": delivered[0], "stream_seq": delivered[1]},
            "ack_floor": {"consumer_seq": floor[0], "stream_seq": floor[1]},
        }
        pending = self._next()
        if pending > MAX_PENDING:
            return {**found, "delivered": found["ack_floor"]}
        found["pending"] = yield from self._pending(pending, floor)
        again: dict[str, int] = {}
        for number in range(self._next()):
            seq, count = self._next(), self._next()
            if seq and count and (key := str(seq + floor[1])) in found["pending"]:
                again[key] = count
            if number % STEP_NUMBERS == 0:
                yield
        return {**found, "redelivered": again}

    def _pending(self, count: int, floor: tuple[int, int]) -> Steps[Fields]:
        found: Fields = {}
        base = self._signed() if count else 0
        for number in range(count):
            seq = self._next() + floor[1]
            own = self._next() + floor[0] if self._version == 2 else floor[0]
            moved = self._signed()
            seconds = base - moved if self._version == 2 else base + moved
            if seq >= _LIMIT or own >= _LIMIT:
                raise ArchiveError("the state of a consumer is out of bounds")
            found[str(seq)] = {"Sequence": own, "Timestamp": min(max(seconds * _SECOND, 0), _LIMIT - 1)}
            if number % STEP_NUMBERS == 0:
                yield
        return found

    def _next(self) -> int:
        value = shift = 0
        while True:
            byte = self._raw[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ArchiveError("the state of a consumer has a number that is too long")

    def _signed(self) -> int:
        value = self._next()
        return value >> 1 ^ -(value & 1)
