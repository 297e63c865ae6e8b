"""`LeaderDuties`: the leader's work besides publishes: it proposes EXPIRE and FIRE when they are due and CONTINUE for
jobs, and republishes stored messages. Pure: the replica's owner calls it, and passes the clock, the bus and `propose`.

`Republisher` copies stored messages to other subjects. Only the leader does, as an effect of apply: messages are
collected right before they are stored and sent right after the command. The old leader may die before it sends, and a
new one may repeat messages. As in nats-server, no more is promised; subscribers see gaps by Nats-Last-Sequence.

`DueTimer` does work when it is due. Ticks come a few times per second; a timer is set when the time is near. Work that
is due right after the last one waits for a pause, so that one command does more of it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from jetcluster.clock import Clock
from jetcluster.model import times
from jetcluster.protocol.bus import Bus
from jetcluster.protocol.subjects import is_valid_literal
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvError
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.rules import StreamRules

SOON_NS: Final = 500_000_000
"""Time before work is due at which a timer is set; before that, ticks suffice."""

CallLater = Callable[[float, Callable[[], None]], Any]
"""The loop's `call_later`: its result has `cancel`."""


class DueTimer:
    """Does one kind of work when it is due. Idle until `look` or `arm`."""

    def __init__(
        self,
        clock: Clock,
        call_later: CallLater,
        due: Callable[[], int | None],
        pause: Callable[[], int],
        act: Callable[[int], bool],
    ) -> None:
        """`due` returns when there is work (Unix nanoseconds), or None; `pause`, the nanoseconds to wait after the last
        work; `act(now)` does it and returns whether it did."""
        self._clock = clock
        self._call_later = call_later
        self._due = due
        self._pause = pause
        self._act = act
        self._timer: Any = None
        self._at = 0
        """Time at which the timer goes off, Unix nanoseconds."""
        self._acted = 0

    def hurry(self) -> None:
        """Skips the pause once: more work is due."""
        self._acted = 0

    def look(self) -> None:
        """Does the work if it is due, or sets a timer if it is soon."""
        now = self._clock.time_ns()
        at = self._next(now)
        if at is None or at > now:
            self._arm(at, now)
        elif self._act(now):
            self._acted = now

    def arm(self) -> None:
        """Sets a timer for work that is due or will be soon, for callers in which the work must not run."""
        now = self._clock.time_ns()
        self._arm(self._next(now), now)

    def _next(self, now: int) -> int | None:
        due = self._due()
        if due is None:
            return None
        if self._acted > now:
            self._acted = 0  # the clock was set back
        return max(due, self._acted + self._pause())

    def _arm(self, at: int | None, now: int) -> None:
        if at is not None and at - now <= SOON_NS and (self._timer is None or at < self._at):
            self.cancel()
            self._at = at
            self._timer = self._call_later(max(at - now, 0) / 1e9, self._goes_off)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _goes_off(self) -> None:
        self._timer = None
        self.look()


class Republisher:
    """Makes the copies of one stream's messages; `take` is a `staging.OnAppend`."""

    def __init__(self, rules: StreamRules, store: BlockStore) -> None:
        assert rules.republish is not None
        self._rules = rules
        self._store = store
        self._name = rules.name.encode()
        self.messages: list[tuple[bytes, bytes, bytes]] = []
        """Copies as (subject, header block, payload); the sender clears the list."""

    def take(self, batch: Batch, first_seq: int, ts: int) -> None:
        """Copies a batch before it is stored, while the store still has the previous last sequence of its subjects."""
        transform = self._rules.republish
        assert transform is not None
        last = {subject: self._store.last_seq_of(subject) for subject in batch.subjects}
        headers_only = self._rules.republish_headers_only
        for i in range(batch.count):
            subject, headers, payload = batch.message(i)
            seq, before = first_seq + i, last[subject]
            last[subject] = seq
            target = transform.match(subject, ts + i)
            if target is None or len(target) > MAX_SUBJECT or not is_valid_literal(target):
                continue
            added = b"Nats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n" % (
                self._name,
                subject,
                seq,
                times.rfc3339_bytes(ts + i),
            )
            added += b"Nats-Last-Sequence: %d\r\n" % before
            if headers_only:
                added += b"Nats-Msg-Size: %d\r\n" % len(payload)
            block = b"%b%b\r\n" % (headers[:-2] if headers else b"NATS/1.0\r\n", added)
            self.messages.append((target, block, b"" if headers_only else payload))


EXPIRY_PAUSE_NS: Final = 50_000_000
"""Time between two EXPIREs, which so remove more each; the first one is in time, as in nats-server."""
AGE_PAUSE_NS: Final = 250_000_000
"""The same for `max_age` without TTLs and markers, which is not reported to clients."""
FIRE_PAUSE_NS: Final = 5_000_000
"""Time between two FIREs."""
_OPEN_JOBS: Final = frozenset(
    (
        commands.CONTINUE,
        commands.PURGE,
        commands.UPDATE_CONFIG,
        commands.REPLACE,
        commands.CONSUMER_CREATE,
        commands.CONSUMER_DELETE,
        commands.CONSUMER_RESET,
    )
)
"""Commands that may leave a job."""
_OWN: Final = frozenset((commands.EXPIRE, commands.FIRE, commands.CONTINUE))
"""Commands that the leader proposes by itself."""
REFUSED_PAUSE_SECONDS: Final = 5.0
"""Time without proposals after one of these was refused: the next would be refused, too, at all replicas' cost."""


class LeaderDuties:
    """The duties of one stream's leader. Idle until `begin`. `propose` puts a command into the log and returns whether
    it did; if not, the next `tick` tries again. `call_soon` and `call_later` are the loop's."""

    def __init__(
        self,
        machine: StreamMachine,
        bus: Bus,
        clock: Clock,
        propose: Callable[[bytes], bool],
        call_soon: Callable[[Callable[[], None]], Any],
        call_later: CallLater,
        failed: Callable[[str, Exception], None] = lambda event, error: None,
    ) -> None:
        """`failed` is called with an error inside apply that must not stop it."""
        self._machine = machine
        self._bus = bus
        self._clock = clock
        self._propose = propose
        self._call_soon = call_soon
        self._failed = failed
        self._expiry = DueTimer(clock, call_later, self._next_expiry, self._expiry_pause, self._expire)
        self._fires = DueTimer(clock, call_later, self._next_schedule, lambda: FIRE_PAUSE_NS, self._fire)
        self._leading = False
        self._expiring = False
        """An EXPIRE is in the log and not applied yet."""
        self._firing = False
        self._continuing = False
        """A CONTINUE is in the log and not applied yet, or about to be."""
        self.republish: Republisher | None = None
        """Set while the stream republishes and this replica leads."""
        self.heeds_publishes = False
        """`applied` must be called for publishes, too, before publishers are answered."""
        self._unread: DamagedError | KvError | None = None
        """Error of a schedule that could not be read."""
        self._paused_until = 0.0
        """Monotonic time until which nothing is proposed."""

    def begin(self) -> None:
        """Begins leading."""
        self._leading = True
        self._expiry.hurry()
        self._fires.hurry()
        self._expiring = self._firing = self._continuing = False
        self.config_changed()

    def end(self) -> None:
        self._leading = False
        self._expiry.cancel()
        self._fires.cancel()
        self.heeds_publishes = False
        self._set_republish(None)

    def config_changed(self) -> None:
        """Adapts to a new configuration, or an installed snapshot."""
        rules = self._machine.rules
        wanted = self._leading and rules.republish is not None
        self._set_republish(Republisher(rules, self._machine.store) if wanted else None)
        self.heeds_publishes = self._leading and (wanted or rules.allow_msg_schedules)

    def tick(self) -> None:
        """Proposes what is due, a few times per second. Raises DamagedError or KvError for unreadable schedules."""
        if not self._leading:
            return
        if self._paused:
            return
        if self._machine.jobs and not self._continuing:
            self._go_on()
        self._expiry.look()
        self._fires.look()
        if self._unread is not None:
            error, self._unread = self._unread, None
            raise error

    def rest(self) -> float:
        """Seconds for which `tick` has nothing to do, unless a command is applied."""
        if not self._leading:
            return inf
        if self._machine.jobs and not self._continuing:
            return 0.0  # its next piece was refused
        times = [due for due in (self._machine.next_expiry, self._machine.next_schedule) if due is not None]
        return (min(times) - SOON_NS - self._clock.time_ns()) / 1e9 if times else inf

    def _next_expiry(self) -> int | None:
        if self._expiring or not self._leading or self._paused:
            return None
        return self._machine.next_expiry

    def _expiry_pause(self) -> int:
        machine = self._machine
        noticed = machine.rules.subject_delete_marker_ttl or machine.next_ttl is not None
        return EXPIRY_PAUSE_NS if noticed else AGE_PAUSE_NS

    def _next_schedule(self) -> int | None:
        if self._firing or not self._leading or self._paused:
            return None
        return self._machine.next_schedule

    def _fire(self, now: int) -> bool:
        try:
            command = self._machine.fire_command(now)
        except (DamagedError, KvError) as error:
            self._unread = error  # the next tick raises it: a timer's caller is the loop
            return False
        if command is not None:
            self._firing = True  # before: a group of one may apply it at once
            done = self._propose(command)
            self._firing = done and self._firing
            return done
        return False

    def _expire(self, now: int) -> bool:
        self._expiring = True  # before: a group of one may apply it at once
        done = self._propose(commands.encode_expire(now))
        self._expiring = done and self._expiring
        return done

    def _go_on(self) -> None:
        """Proposes a job's next piece. Only one is in the log at a time, so that other commands come in between."""
        self._continuing = False
        if self._leading and self._machine.jobs and not self._paused:
            self._continuing = True
            self._continuing = self._propose(commands.encode_continue(self._clock.time_ns())) and self._continuing

    @property
    def _paused(self) -> bool:
        return self._clock.monotonic() < self._paused_until

    def refused(self, kind: int) -> None:
        """Pauses after a command of ours that could not be carried out."""
        if kind in _OWN:
            self._paused_until = self._clock.monotonic() + REFUSED_PAUSE_SECONDS

    def applied(self, kind: int) -> None:
        """Follows up a command of this kind that this replica applied."""
        republish = self.republish
        if republish is not None and republish.messages:
            messages, republish.messages = republish.messages, []
            for subject, headers, payload in messages:
                self._bus.publish(subject, payload, b"", headers)
        if kind in _OPEN_JOBS:
            if kind == commands.CONTINUE:
                self._continuing = False
            if self._machine.jobs and self._leading and not self._continuing:
                self._continuing = True
                self._call_soon(self._go_on)
        elif kind == commands.EXPIRE:
            self._expiring = False
            due = self._next_expiry()
            if due is not None and due + EXPIRY_PAUSE_NS <= self._machine.clock:
                self._expiry.hurry()  # one command removes a bounded number
            self._expiry.arm()
        elif kind == commands.FIRE:
            self._firing = False
            self._fires.arm()
        elif self._machine.rules.allow_msg_schedules:
            self._fires.arm()  # a schedule just stored may be due before the next tick

    def _set_republish(self, republish: Republisher | None) -> None:
        self.republish = republish
        self._machine.observe(self._take if republish is not None else None)

    def _take(self, batch: Batch, first_seq: int, ts: int) -> None:
        """Collects a batch inside apply, on the leader only: an error here must not count against the command."""
        assert self.republish is not None
        try:
            self.republish.take(batch, first_seq, ts)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the message is stored, and the stream must go on
            self._failed("messages could not be republished", error)
