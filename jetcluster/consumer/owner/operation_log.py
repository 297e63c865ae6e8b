"""`ConsumerOperationLog`: puts the ops of this node's consumer owners into the log of one stream (docs/consumers.md).

The ops of a loop turn become one CONSUMER_TURN. Turns are numbered within a session and applied in order and without a
gap, or not at all. A turn that may be lost ends the session: no more ops are taken, and a new session begins with an
empty turn. Once that turn is applied here, every turn of the old session has been applied or never will be; only then
do the owners discard their views (`reset`) and continue. A void op also ends its session: its owner decided it by a
view that differs from the state, and would skip messages.

Sans I/O: the log, time and timers are parameters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from jetcluster.clock import Clock, Timers
from jetcluster.consumer.state import turn as log_turn
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import (
    ACK,
    ADVANCE,
    BURIED,
    BURY,
    EXHAUSTED,
    GONE,
    NAK,
    PROGRESS,
    SKIP,
    TERM,
    Op,
    Outcome,
    Turn,
    TurnResult,
    Value,
)
from jetcluster.records import NamedTuple

MAX_TURNS_IN_FLIGHT = 64
"""Turns in flight; with more the owners are not run."""
MAX_BYTES_IN_FLIGHT = 4 << 20
"""Bytes of turns in flight; with more the owners are not run."""
MAX_TURN_BYTES = 512 << 10
"""Approximate size of a turn: a log entry may hold 8 MiB."""
MAX_TURN_MESSAGES = 4096
"""Messages that the ops of a turn may settle or pass, unless a single op has more: each replica applies a turn in one
go, and may remove each of these messages from its stream, at up to 15 us."""
MAX_COLLECTED_BYTES = 32 << 20
"""Bytes that wait for room (acks arrive even while owners do not run); with more the session is given up."""
APPLY_SECONDS = 4.0
"""Time after which a turn that is not applied here counts as lost."""
REFUSED_SECONDS = 0.1
"""Time from a refused turn to a new session."""
BEGIN_SECONDS = 0.5
"""Time after which a first turn that is not applied is sent again; it doubles with each attempt."""
MAX_BEGIN_SECONDS = 8.0


_SETTLING = frozenset((ACK, NAK, TERM, PROGRESS, BURY, BURIED, EXHAUSTED, GONE))


class Submitter(Protocol):
    """The part of `consumer.owner.owner.ConsumerOwner` that turns need."""

    state: ConsumerState

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None: ...

    def reset(self) -> None: ...


class _Entry(NamedTuple):
    owner: Submitter
    kind: int
    value: Value
    token: object


class _Collected(NamedTuple):
    op: Op
    entry: _Entry
    size: int
    messages: int
    """Those that it may settle or pass."""


class _InFlight(NamedTuple):
    session: int
    serial: int
    entries: list[_Entry | None]
    """None for an op whose owner needs no outcome."""
    size: int
    sent: float


class ConsumerOperationLog:
    """Sessions and turns of this node's owners in one stream."""

    def __init__(
        self,
        me: bytes,
        *,
        send: Callable[[int, bytes], bool],
        session_of: Callable[[], int],
        owners: Callable[[], Iterable[Submitter]],
        on_room: Callable[[], None],
        on_error: Callable[[Exception], None],
        clock: Clock,
        timers: Timers,
    ) -> None:
        """`send(session, body)` sends the body of a CONSUMER_TURN to the stream's leader, in order, and returns False
        without a leader (`leader_changed` follows when there is one). `session_of` returns this node's newest session
        in the table, `owners` the owners to reset. `on_room` is called when owners may run again, `on_error` with an
        exception of an owner, after which the others are still called."""
        self._me = me
        self._send = send
        self._session_of = session_of
        self._owners = owners
        self._on_room = on_room
        self._on_error = on_error
        self._clock = clock
        self._timers = timers
        self._session = 0
        self._serial = 0
        self._open = False
        self._begun_at: float | None = None
        """Monotonic time of sending a session's first turn, until it is applied."""
        self._begin_wait = BEGIN_SECONDS
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._held: list[tuple[list[_Entry | None], list[Outcome]]] = []
        """Applied turns of a session that has ended. Their owners get the outcomes once the next session proves that
        they still own their consumers: another node may have delivered the same messages long ago."""
        self._collected: list[_Collected] = []
        self._collected_bytes = 0
        self._scheduled = False
        self._retrying = 0
        self.submitted = 0
        """Number of ops taken."""
        self.told = 0
        """Number of ops applied or lost: all ops up to a moment are settled once this reaches its `submitted`."""
        self.lost = 0
        """Number of sessions given up, for monitoring."""

    @property
    def may_run(self) -> bool:
        """True when owners may make new decisions."""
        return (
            self._open
            and len(self._in_flight) < MAX_TURNS_IN_FLIGHT
            and self._in_flight_bytes + self._collected_bytes < MAX_BYTES_IN_FLIGHT
        )

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def wanted(self) -> bool:
        """True when there is, or was, an owner here."""
        return self._session > 0

    @property
    def unsettled(self) -> bool:
        """True while `tick` is needed."""
        return self._begun_at is not None or bool(self._in_flight)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def want(self) -> None:
        """Begin the first session, as there is an owner now."""
        if not self._session:
            self._begin()

    def submit(self, owner: Submitter, kind: int, value: Value, token: object, messages: int = 0) -> None:
        """Collect an op for the next turn. Without an open session it is dropped, and a `reset` follows. `messages`:
        how many it may settle, if more than it names."""
        if not self._open:
            return
        self.submitted += 1
        state = owner.state
        if isinstance(value, list):
            size, named = 56 + 16 * len(value), len(value) if kind in _SETTLING else 0
            messages = max(named, messages)
        else:
            size, messages = 24 + _size(value), value[1] if kind == ADVANCE else 0  # type: ignore[index,assignment]
        if kind == BURY:
            size += sum(len(text) for _, _, text in value)  # type: ignore[misc,union-attr,arg-type]
        op = Op(state.cid, state.epoch, kind, value)
        self._collected.append(_Collected(op, _Entry(owner, kind, value, token), size, messages))
        self._collected_bytes += size
        if self._collected_bytes > MAX_COLLECTED_BYTES:
            self.lose()
        elif not self._scheduled:
            self._schedule()

    def forget(self, owner: Submitter) -> None:
        """Drop the outcomes of all ops of `owner` so far: it was closed, or its consumer has another epoch."""
        before = len(self._collected)
        self._collected = [collected for collected in self._collected if collected.entry.owner is not owner]
        self.told += before - len(self._collected)
        self._collected_bytes = sum(collected.size for collected in self._collected)
        for entries in (*(turn.entries for turn in self._in_flight), *(entries for entries, _ in self._held)):
            entries[:] = [entry if entry is None or entry.owner is not owner else None for entry in entries]

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the collected ops at the end of a loop turn, as far as there is room."""
        self._scheduled = False
        while self._collected and self._open and len(self._in_flight) < MAX_TURNS_IN_FLIGHT:
            if self._in_flight and self._in_flight_bytes >= MAX_BYTES_IN_FLIGHT:
                return
            self._put()

    def _put(self) -> None:
        count = size = messages = 0
        for collected in self._collected:
            size, messages = size + collected.size, messages + collected.messages
            if count and (size > MAX_TURN_BYTES or messages > MAX_TURN_MESSAGES):
                size -= collected.size
                break
            count += 1
        taken, self._collected = self._collected[:count], self._collected[count:]
        self._collected_bytes -= size
        self._serial += 1
        entries: list[_Entry | None] = [collected.entry for collected in taken]
        body = log_turn.encode(self._me, self._session, self._serial, [collected.op for collected in taken])
        # Added before it is sent, as a leader here may apply it at once.
        self._in_flight.append(_InFlight(self._session, self._serial, entries, size, self._clock.monotonic()))
        self._in_flight_bytes += size
        if not self._send(self._session, body):
            self.lose()

    def lose(self) -> None:
        """Begin a new session, as turns may be lost or this node may have missed some."""
        if not self._session:
            return
        if self._open:
            self.lost += 1
            self._begin_wait = BEGIN_SECONDS
        self._open = False
        self._collected = []
        self._collected_bytes = 0
        self._begin()

    def leader_changed(self) -> None:
        """Note another leader, or a broken link to it: turns in flight may be lost."""
        if self._in_flight or self._begun_at is not None:
            self._begin_wait = BEGIN_SECONDS
            self.lose()

    def refused(self, session: int) -> None:
        """Note that the leader refused a turn of `session`."""
        if session == self._session and self._retrying != session:
            self._retrying = session
            self._timers.call_later(REFUSED_SECONDS, self._retry, session)

    def _retry(self, session: int) -> None:
        if session == self._session:
            self.lose()

    def stop(self) -> None:
        """End the session; ops are dropped from now on."""
        self._session = self._serial = 0
        self._open = False
        self._begun_at = None
        self._held.clear()
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._collected = []
        self._collected_bytes = 0

    def tick(self) -> None:
        """Check for lost turns; called a few times per second."""
        now = self._clock.monotonic()
        if self._begun_at is not None:
            if now - self._begun_at >= self._begin_wait:
                self._begin_wait = min(2 * self._begin_wait, MAX_BEGIN_SECONDS)
                self._begin()
        elif self._in_flight and now - self._in_flight[0].sent >= APPLY_SECONDS:
            self.lose()

    def _begin(self) -> None:
        self._session = max(self._clock.time_ns(), self._session_of() + 1, self._session + 1)
        self._serial = 1
        self._begun_at = self._clock.monotonic()
        self._send(self._session, log_turn.encode(self._me, self._session, 1, (), first=True))

    def applied(self, turn: Turn, result: TurnResult) -> None:
        """Take the result of a turn of this node, applied by its replica. No op is sent before the call returns."""
        if not self._session:
            return
        if turn.session == self._session and turn.first:
            if result.accepted and not self._open:
                self._opened()
            elif not result.accepted:
                self.lose()
            return
        head = self._in_flight[0] if self._in_flight else None
        ours = head is not None and (turn.session, turn.serial) == (head.session, head.serial)
        if not result.accepted or not ours:
            if self._open and (turn.session == self._session or result.accepted):
                self.lose()
            return
        assert head is not None
        was_full = not self.may_run
        self._in_flight.popleft()
        self._in_flight_bytes -= head.size
        self.told += len(head.entries)
        if not self._open:  # its session has ended
            self._held.append((head.entries, result.outcomes))
            return
        self._tell(head.entries, result.outcomes)
        if any(map(_is_void, head.entries, result.outcomes)):
            self.lose()
            return
        if self._collected:
            self._schedule()
        if was_full and self.may_run:
            self._on_room()

    def _opened(self) -> None:
        self._begun_at = None
        self._begin_wait = BEGIN_SECONDS
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._collected = []
        self._collected_bytes = 0
        held, self._held = self._held, []
        for entries, outcomes in held:
            self._tell(entries, outcomes)
        self._open = True
        self.told = self.submitted
        for owner in list(self._owners()):
            try:
                owner.reset()
            except Exception as error:  # noqa: BLE001
                self._on_error(error)
        self._on_room()

    def _tell(self, entries: list[_Entry | None], outcomes: list[Outcome]) -> None:
        for entry, outcome in zip(entries, outcomes, strict=True):
            if entry is not None:
                try:
                    entry.owner.applied(entry.kind, entry.value, outcome, entry.token)
                except Exception as error:  # noqa: BLE001
                    self._on_error(error)


def _is_void(entry: _Entry | None, outcome: Outcome) -> bool:
    """Return True when an op on which its owner relies had no effect. WAIT and PIN may have none."""
    if entry is None:  # its owner is gone, or was reset
        return False
    return outcome is None or (outcome == 0 and entry.kind in (SKIP, ADVANCE))


def _size(value: Value) -> int:
    if isinstance(value, int):
        return 8
    if isinstance(value, bytes):
        return len(value)
    return 32 + 16 * len(value)


class OwnerTurns:
    """The ops of one owner on their way into the log of its stream."""

    __slots__ = ("_turns", "owner")

    def __init__(self, turns: ConsumerOperationLog) -> None:
        self._turns = turns
        self.owner: Submitter | None = None

    def submit(self, kind: int, value: Value, token: object = None, messages: int = 0) -> None:
        """Add an op. `owner.applied(kind, value, outcome, token)` is called once it was applied here, in order of
        submission; or `owner.reset()` once when turns were lost, and none of the earlier ops will ever be applied."""
        if self.owner is not None:
            self._turns.submit(self.owner, kind, value, token, messages)
