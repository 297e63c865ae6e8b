"""Outcomes of consumer commands, and who is told: the seam between the replicated table and the owners.

A CONSUMER_TURN gives a `TurnResult`. Its `outcomes` has one element per op of the turn, in their order:

| op | outcome |
|---|---|
| DELIVER, REDELIVER | `SentMessages` |
| ACK, TERM, EXHAUSTED, GONE | `SettledMessages`, the entries as they were |
| NAK, PROGRESS | `SettledMessages`, the entries as they are now |
| ADVANCE, SKIP, WAIT, UNWAIT, PIN | 1 when it changed something, else 0 |
| any, void | None: the consumer is gone, has another epoch, or the op does not fit it |
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from jetcluster.consumer.rules import ConsumerRules
    from jetcluster.consumer.state import ConsumerState, Pending
    from jetcluster.consumer.turn import Turn


class SentMessages(NamedTuple):
    """Deliveries that count from now on: the k-th of `seqs` is number `cseq + k` of the consumer."""

    cseq: int
    """Consumer sequence of the first; what the next delivery would get when `seqs` is empty."""
    seqs: list[int]
    """Stream sequences really taken, in the op's order."""
    deliveries: list[int] | None
    """Deliveries of each by now, this time counted in; None: all for the first time."""


class SettledMessages(NamedTuple):
    """Messages that were pending, of those the op names (with policy `all`: everything up to the highest)."""

    seqs: list[int]
    entries: list[Pending]
    """Parallel to `seqs`."""


Outcome = SentMessages | SettledMessages | int | None


class TurnResult:
    """Outcome of a turn. `accepted` is False when all of it was void: it belongs to no current session of its owner, or
    others of its session are missing before it. The owner then begins a new session, with a higher number than
    `ConsumerTable.session_of` tells, and goes on from the replicated state."""

    __slots__ = ("accepted", "marks", "outcomes")

    def __init__(self, *, accepted: bool) -> None:
        self.accepted = accepted
        self.outcomes: list[Outcome] = []
        self.marks: list[int] = []
        """Numbers of the states after each op: what the rolling hash sees of them."""

    def digest_bytes(self) -> bytes:
        """Short, unambiguous bytes for the stream's rolling hash."""
        return b"t" + struct.pack(f"<?{len(self.marks)}Q", self.accepted, *self.marks)


class TableObserver(Protocol):
    """Told of every change of the consumers, synchronously inside apply, on every replica. It must not change the
    table or the store and must not raise. The states are the table's own: read them, keep references to them (they
    are updated in place), do not change them."""

    def created(self, state: ConsumerState) -> None: ...

    def updated(self, state: ConsumerState, old_rules: ConsumerRules) -> None:
        """`state.rules` is new. The epoch is the same: ops in flight still count."""
        ...

    def deleted(self, state: ConsumerState) -> None:
        """It is no longer in the table."""
        ...

    def owner_changed(self, state: ConsumerState, old_owner: str) -> None:
        """`state.owner` and `state.epoch` are new; ops of the old owner that are in flight become void."""
        ...

    def restored(self) -> None:
        """The stream came out of an archive, and its consumers with it: they may begin. The new rules are in force
        right after this."""
        ...

    def paused(self, state: ConsumerState) -> None:
        """`state.rules` with another `pause_until` (0: it goes on)."""
        ...

    def reset(self, state: ConsumerState) -> None:
        """It starts again somewhere: nothing is pending, consumer sequences count from 1 and the epoch is one higher,
        so that ops in flight, decided before, become void. `state.pending` is another object."""
        ...

    def freed(self, state: ConsumerState) -> None:
        """Some of `state.pending` went without an op: their messages are no longer stored."""
        ...

    def turn_applied(self, turn: Turn, result: TurnResult) -> None:
        """After all of the turn's ops. Also for turns that were not accepted."""
        ...

    def reloaded(self) -> None:
        """All consumers were read from the store again (a snapshot was installed): every state is another object."""
        ...
