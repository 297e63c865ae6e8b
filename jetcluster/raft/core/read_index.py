"""Linearizable reads: ReadIndex (Raft dissertation, section 6.4), one round for all reads of a loop turn.

A read may be served from local state once a majority has answered an append that left *after* the read arrived, and
everything committed by then is applied. A lease (`lease.py`) spares reads the round; what changes something takes it.
pysyncobj's `_isLeader()` has no such guarantee (docs/reference/pysyncobj.md, D17).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import field

from jetcluster.raft import codec
from jetcluster.raft.core.group_state import GroupState, Owner
from jetcluster.records import dataclass

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
    """The reads of one group, on its leader. `resign` gives up the leadership without a successor."""

    def __init__(self, state: GroupState, owner: Owner, resign: Callable[[], None]) -> None:
        self._state = state
        self._owner = owner
        self._resign = resign
        self._collecting: dict[str | None, list[Callback]] = {}
        self._rounds: deque[_Round] = deque()
        self._context = 0
        self.waiting = False
        """True while reads wait."""

    def add(self, callback: Callback, exclude: str | None = None) -> None:
        """Add a read to this turn's round. The answer of `exclude` does not count (see `Rejoin`)."""
        self._collecting.setdefault(exclude, []).append(callback)
        self.waiting = True
        self._state.mark()

    def context_to_send(self) -> int:
        """Open rounds for the collected reads; return the newest context, which appends should carry, or 0."""
        state = self._state
        if self._context + len(self._collecting) >= codec.NO_REPLY:
            self._resign()  # contexts must grow within a term: only a new term can begin again at 1
        elif self._collecting and (state.ready or self._collecting.keys() != {None}):
            for exclude, callbacks in list(self._collecting.items()):
                if exclude is None and not state.ready:
                    continue  # the commit index is not known yet; a round with `exclude` does not need it
                del self._collecting[exclude]
                self._context += 1
                opened = _Round(self._context, exclude, callbacks, index=state.engine.commit if exclude is None else 0)
                if exclude != state.me:
                    opened.answered.add(state.me)
                self._rounds.append(opened)
            self._settle()
        return self._rounds[-1].context if self._rounds else 0

    def on_answer(self, peer: str, context: int) -> None:
        """Count the answer of `peer` to `context` for all rounds up to it. A context that was never sent is ignored."""
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
        """Answer the confirmed rounds whose index is applied. They may overtake a round that excludes a peer."""
        applied = self._state.applied_index
        done = [opened for opened in self._rounds if opened.confirmed and opened.index <= applied]
        if done:
            self._rounds = deque(opened for opened in self._rounds if opened not in done)
        for opened in done:
            for callback in opened.callbacks:
                self._owner.call(callback, True)
        self.waiting = bool(self._rounds or self._collecting)

    def begin(self) -> None:
        """Begin a new term at context 1: answers of earlier terms are ignored."""
        self._context = 0

    def fail(self) -> None:
        """Fail all reads: the leadership is lost."""
        rounds, self._rounds = self._rounds, deque()
        collecting, self._collecting = self._collecting, {}
        self.waiting = False
        for opened in rounds:
            for callback in opened.callbacks:
                self._owner.call(callback, False)
        for callbacks in collecting.values():
            for callback in callbacks:
                self._owner.call(callback, False)
