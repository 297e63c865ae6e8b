"""Linearizable reads: ReadIndex (Raft dissertation, section 6.4), one round for all reads of a loop turn.

A read may be served from local state once a majority has answered an append that left *after* the read was asked for,
and everything committed by then is applied. pysyncobj's `_isLeader()` promises nothing of the kind
(docs/reference/pysyncobj.md, D17).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from jetcluster.raft import codec
from jetcluster.raft.core.group_state import GroupState, Owner

Callback = Callable[[bool], None]


@dataclass(slots=True)
class _Round:
    context: int
    exclude: str | None
    callbacks: list[Callback]
    answered: set[str] = field(default_factory=set)
    index: int = 0
    """The index that must be applied; set when the round leaves."""
    confirmed: bool = False


class ReadRounds:
    """The reads of one group, on its leader. `resign`: leads no more, without naming a successor."""

    def __init__(self, state: GroupState, owner: Owner, resign: Callable[[], None]) -> None:
        self._state = state
        self._owner = owner
        self._resign = resign
        self._collecting: dict[str | None, list[Callback]] = {}
        self._rounds: deque[_Round] = deque()
        self._context = 0
        self.waiting = False
        """Somebody waits for an answer."""

    def add(self, callback: Callback, exclude: str | None = None) -> None:
        """Joins the round of this turn. `exclude`: this peer's answer does not count (see `Rejoin`)."""
        self._collecting.setdefault(exclude, []).append(callback)
        self.waiting = True
        self._state.mark()

    def context_to_send(self) -> int:
        """Opens the round of what was collected; the newest context that appends should carry, or 0."""
        state = self._state
        if self._context + len(self._collecting) >= codec.NO_REPLY:
            self._resign()  # contexts are compared, so they begin anew in another term only
        elif self._collecting and (state.ready or self._collecting.keys() != {None}):
            for exclude, callbacks in list(self._collecting.items()):
                if exclude is None and not state.ready:
                    continue  # what is committed is not known yet; that this node leads, is
                del self._collecting[exclude]
                self._context += 1
                opened = _Round(self._context, exclude, callbacks, index=state.engine.commit if exclude is None else 0)
                if exclude != state.me:
                    opened.answered.add(state.me)
                self._rounds.append(opened)
            self._settle()
        return self._rounds[-1].context if self._rounds else 0

    def on_answer(self, peer: str, context: int) -> None:
        """`peer` answered an append of this term that carried `context`: all rounds up to it were under way. A context
        that was never sent answers nothing."""
        if not context or not self._rounds or context > self._context:
            return
        for opened in self._rounds:
            if opened.context > context:
                break
            if peer != opened.exclude:
                opened.answered.add(peer)
        self._settle()

    def _settle(self) -> None:
        for opened in self._rounds:
            if not opened.confirmed and self._agree(opened):
                opened.confirmed = True
        self.serve()

    def _agree(self, opened: _Round) -> bool:
        log = self._state.log
        if opened.exclude is None:
            return log.config.is_quorum(opened.answered)
        in_force = log.configs_from(self._state.engine.commit)
        return all(config.vouches(opened.answered, opened.exclude) for config in in_force)

    def serve(self) -> None:
        """Answers the confirmed rounds whose index is applied. One without a peer may be before those that wait for
        that very peer."""
        applied = self._state.applied_index
        done = [opened for opened in self._rounds if opened.confirmed and opened.index <= applied]
        if done:
            self._rounds = deque(opened for opened in self._rounds if opened not in done)
        for opened in done:
            for callback in opened.callbacks:
                self._owner.call(callback, True)
        self.waiting = bool(self._rounds or self._collecting)

    def begin(self) -> None:
        """This node leads a new term: answers of earlier ones are not heard any more, so contexts count from 1."""
        self._context = 0

    def fail(self) -> None:
        """Leadership is gone: nobody here can say."""
        rounds, self._rounds = self._rounds, deque()
        collecting, self._collecting = self._collecting, {}
        self.waiting = False
        for opened in rounds:
            for callback in opened.callbacks:
                self._owner.call(callback, False)
        for callbacks in collecting.values():
            for callback in callbacks:
                self._owner.call(callback, False)
