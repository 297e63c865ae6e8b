"""`StreamMachine`: one replica of a stream as a deterministic state machine over a message store.

`apply(command)` is a function of (state, command): it reads no clock, no random number and no local configuration.
The machine's own state (applied index, rolling hash, clock) is written beside the messages in the same open write
batch, so after a crash everything belongs to one applied index and the log is replayed from the next one.

The rolling hash covers every command, its result and the size of the store after it. Different hashes at the same index
prove that two replicas have drifted apart, without a message being read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from jetcluster import errors
from jetcluster.checksum import crc32
from jetcluster.errors import ApiError, DiskError
from jetcluster.model.limits import FARTHEST_SEQ
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.kv import KvDamagedError
from jetcluster.stream.apply import atomic_checks, restoring, sourced
from jetcluster.stream.apply.asked import Asked, AskedError
from jetcluster.stream.apply.atomic_checks import AtomicChecks, BatchParts
from jetcluster.stream.apply.checks import PURGE_DENIED, SEALED, SUBJECT_TOO_LONG
from jetcluster.stream.apply.counters import tracks_sources
from jetcluster.stream.apply.dedupe import DedupeWindow
from jetcluster.stream.apply.expiry import Expiry
from jetcluster.stream.apply.fast_rows import FastRowError, FastRows
from jetcluster.stream.apply.guard import GuardRowError, RetentionGuard
from jetcluster.stream.apply.jobs import Jobs, StreamJobError
from jetcluster.stream.apply.publish import EXHAUSTED, MessageAdmission, mapped
from jetcluster.stream.apply.scheduler import FindZone, Scheduler, system_zone
from jetcluster.stream.apply.schedules import Schedules, fire
from jetcluster.stream.apply.sourced import Cursor, Cursors
from jetcluster.stream.apply.staging import OnAppend, Staging
from jetcluster.stream.log import commands
from jetcluster.stream.log.bodies import Replace, Sourced
from jetcluster.stream.log.commands import (
    NAMED,
    BatchCommit,
    BatchPart,
    CommandError,
    Continue,
    DeleteMsg,
    Expire,
    Extended,
    FastPublish,
    Fire,
    Publish,
    Purge,
    Restore,
    RestoreEnd,
    UnknownCommandError,
    UpdateConfig,
)
from jetcluster.stream.log.fast_parts import FastGate
from jetcluster.stream.ports import SIDE_CONFIG, BatchResult, Extension, JobStep, PublishResult, Result, digest_bytes
from jetcluster.stream.rules import INTEREST, StreamRules

if TYPE_CHECKING:
    from jetcluster.stream.apply.rollups import RollingUp

_STATE: Final = struct.Struct("<BQQQ16s")
_STATE_VERSION: Final = 1
_REVISION: Final = struct.Struct("<Q")
_DIGEST: Final = struct.Struct("<16sQQIQQQQ")

_FAST: Final = bytes((commands.FAST_PUBLISH,))

REFUSED: Final = errors.by_code(10051, err="the command could not be carried out")
"""Result of a command that apply could not carry out."""
_BAD_REQUEST: Final = errors.by_code(10003)
_INCOMPLETE: Final = errors.by_code(10176)
_DELETE_DENIED: Final = errors.by_code(10057, err="message delete not permitted")
_DELETE_NOTHING: Final = errors.by_code(10057, err="no message found")
_DELETE_EOF: Final = errors.by_code(10057, err="stream store EOF")


class StateError(DiskError):
    """The stored machine state has another version or is cut off; the replica must be rebuilt from a peer."""


class StreamMachine:
    """The single writer of `store`. Any code may read `rules`, `applied_index`, `applied_term` and `hash`.

    The configuration comes from the log: a new stream has none (`configured` is False) until its first UPDATE_CONFIG,
    and takes only name and storage, which never change, from the `rules` given. A replica that started from the
    configuration its node knows, instead of the one at its place in the log, would drift from the other replicas.
    """

    def __init__(self, name: str, rules: StreamRules, store: BlockStore, extension: Extension | None = None) -> None:
        """Loads the state from `store`. Without an extension, its commands are unknown. Raises StateError."""
        self.name = name
        self.rules = StreamRules.from_config({"name": name, "storage": "memory" if rules.memory else "file"})
        self.configured = False
        self.config_revision = 0
        """Revision of the configuration in force."""
        self.store = store
        self.applied_index = 0
        self.applied_term = 0
        self.hash = bytes(16)
        self.clock = 0
        """Latest time of any command, Unix nanoseconds; no message gets an earlier one."""
        self.tracks_sources = False
        """Messages carry the totals of the stream's sources (`counters.tracks_sources`)."""
        self.malformed: CommandError | None = None
        """The fault of the last command whose bytes could not be decoded."""
        self._empty = self.rules
        self._on_append: OnAppend | None = None
        self._admission: MessageAdmission
        self._staging: Staging
        self._dedupe: DedupeWindow
        self._expiry: Expiry
        self._schedules: Schedules
        self._parts: BatchParts
        self._cursors: Cursors
        self._jobs: Jobs
        self.guard: RetentionGuard
        """The state of `retention_guard`."""
        self.fast: FastRows
        """Progress of the fast-ingest batches."""
        self.asked: Asked
        """Outcomes of numbered requests, for requesters that ask again."""
        if extension is None:
            from jetcluster.stream.apply.no_consumers import NoConsumers  # no server is without

            extension = NoConsumers()
        self._extension = extension
        self._first_seq = 0
        """First sequence of the store after the last command."""
        self.reload()

    def reload(self) -> None:
        """Loads the state from the store: at start, and after a snapshot was installed or a command taken back."""
        self.rules, self.configured, self.config_revision = self._empty, False, 0
        self.applied_index, self.applied_term, self.clock, self.hash = 0, 0, 0, bytes(16)
        state = self.store.load_machine_state()
        if state is not None:
            self._restore(state)
        self._dedupe = DedupeWindow(self.store, self.rules.duplicate_window)
        try:
            self.guard = RetentionGuard(self.store, self.rules, self._floor_of)
        except GuardRowError as error:
            raise StateError(f"stream {self.name}: {error}") from error
        self._expiry = Expiry(self.store, self.rules, self.guard)
        self._schedules = Schedules(self.store)
        try:
            self._jobs = Jobs(
                self.store,
                self.rules,
                self._removed,
                self._purged,
                self._wanted,
                lambda: self.consumer_count,
                self.guard,
            )
            self.asked = Asked(self.store)
            self.fast = FastRows(self.store)
        except (StreamJobError, AskedError, FastRowError) as error:
            raise StateError(f"stream {self.name}: {error}") from error
        self._admit_by(self.rules, state[_STATE.size :] if state is not None else b"")
        self._parts = BatchParts(self.store)
        self._cursors = Cursors(self.store)
        self._extension.reload()
        self._extension.configure(self.rules, partial(self._jobs.sift, self.applied_index))
        self._first_seq = self.store.first_seq
        self.store.save_machine_state(self._state)

    def apply(self, index: int, term: int, command: bytes) -> Result:
        """Applies the committed command at log position `index` (in order, each once). Returns the outcome, the same on
        every replica. May raise anything, with the command half done: `applier.Applier` takes that back."""
        assert index > self.applied_index, (index, self.applied_index)
        try:
            decoded = commands.decode(command)
        except UnknownCommandError:
            raise
        except CommandError as error:
            self.malformed = error
            return self.refuse(index, term, command)
        kept_from = self.guard.kept_from if self.rules.guard is not None else 0
        if isinstance(decoded, Publish):
            base = max(decoded.ts, self.clock + 1)
            admit = partial(self._admit_rollups, index) if decoded.rolls_up else self._admission.admit
            result: Result = admit(decoded.batch, base)
            self.clock = base + decoded.batch.count - 1
        elif isinstance(decoded, FastPublish):
            result = self._publish_fast(index, decoded)
        elif isinstance(decoded, BatchCommit):
            result = self._commit_batch(index, term, decoded)
        elif isinstance(decoded, BatchPart):
            self._parts.add(index, term, decoded)
            result = 0
        elif command[1] & NAMED:
            assert isinstance(decoded, Purge | Replace | Extended)
            result = self._once(index, commands.request_of(command), decoded)
        elif isinstance(decoded, Extended):
            result = self._extend(index, decoded)
        elif isinstance(decoded, Continue):
            result = self._continue(index, decoded)
        elif isinstance(decoded, Sourced):
            self.clock = max(self.clock, decoded.ts)
            result = sourced.apply(decoded, self._cursors, self._admission, self.store, self.clock)
            self.clock = max(self.clock, self.store.state.last_ts)
        else:
            self.clock = max(self.clock, decoded.ts)
            result = self._administer(index, decoded)
            self._follow_jobs()
        if self.store.blocks.first_seq != self._first_seq:
            self._extension.trimmed()
        if self.rules.guard is not None:
            self._follow_guard(index, kept_from)
        if self.fast.by_id:
            self.fast.forget(self.clock)
        if self._parts.pieces and not isinstance(decoded, BatchPart):
            self._parts.clear()  # their commit does not follow
        self._advance(index, term, command, result)
        return result

    def refuse(self, index: int, term: int, command: bytes) -> ApiError:
        """Passes the command at `index`, which no replica can carry out, without effect."""
        assert index > self.applied_index, (index, self.applied_index)
        if self._parts.pieces:
            self._parts.clear()
        if command[:1] == _FAST:
            self._end_fast(index, command)
        self._advance(index, term, command, REFUSED)
        return REFUSED

    @property
    def config(self) -> dict[str, Any]:
        """The normalised configuration in force; only name and storage while not `configured`."""
        return self.rules.config

    @property
    def consumer_count(self) -> int:
        """Number of consumers, without those of mirrors and sources."""
        return self._extension.public_count

    @property
    def dedupe_ids(self) -> int:
        """Number of remembered message ids, for monitoring."""
        return len(self._dedupe)

    def seq_of_id(self, msg_id: bytes) -> int | None:
        """Sequence of the message stored with this Nats-Msg-Id inside the window, or None."""
        return self._dedupe.seq_of(msg_id) if self._dedupe.window else None

    def cursor(self, key: bytes) -> Cursor | None:
        """Progress of the link with `key` (`rules.links`); None when it never began."""
        return self._cursors.get(key)

    @property
    def jobs(self) -> int:
        """Number of jobs, which the leader's CONTINUE carries on."""
        return len(self._jobs)

    @property
    def limiting(self) -> bool:
        """True while a job has yet to cut the stream to its limits."""
        return self._jobs.limiting

    @property
    def job_steps(self) -> int:
        """Pieces of jobs done in this process; it changes while a job makes progress."""
        return self._jobs.steps

    @property
    def next_expiry(self) -> int | None:
        """Time (Unix nanoseconds) at which the leader should propose EXPIRE; None when nothing will expire."""
        if self.rules.restoring:
            return None  # the archive may have more of the subject, and what expired is marked by the rules that follow
        due = self._expiry.next_due()
        given_up = self.guard.next_due if self.rules.guard is not None else None
        return due if given_up is None else given_up if due is None else min(due, given_up)

    @property
    def next_ttl(self) -> int | None:
        """Time (Unix nanoseconds) at which the first TTL ends; None when no message has one."""
        return self._expiry.next_ttl

    @property
    def next_schedule(self) -> int | None:
        """Time (Unix nanoseconds) at which the leader should propose FIRE; None when nothing is scheduled."""
        return None if self._admission.refuses_own is not None else self._schedules.index.next_due

    def fire_command(self, now: int, find_zone: FindZone = system_zone) -> bytes | None:
        """The FIRE command that the leader should propose at `now`; None when nothing is due. Raises DamagedError."""
        due = self.next_schedule
        if due is None or due > now:
            return None
        try:
            return Scheduler(self.store, self._schedules, find_zone).command(now)
        except KvDamagedError as error:  # of a side row, which no record's checksum covers
            raise DamagedError(self.store.first_seq, self.store.last_seq) from error

    def observe(self, on_append: OnAppend | None) -> None:
        """Sets the callback that receives every batch right before it is stored; None removes it."""
        self._on_append = self._staging.on_append = on_append

    def _restore(self, state: bytes) -> None:
        if len(state) < _STATE.size or state[0] != _STATE_VERSION:
            raise StateError(f"stream {self.name}: machine state of {len(state)} bytes, version {state[:1].hex()}")
        _, self.applied_index, self.applied_term, self.clock, self.hash = _STATE.unpack_from(state)
        for _, config in self.store.side_scan(SIDE_CONFIG):
            (self.config_revision,) = _REVISION.unpack_from(config)
            self.rules = StreamRules.from_config(commands.load_config(config[_REVISION.size :]))
            self.configured = True

    def _advance(self, index: int, term: int, command: bytes, result: Result) -> None:
        store = self.store
        blocks = store.blocks
        counts = messages, size, first_seq, last_seq = blocks.messages, blocks.bytes, blocks.first_seq, store.last_seq
        assert 0 <= messages <= last_seq + 1 - first_seq and messages <= size, (self.name, counts)
        assert term >= self.applied_term and self.clock >= 0, (self.name, term, self.applied_term, self.clock)
        crc = crc32(command)
        self._first_seq = first_seq
        digest = blake2b(_DIGEST.pack(self.hash, index, term, crc, *counts), digest_size=16)
        digest.update(digest_bytes(result))
        self.hash = digest.digest()
        self.applied_index = index
        self.applied_term = term
        if not store.dirty:
            store.save_machine_state(self._state)

    def _state(self) -> bytes:
        """The machine's state as stored. Called once per commit of the store, which may hold many commands."""
        self._extension.flush()
        self.fast.flush()
        saved = _STATE.pack(_STATE_VERSION, self.applied_index, self.applied_term, self.clock, self.hash)
        return saved + self._staging.last_msg_id

    def _admit_by(self, rules: StreamRules, last_msg_id: bytes) -> None:
        self.tracks_sources = tracks_sources(self.store, rules)
        self._staging = Staging(
            rules, self.store, self._dedupe, self._expiry, self._schedules, self.guard,
            tracks=self.tracks_sources, last_msg_id=last_msg_id, on_append=self._on_append,
            on_stored=self._extension.stored if rules.retention == INTEREST else None,
        )  # fmt: skip
        self._follow_jobs()
        self._admission = MessageAdmission(self.name, rules, self.store, self._dedupe, self._staging)

    def _admit_rollups(self, index: int, batch: Batch, base: int, gate: FastGate | None = None) -> PublishResult:
        with self._rolling_up(index) as rolling:
            result = self._admission.admit(batch, base, gate)
        return result._replace(waits=rolling.waits) if rolling.waits else result

    def _rolling_up(self, index: int) -> RollingUp:
        """For messages of which some may roll up more than one command should remove."""
        from jetcluster.stream.apply.rollups import RollingUp  # few streams see one

        return RollingUp(index, self._staging, self.store, self._jobs, self._follow_jobs)

    def has_job(self, index: int) -> bool:
        """Returns whether the command at `index` has a job."""
        return self._jobs.has(index)

    def _publish_fast(self, index: int, command: FastPublish) -> Result:
        if command.batch is None:
            self.clock = max(self.clock, command.ts)
            self.fast.note(index, self.clock, command.parts, PublishResult(0, 0, None))
            return 0
        base = max(command.ts, self.clock + 1)
        admit = partial(self._admit_rollups, index) if command.rolls_up else self._admission.admit
        result = admit(command.batch, base, self.fast.gate(command.parts))
        self.clock = base + command.batch.count - 1
        self.fast.note(index, base, command.parts, result)
        return result

    def _end_fast(self, index: int, command: bytes) -> None:
        """Refuses all messages of a FAST_PUBLISH. A batch that takes no gaps stores nothing after that."""
        try:
            decoded = commands.decode(command)
        except CommandError:
            return
        if isinstance(decoded, FastPublish):
            self.fast.refuse(index, self.clock, decoded.parts)

    def _commit_batch(self, index: int, term: int, command: BatchCommit) -> BatchResult:
        batch = command.body
        if isinstance(batch, bytes):
            start = self._parts.take(index, term, command.parts)
            if start is None:
                return BatchResult(0, 0, _INCOMPLETE)
            batch = commands.whole_batch(start + batch)
        base = max(command.ts, self.clock + 1)
        if self.store.last_seq + 1 + batch.count > MAX_SEQ:
            return BatchResult(0, 0, EXHAUSTED)
        if self.rules.subject_transform is not None:
            batch, grown = mapped(batch, self.rules.subject_transform, base)
            if grown:
                return BatchResult(0, 0, SUBJECT_TOO_LONG)
        if self._dedupe.window and not command.plain:
            self._dedupe.advance(base, self.store.last_seq + 1)
        checks = AtomicChecks(self._admission, self.store, self._dedupe, batch, base)
        checks.takes_msg_ids = command.allow_msg_id
        checked = checks.run(plain=command.plain)
        if isinstance(checked, ApiError):
            self.clock = base
            return BatchResult(0, 0, checked)
        first_seq = self.store.last_seq + 1
        with self._rolling_up(index) if command.rolls_up else nullcontext() as rolling:
            atomic_checks.store(self._staging, batch, first_seq, base, checked)
        self.clock = base + batch.count - 1
        wait = rolling.last_job if rolling is not None else 0
        return BatchResult(first_seq + batch.count - 1, batch.count, None, wait)

    def _extend(self, index: int, command: Extended) -> Result:
        self.clock = max(self.clock, command.ts)
        result = self._extension.apply(command.kind, self.clock, index, command.body, partial(self._jobs.sift, index))
        if command.kind != commands.CONSUMER_TURN:  # the most frequent one, and it begins no jobs
            self._follow_jobs()
        return result

    def _once(self, index: int, request: int, command: Purge | Replace | Extended) -> Result:
        """Carries a numbered request out once; it may be in the log again if a leader died before it answered."""
        self.clock = max(self.clock, command.ts)
        known = self.asked.get(request)
        if known is not None:
            return JobStep(known.at, 0, False) if known.open else known.result
        if isinstance(command, Extended):
            result = self._extend(index, command)
        else:
            result = self._administer(index, command)
            self._follow_jobs()
        self.asked.note(index, command.ts, request, result)
        return result

    def _continue(self, index: int, command: Continue) -> Result:
        self.clock = max(self.clock, command.ts)
        result = self._jobs.step()
        self._follow_jobs()
        if isinstance(result, JobStep) and result.done:
            self.asked.job_done(index, command.ts, result)
        return result

    def _administer(
        self, index: int, command: Purge | DeleteMsg | Expire | Fire | UpdateConfig | Restore | RestoreEnd | Replace
    ) -> int | JobStep | ApiError:
        if isinstance(command, Expire):
            return self._expire(command)
        if isinstance(command, Fire):
            if self._admission.refuses_own is not None:
                return 0
            return self._store_own(fire(self.store, self.rules, self._schedules, command.firings))
        if isinstance(command, Purge):
            return self._purge(index, command)
        if isinstance(command, DeleteMsg):
            return self._delete(command.seq, erase=command.erase)
        if isinstance(command, Restore | RestoreEnd):
            return self._take_back(command)
        if isinstance(command, Replace):
            return self._replace(index, command)
        return self._update(index, StreamRules.from_config(command.config), command)

    def _replace(self, index: int, command: Replace) -> int | ApiError:
        refused = self._admission.refusal_to_replace(command.guards)
        if refused is not None:
            return refused
        removed = 0
        room = self._jobs.has_room(len(command.purges))
        for subject_filter in command.purges:
            if room:
                part = self._jobs.purge(index, subject_filter, 0, 0, at_once=True)
                removed += part if isinstance(part, int) else 0
            else:
                removed += self.store.purge(subject_filter)
        if command.batch is None:
            return removed
        self._follow_jobs()
        self._store_own(command.batch, roomy=True)
        return self.store.last_seq

    def _take_back(self, command: Restore | RestoreEnd) -> int | ApiError:
        """Restores messages of an archive, and moves `clock` on: no later message may be older."""
        if isinstance(command, Restore):
            into = restoring.Into(self.store, self.rules, self._dedupe, self._expiry, self._schedules)
            result = restoring.restore(into, command)
            if command.runs:
                self._staging.last_msg_id = restoring.last_msg_id(command)
        else:
            result = restoring.finish(self.store, self.rules, command)
        self.clock = max(self.clock, self.store.state.last_ts)
        return result

    def _expire(self, command: Expire | UpdateConfig) -> int:
        """Expires messages by the command's own time, not `clock`: one stamped in the future must not end all."""
        self.guard.follow_age(command.ts)
        removed, markers = self._expiry.run(command.ts)
        self._store_own(markers)
        return removed

    def _store_own(self, batch: Batch | None, *, roomy: bool = False) -> int:
        """Stores messages that the stream made; returns how many. `roomy`: they replace others."""
        if batch is None:
            return 0
        base = self.clock + 1
        self.clock = base + batch.count - 1
        return self._admission.store_own(batch, base, roomy=roomy)

    def _purge(self, index: int, command: Purge) -> int | JobStep | ApiError:
        if self.rules.sealed:
            return SEALED
        if self.rules.deny_purge:
            return PURGE_DENIED
        if command.seq and command.keep:
            return _BAD_REQUEST
        if command.seq == 1:
            return 0
        if command.filter in (b"", b">") and command.seq > FARTHEST_SEQ:
            return _BAD_REQUEST
        return self._jobs.purge(index, command.filter, command.seq, command.keep)

    def _removed(self, seqs: Sequence[int]) -> None:
        self._extension.removed(seqs)

    def _purged(self) -> None:
        self._extension.purged()

    def _wanted(self, seq: int, subject: bytes) -> bool:
        return self._extension.wanted(seq, subject)

    def _floor_of(self, consumer: str) -> int | None:
        return self._extension.floor_of(consumer)

    def _follow_guard(self, index: int, kept_from: int) -> None:
        """Lets the limits remove what the command at `index` has freed: the guard held it from `kept_from` on."""
        self.guard.follow_bytes(self.clock)
        while 0 < kept_from < (free := self.guard.kept_from):
            self._jobs.limit(index, per_subject=self._may_exceed_per_subject, at=kept_from)
            kept_from = free
            self._extension.trimmed()  # which may free more
        self._follow_jobs()

    @property
    def _may_exceed_per_subject(self) -> bool:
        limit = self.rules.max_msgs_per_subject
        return bool(limit) and self.store.messages - self.store.num_subjects >= limit

    def _follow_jobs(self) -> None:
        """Makes staging respect the present jobs; called after their number changed."""
        self._staging.within = self._jobs.within if self._jobs else None

    def _delete(self, seq: int, *, erase: bool) -> int | ApiError:
        if self.rules.sealed:
            return SEALED
        if self.rules.deny_delete:
            return _DELETE_DENIED
        if not self.rules.memory:  # nats-server's file store has other texts for sequences that cannot exist
            if not seq:
                return _DELETE_NOTHING
            if seq > self.store.last_seq:
                return _DELETE_EOF
        if self.store.delete(seq) if erase else self.store.delete_all([seq]):
            self._extension.removed((seq,))
            return 1
        return errors.by_code(10043, seq=seq)

    def _update(self, index: int, rules: StreamRules, command: UpdateConfig) -> int:
        """Puts a configuration in force. Narrower limits hold at once; `first_seq` counts in the first one only."""
        if 0 < command.revision <= self.config_revision:
            return 0  # a new leader that lags proposed an older one, whose limits may be narrower
        self.config_revision = max(command.revision, self.config_revision)
        if not self.configured and 1 < rules.first_seq <= FARTHEST_SEQ:
            self.store.compact(rules.first_seq)
        self.configured = True
        record = _REVISION.pack(self.config_revision) + commands.dump_config(rules.config)
        self.store.side_put(SIDE_CONFIG, b"", record)
        old, self.rules = self.rules, rules
        if rules.duplicate_window != self._dedupe.window:
            self._dedupe.set_window(rules.duplicate_window)
        self._expiry.rules = self._jobs.rules = rules
        self.guard.configure(rules)
        self._cursors.keep(rules.links)
        self._admit_by(rules, self._staging.last_msg_id)
        self._extension.configure(rules, partial(self._jobs.sift, index))
        return self._shrink(index, old) + self._expire(command)

    def _shrink(self, index: int, old: StreamRules) -> int:
        """Enforces limits that are narrower than those of `old`. Returns how many messages were removed."""
        rules = self.rules
        limit, before = rules.max_msgs_per_subject, old.max_msgs_per_subject
        lower = bool(limit) and (not before or old.restoring or limit < before or old.guard not in (None, rules.guard))
        if not rules.evicts and not lower:
            return 0
        return self._jobs.limit(index, per_subject=lower and self._may_exceed_per_subject)
