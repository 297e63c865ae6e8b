"""`Advance`: how far a consumer without acks has delivered, ahead of what the log knows.

Such a consumer sends at once and records afterwards: one ADVANCE op in flight, the next one holds everything sent
meanwhile. A former owner must not go on for ever: when too much, or for too long, is unconfirmed it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from jetcluster.consumer.state import ConsumerState
from jetcluster.consumer.turn import ADVANCE, Value

MAX_UNCONFIRMED: Final = 65_536
MAX_WAIT: Final = 2_000_000_000


class Advance:
    __slots__ = ("_confirmed", "_epoch", "_in_flight", "_state", "_submit", "_submitted", "cseq", "sseq")

    def __init__(self, state: ConsumerState, submit: Callable[[int, Value], None]) -> None:
        self._state = state
        self._submit = submit
        self._in_flight: deque[tuple[int, int]] = deque()
        """(consumer sequence up to which the op goes, when it was submitted)"""
        self.restart()

    def restart(self) -> None:
        """Goes on from the state."""
        state = self._state
        self._epoch = state.epoch
        self._in_flight.clear()
        self.cseq = self._submitted = self._confirmed = state.delivered_cseq
        """Consumer sequence of the last message sent."""
        self.sseq = state.delivered_sseq
        """Its stream sequence."""

    def sent(self, seq: int, count: int) -> None:
        """`count` messages more, the last at `seq`."""
        self.cseq += count
        self.sseq = seq

    def may_send(self, now: int) -> bool:
        if self._in_flight and now - self._in_flight[0][1] > MAX_WAIT:
            return False
        return self.cseq - self._confirmed < MAX_UNCONFIRMED

    def flush(self, now: int, *, at_once: bool = False, least: int = 1) -> None:
        """Puts what is new into the log, if that is `least` messages, and unless an op is in flight (`at_once`: all
        the same)."""
        count = self.cseq - self._submitted
        if count >= least and (at_once or not self._in_flight):
            self._submitted = self.cseq
            self._in_flight.append((self.cseq, now))
            self._submit(ADVANCE, (self.sseq, count))

    def applied(self, now: int, *, least: int = 1) -> None:
        self._confirmed, _ = self._in_flight.popleft()
        self.flush(now, least=least)

    def reset(self) -> None:
        """Told when what was in flight is lost. Messages once sent stay sent: they are put into the log again, unless
        the consumer begins anew, or the log knows of more or could not take so many."""
        state = self._state
        known, more = state.delivered_sseq, self.cseq - state.delivered_cseq
        if state.epoch != self._epoch or not 0 <= more <= self.sseq - known or known == self.sseq:
            self.restart()
        else:
            self._in_flight.clear()
            self._submitted = self._confirmed = state.delivered_cseq
