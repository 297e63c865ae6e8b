"""`ConsumerTable`: all consumers of a stream, replicated, as the extension of the stream's state machine.

The log decides everything: commands, and the messages and the configuration at that place of the log. docs/consumers.md
has the commands; the `observer` receives the changes. `Sessions` decides which turns of the owners' nodes count.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from jetcluster import errors
from jetcluster.consumer.state import archived, creation, pending, turn
from jetcluster.consumer.state.letters import MAX_DELIVER
from jetcluster.consumer.state.ops import OPS
from jetcluster.consumer.state.pending import NEVER
from jetcluster.consumer.state.retention import ConsumerRetention
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import (
    Op,
    Outcome,
    SentMessages,
    SettledMessages,
    TableObserver,
    Turn,
    TurnResult,
    Unobserved,
)
from jetcluster.errors import ApiError
from jetcluster.ordered import OrderedSet
from jetcluster.store.block_store import BlockStore
from jetcluster.store.keys import MAX_SEQ
from jetcluster.stream.apply.machine import StateError
from jetcluster.stream.log import commands
from jetcluster.stream.log.bodies import load_object
from jetcluster.stream.log.commands import CommandError, UnknownCommandError
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, ORDER_PER_KEY_LEVEL
from jetcluster.stream.ports import (
    SIDE_CONSUMERS,
    SIDE_EXHAUSTED,
    SIDE_LETTERS,
    SIDE_PENDING,
    SIDE_SESSIONS,
    SIDE_WAITING,
    Sift,
)
from jetcluster.stream.rules import INTEREST, LIMITS, StreamRules

MAX_SESSIONS: Final = 64
"""Owner nodes remembered. The oldest session is forgotten first, and its owner must start another."""
_SESSION_ROW: Final = struct.Struct("<QQQ")
_CID: Final = struct.Struct(">I")
_CID_SEQ: Final = struct.Struct(">IQ")
_NEXT: Final = b""
"""Key of the row with the next consumer id."""

_BY_FIELDS: Final = frozenset(
    (commands.CONSUMER_DELETE, commands.CONSUMER_PAUSE, commands.CONSUMER_RESET, commands.CONSUMER_OWNER)
)
"""Kinds whose body is a JSON object."""

_NOT_FOUND: Final = errors.by_code(errors.CONSUMER_NOT_FOUND)
_EXISTS: Final = errors.by_code(errors.CONSUMER_EXISTS)
_GUARDS: Final = errors.invalid_config(
    "the consumer is the retention_guard of its stream, which must name another one or none before"
)
_MISSING: Final = errors.by_code(errors.CONSUMER_NOT_EXISTING)


class Sessions:
    """The sessions of owner nodes. Turns of one owner apply in order and without a gap, or not at all.

    A session starts with a turn marked `first`. Session numbers of an owner ascend: the turns of an old session are
    void, even its start. Rows: owner (8 bytes) -> u64 session | u64 serial | u64 number of the start."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._owners = {owner: _SESSION_ROW.unpack(row) for owner, row in rows}
        """Owner -> (session, serial of its newest turn, number of its start)."""
        self._starts = max((start for _, _, start in self._owners.values()), default=0)
        self._dirty: OrderedSet[bytes] = OrderedSet()

    def of(self, owner: bytes) -> tuple[int, int] | None:
        """Return the session and the newest serial of an owner."""
        found = self._owners.get(owner)
        return found[:2] if found is not None else None

    def accept(self, turn: Turn) -> bool:
        """Return True, and remember the turn, when it counts."""
        known = self._owners.get(turn.owner)
        if turn.first:
            if known is not None and turn.session <= known[0]:
                return False
            self._start(turn)
            return True
        if known is None or turn.session != known[0] or turn.serial != known[1] + 1:
            return False
        self._owners[turn.owner] = (turn.session, turn.serial, known[2])
        self._dirty.add(turn.owner)
        return True

    def write(self, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        """Write the rows that changed since the last call."""
        for owner in self._dirty:
            row = self._owners.get(owner)
            if row is not None:
                put(owner, _SESSION_ROW.pack(*row))
            else:
                delete(owner)
        self._dirty.clear()

    def _start(self, turn: Turn) -> None:
        self._starts += 1
        self._owners[turn.owner] = (turn.session, turn.serial, self._starts)
        self._dirty.add(turn.owner)
        if len(self._owners) > MAX_SESSIONS:
            oldest = min(self._owners, key=lambda owner: self._owners[owner][2])
            del self._owners[oldest]
            self._dirty.add(oldest)


class ConsumerTable:
    """A `stream.ports.Extension`. Rows are written only when the store commits (`flush`), so a thousand idle consumers
    cost nothing, and a busy one costs a few rows per commit for any number of turns."""

    def __init__(self, store: BlockStore) -> None:
        """The table is empty until the machine calls `reload`."""
        self.observer: TableObserver = Unobserved()
        self.by_name: dict[str, ConsumerState] = {}
        self.by_cid: dict[int, ConsumerState] = {}
        self.public_count = 0
        """Number of consumers that are not of mirrors and sources."""
        self._store = store
        self._next_cid = 1
        self._dirty: dict[int, ConsumerState] = {}
        """Consumers whose rows have changed since the last commit."""
        self._lowest = 0
        """Lower bound of all consumers' pending sequences."""
        self._sessions = Sessions()
        self._retention = ConsumerRetention(store, self.by_cid)
        self._rules: StreamRules | None = None

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of consumers of the stream, including those of mirrors and sources."""
        return len(self.by_cid)

    @property
    def level(self) -> int:
        """Lowest level of a server that understands the ops of all consumers (`stream.log.levels`)."""
        states = self.by_cid.values()
        if any(state.rules.letters is not None or state.letters for state in states):
            return DEAD_LETTER_LEVEL
        return ORDER_PER_KEY_LEVEL if any(state.rules.keys is not None or state.unacked.held for state in states) else 0

    def session_of(self, owner: bytes) -> tuple[int, int] | None:
        """Return the session of an owner (8 bytes), which its next one must exceed, and its newest applied serial."""
        return self._sessions.of(owner)

    def observe(self, observer: TableObserver | None) -> None:
        self.observer = observer if observer is not None else Unobserved()

    # -- Extension ------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """See `stream.ports.Extension`. Raises StateError."""
        known = bool(self.by_cid)
        self.by_name.clear()
        self.by_cid.clear()
        self._dirty.clear()
        self.public_count = 0
        self._next_cid = 1
        self._lowest = 0
        self._rules = None
        try:
            self._load()
        except (KeyError, ValueError, struct.error) as error:
            raise StateError(f"rows of consumers: {error!r}") from error
        if known or self.by_cid:
            self.observer.reloaded()

    def _load(self) -> None:
        store = self._store
        self._sessions = Sessions(store.side_scan(SIDE_SESSIONS))
        for key, row in store.side_scan(SIDE_CONSUMERS):
            if key == _NEXT:
                (self._next_cid,) = _CID.unpack(row)
            else:
                self._add(ConsumerState.from_row(row))
        for key, row in store.side_scan(SIDE_PENDING):
            self.by_cid[pending.cid_and_page(key)[0]].unacked.load(key, row)
        for state in self.by_cid.values():
            state.unacked.loaded()
        for key, _ in store.side_scan(SIDE_WAITING):
            self.by_cid[_CID.unpack_from(key)[0]].waiting[key[_CID.size :]] = None
        for key, _ in store.side_scan(SIDE_EXHAUSTED):
            cid, seq = _CID_SEQ.unpack(key)
            self.by_cid[cid].exhausted.keys[seq] = None
        for key, row in store.side_scan(SIDE_LETTERS):
            cid, seq = _CID_SEQ.unpack(key)
            self.by_cid[cid].letters.load(seq, row)
        for state in self.by_cid.values():
            state.letters.loaded()

    def configure(self, rules: StreamRules, sift: Sift) -> None:
        """See `stream.ports.Extension`."""
        old, self._rules = self._rules, rules
        self._retention.policy = rules.retention
        # Restored messages are kept: they were not published, and no consumer could have wanted them yet.
        if old is not None and not old.restoring and rules.retention == INTEREST != old.retention:
            self._retention.begin(sift)
        if old is not None and old.restoring and not rules.restoring:
            self.observer.restored()

    def purged(self) -> None:
        """See `stream.ports.Extension`."""
        first_seq = self._store.first_seq
        for cid, state in self.by_cid.items():
            if state.purge(first_seq):
                self._dirty[cid] = state

    def trimmed(self) -> None:
        """See `stream.ports.Extension`."""
        first_seq = self._store.first_seq
        if first_seq <= self._lowest:
            return
        lowest = NEVER
        for state in self.by_cid.values():
            if gone := state.trim(first_seq):
                self._freed(state, gone)
            lowest = min(lowest, state.unacked.lowest() or NEVER)
        self._lowest = lowest

    def removed(self, seqs: Sequence[int]) -> None:
        """See `stream.ports.Extension`."""
        for state in self.by_cid.values():
            entries = state.pending
            gone = [seq for seq in seqs or entries if seq in entries and not self._store.contains(seq)]
            if gone:
                state.unacked.take(gone)
                state.settle_floor()
                self._freed(state, gone)

    def stored(self, first_seq: int, last_seq: int) -> None:
        """See `stream.ports.Extension`."""
        self._retention.stored(first_seq, last_seq)

    def floor_of(self, name: str) -> int | None:
        """See `stream.ports.Extension`."""
        state = self.by_name.get(name)
        return None if state is None else (state.unacked.lowest() or state.delivered_sseq + 1) - 1

    def wanted(self, seq: int, subject: bytes) -> bool:
        """See `stream.ports.Extension`."""
        return self._retention.wanted(seq, subject)

    def apply(self, kind: int, ts: int, index: int, body: bytes, sift: Sift) -> int | TurnResult | ApiError:
        """See `stream.ports.Extension`; results by kind in docs/consumers.md."""
        if kind == commands.CONSUMER_TURN:
            return self._turn(ts, turn.decode(body))
        if kind == commands.CONSUMER_CREATE:
            return self._create(creation.decode(body), sift)
        if kind not in _BY_FIELDS:
            raise UnknownCommandError(f"unknown command {kind}")
        fields = _object(body)
        try:
            if kind == commands.CONSUMER_DELETE:
                return self._delete(str(fields["name"]), _number(fields["cid"]), sift)
            if kind == commands.CONSUMER_PAUSE:
                return self._pause(ts, str(fields["name"]), _number(fields["pause_until"]))
            if kind == commands.CONSUMER_RESET:
                done, newest = bool(fields.get("done")), bool(fields.get("newest"))
                return self._reset(str(fields["name"]), _number(fields["seq"]), done, newest, sift)
            moves = [(_number(cid), _number(epoch), str(to)) for cid, epoch, to in fields["moves"]]
        except (KeyError, TypeError, ValueError) as error:
            raise CommandError(f"consumer command {kind}: {error!r}") from error
        return sum(self._move(*move) for move in moves)

    def flush(self) -> None:
        """See `stream.ports.Extension`."""
        put, delete = self._writers(SIDE_SESSIONS)
        self._sessions.write(put, delete)
        if not self._dirty:
            return
        put_row, _ = self._writers(SIDE_CONSUMERS)
        put_page, delete_page = self._writers(SIDE_PENDING)
        put_reply, delete_reply = self._writers(SIDE_WAITING)
        put_seq, delete_seq = self._writers(SIDE_EXHAUSTED)
        put_letter, delete_letter = self._writers(SIDE_LETTERS)
        for cid, state in self._dirty.items():
            state.check()
            prefix = _CID.pack(cid)
            put_row(prefix, state.row())
            state.unacked.write(cid, put_page, delete_page)
            state.waits.write(prefix, put_reply, delete_reply)
            state.exhausted.write(prefix, put_seq, delete_seq)
            state.letters.write(prefix, put_letter, delete_letter)
        self._dirty.clear()

    # -- turns ----------------------------------------------------------------------------------------------------

    def _turn(self, ts: int, command: turn.Turn) -> TurnResult:
        result = TurnResult(accepted=self._sessions.accept(command))
        if result.accepted:
            outcomes, marks = result.outcomes, result.marks
            for op in command.ops:
                state = self.by_cid.get(op.cid)
                if state is None or state.epoch != op.epoch:
                    outcomes.append(None)
                    marks += (0, 0, 0, 0)
                    continue
                outcome = self._op(state, op, ts)
                outcomes.append(outcome)
                touched = len(outcome.seqs) if isinstance(outcome, SentMessages | SettledMessages) else outcome
                marks += (
                    0 if touched is None else touched + 1 + (len(state.letters.by_seq) << 32),
                    state.delivered_cseq,
                    state.floor_sseq,
                    len(state.unacked) + (state.unacked.held << 32),
                )
        self.observer.turn_applied(command, result)
        return result

    def _op(self, state: ConsumerState, op: Op, ts: int) -> Outcome:
        store = self._store
        self._dirty[state.cid] = state
        before = state.delivered_sseq
        outcome = OPS[op.kind](state, op.value, ts, store.last_seq)
        if op.kind in (turn.DELIVER, turn.DELIVER_SOME) and isinstance(outcome, SentMessages):
            self._lowest = min(self._lowest, before + 1)
            state.trim(store.first_seq)  # some may have been removed since they were selected
        if self._retention.policy != LIMITS:
            self._retain(state, op, outcome, before)
        return outcome

    def _retain(self, state: ConsumerState, op: Op, outcome: Outcome, before: int) -> None:
        kind = op.kind
        if kind in (turn.ACK, turn.TERM) and isinstance(outcome, SettledMessages):
            self._retention.settled(state, outcome.seqs)
        elif kind == turn.EXHAUSTED and isinstance(outcome, SettledMessages):
            self._retention.exhausted(state, outcome.seqs)
        elif kind in (turn.BURY, turn.BURIED) and isinstance(outcome, SettledMessages):
            self._retain_letters(state, op, outcome.seqs)
        elif state.delivered_sseq != before and (kind not in turn.FIRST or before < state.last_per_subject_upto):
            self._retention.passed(state, before, state.delivered_sseq)

    def _retain_letters(self, state: ConsumerState, op: Op, seqs: Sequence[int]) -> None:
        """Keep what became a letter; what did not was acked, or given up without one."""
        exhausted: set[int] = set()
        if op.kind == turn.BURY:
            exhausted.update(seq for seq, reason, _ in op.value if reason == MAX_DELIVER)  # type: ignore[union-attr,misc]
        without = [seq for seq in seqs if seq not in state.letters]
        self._retention.exhausted(state, [seq for seq in without if seq in exhausted])
        self._retention.settled(state, [seq for seq in without if seq not in exhausted])

    # -- consumers ------------------------------------------------------------------------------------------------

    def _create(self, wish: creation.Create, sift: Sift) -> int | ApiError:
        assert self._rules is not None
        # An archive's consumers are created while the stream is being restored, but by the rules that it will have.
        stream = self._rules.restored() if self._rules.restoring else self._rules
        error = creation.check_replicas(wish.config, stream)
        if error is not None:
            return error
        state = self.by_name.get(wish.name)
        if state is not None:
            return self._update(state, wish, stream, sift)
        if wish.action == "update":
            return _MISSING
        rules = ConsumerRules(wish.name, wish.config)
        error = creation.check_new(rules, stream, wish.max_consumers, self.public_count, self.by_cid.values())
        if error is not None:
            return error
        first, upto = creation.start(rules, stream, self._store)
        state = ConsumerState(self._next_cid, rules, wish.created, wish.owner, first - 1)
        state.last_per_subject_upto = upto
        state.request = wish.request
        if wish.restored is not None:
            archived.restore(state, wish.restored, self._store)
            self._lowest = 0
        state.row()  # fails here rather than in the commit
        self._next_cid += 1
        self._store.side_put(SIDE_CONSUMERS, _NEXT, _CID.pack(self._next_cid))
        self._add(state)
        self._dirty[state.cid] = state
        self.observer.created(state)
        return state.cid

    def _update(self, state: ConsumerState, wish: creation.Create, stream: StreamRules, sift: Sift) -> int | ApiError:
        if wish.request and wish.request == state.request:
            return state.cid
        if creation.same(state.rules.config, wish.config):
            return 0
        if wish.action == "create":
            return _EXISTS
        old = state.rules
        rules = ConsumerRules(wish.name, creation.with_pause(wish.config, old.config))
        error = creation.check_update(state, rules, stream, self.by_cid.values())
        if error is not None:
            return error
        state.request = wish.request
        state.set_rules(rules)
        state.row()
        self._dirty[state.cid] = state
        self._retention.consumers_changed()
        if rules.filters != old.filters:
            self._retention.released(old.filters, state.lowest_wanted(), sift)
        if rules.letters is None and state.letters:
            self._without_letters(state)
        self.observer.updated(state, old)
        return state.cid

    def _without_letters(self, state: ConsumerState) -> None:
        """Forget the letters that wait, as `dead_letter` was taken away: their messages are as those given up without
        it."""
        letters = state.letters
        gave_up: list[int] = []
        termed: list[int] = []
        for seq, letter in list(letters.by_seq.items()):
            (gave_up if letter.reason == MAX_DELIVER else termed).append(seq)
            letters.take(seq)
        self._retention.exhausted(state, gave_up)
        self._retention.forgotten(gave_up)
        self._retention.settled(state, termed)

    def _delete(self, name: str, cid: int, sift: Sift) -> int | ApiError:
        state = self.by_name.get(name)
        if state is None or cid not in (0, state.cid):
            return _NOT_FOUND
        if self._rules is not None and self._rules.guard is not None and self._rules.guard.consumer == name:
            return _GUARDS
        del self.by_name[name], self.by_cid[state.cid]
        self.public_count -= not state.rules.direct
        self._dirty.pop(state.cid, None)
        prefix = _CID.pack(state.cid)
        self._store.side_delete(SIDE_CONSUMERS, prefix)
        state.unacked.remove(state.cid, self._writers(SIDE_PENDING)[1])
        state.waits.remove(prefix, self._writers(SIDE_WAITING)[1])
        state.exhausted.remove(prefix, self._writers(SIDE_EXHAUSTED)[1])
        state.letters.remove(prefix, self._writers(SIDE_LETTERS)[1])
        self._retention.consumers_changed()
        self._retention.released(state.rules.filters, state.lowest_wanted(), sift)
        self._retention.forgotten(list(state.letters.by_seq))
        self.observer.deleted(state)
        return 1

    def _pause(self, ts: int, name: str, until: int) -> int | ApiError:
        state = self.by_name.get(name)
        if state is None:
            return _NOT_FOUND
        config = creation.with_pause(state.rules.config, {"pause_until_ns": until} if until > ts else {})
        state.set_rules(ConsumerRules(name, config))
        self._dirty[state.cid] = state
        self.observer.paused(state)
        return 1

    def _reset(self, name: str, seq: int, done: bool, newest: bool, sift: Sift) -> int | ApiError:
        """Restart at `seq`, or at the ack floor for 0. `done`: delivered messages below it count as acked. `newest`:
        last_per_subject means what is the last of its subject by now, as for a new consumer."""
        state = self.by_name.get(name)
        if state is None:
            return _NOT_FOUND
        if seq > MAX_SEQ:
            return errors.by_code(errors.INVALID_RESET, err="no such sequence")
        if seq:
            error = creation.check_reset(state.rules, seq, self._store)
            if error is not None:
                return error
        start = seq or state.view().floor_sseq + 1
        acked = state.unacked.take_up_to(start - 1)[0] if done else []
        wanted = state.lowest_wanted()
        letters = list(state.letters.by_seq)
        state.restart(start)
        if newest and state.rules.deliver_policy == "last_per_subject":
            assert self._rules is not None
            state.last_per_subject_upto = creation.last_per_subject_upto(self._rules, self._store)
        state.check()
        self._dirty[state.cid] = state
        self._retention.settled(state, acked)
        self._retention.released(state.rules.filters, wanted, sift)
        self._retention.forgotten([seq for seq in letters if seq not in state.letters])
        self.observer.reset(state)
        return start

    def _move(self, cid: int, epoch: int, owner: str) -> int:
        state = self.by_cid.get(cid)
        if state is None or state.epoch != epoch:
            return 0
        old = state.owner
        state.moved(owner)
        self._dirty[cid] = state
        self.observer.owner_changed(state, old)
        return 1

    def _freed(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        state.check()
        self._dirty[state.cid] = state
        self.observer.freed(state, seqs)

    def _add(self, state: ConsumerState) -> None:
        self.by_name[state.name] = self.by_cid[state.cid] = state
        self.public_count += not state.rules.direct
        self._retention.consumers_changed()

    def _writers(self, table: int) -> tuple[Callable[[bytes, bytes], None], Callable[[bytes], None]]:
        store = self._store
        return lambda key, value: store.side_put(table, key, value), lambda key: store.side_delete(table, key)


def _object(body: bytes) -> dict[str, Any]:
    try:
        return load_object(body)
    except ValueError as error:
        raise CommandError(f"consumer command: {error}") from error


def _number(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of this kind")
    return value
