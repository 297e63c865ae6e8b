"""The numbers that CONSUMER.INFO must tell of one consumer with explicit acks, by what its client knows: pure, and
exact where nothing is under way. Numbers of deliveries are the consumer's, sequences the stream's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Numbers(NamedTuple):
    """As CONSUMER.INFO has them: (consumer's, stream's) where they are two."""

    delivered: tuple[int, int]
    ack_floor: tuple[int, int]
    num_ack_pending: int
    num_pending: int
    num_redelivered: int

    @classmethod
    def of(cls, info: dict[str, object]) -> Numbers:
        return cls(
            _pair(info["delivered"]),
            _pair(info["ack_floor"]),
            _number(info["num_ack_pending"]),
            _number(info["num_pending"]),
            _number(info["num_redelivered"]),
        )


class ConsumerNumbers:
    """The numbers of one consumer of a stream, by what is done with both. The floor lies right below the oldest message
    that waits for its ack, and at the newest delivery where none waits. What a purge of all has removed counts as
    delivered and acknowledged."""

    def __init__(self, wanted: Iterable[str] = ()) -> None:
        """`wanted`: the subjects that it takes; all of them where none is named."""
        self.there: dict[int, str] = {}
        """Subjects of the messages of the stream, by sequence."""
        self.waiting: dict[int, list[int]] = {}
        """Messages that wait for their acks: the number of the first delivery, and how many there were."""
        self._wanted = frozenset(wanted)
        self._last = 0
        self._number = 0
        self._delivered = 0
        self._floor = 0, 0
        self._purged = 0

    # ---- what is done

    def store(self, seq: int, subject: str) -> None:
        self.there[seq] = subject
        self._last = max(self._last, seq)

    def remove(self, seqs: Iterable[int]) -> None:
        """Messages are deleted, purged with a filter, or too many: nobody waits for their acks any more."""
        for seq in list(seqs):
            self.there.pop(seq, None)
            self._settle(seq)

    def purge(self) -> None:
        """All of the stream."""
        self.remove(list(self.there))
        self._purged = max(self._purged, self._last)

    def deliver(self, seq: int) -> None:
        self._number += 1
        self._delivered = max(self._delivered, seq)
        self.waiting.setdefault(seq, [self._number, 0])[1] += 1

    def ack(self, seq: int) -> None:
        """Acknowledged or terminated."""
        self._settle(seq)

    def reset(self, seq: int) -> None:
        """It begins at `seq` as a new one would."""
        self.waiting.clear()
        self._number, self._delivered, self._purged = 0, seq - 1, 0
        self._floor = 0, seq - 1

    def _settle(self, seq: int) -> None:
        if self.waiting.pop(seq, None) is None:
            return
        if not self.waiting:
            self._floor = self._number, self._delivered
            return
        oldest = min(self.waiting)
        below = self.waiting[oldest][0] - 1
        if below > self._floor[0]:
            self._floor = below, max(oldest - 1, self._floor[1])

    def pass_over(self, found: Numbers) -> None:
        """It may have looked ahead, and know that nothing up to there is for it, or there at all: so it says, and so
        does its floor where nothing waits."""
        ahead = found.delivered[1]
        if ahead > self._last or any(seq <= ahead for seq in self.to_come):
            return
        self._delivered = max(self._delivered, ahead)
        if not self.waiting and self._floor[1] <= found.ack_floor[1] <= self._delivered:
            self._floor = self._floor[0], found.ack_floor[1]

    # ---- what must be so

    @property
    def to_come(self) -> list[int]:
        """Messages that were not delivered yet, in their order."""
        return [seq for seq in sorted(self.there) if seq > self._delivered and self._wants(self.there[seq])]

    def expected(self) -> Numbers:
        return Numbers(
            (self._number, max(self._delivered, self._purged)),
            (self._floor[0], max(self._floor[1], self._purged)),
            len(self.waiting),
            len(self.to_come),
            sum(count > 1 for _, count in self.waiting.values()),
        )

    def _wants(self, subject: str) -> bool:
        return not self._wanted or subject in self._wanted


def _pair(value: object) -> tuple[int, int]:
    assert isinstance(value, dict)
    return _number(value["consumer_seq"]), _number(value["stream_seq"])


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
