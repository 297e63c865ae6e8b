"""Flow control of one peer, at the leader: what to send next, and how much may be in flight.

The states are those of etcd's raft (tracker/progress.go): PROBE sends one batch and waits for the answer, REPLICATE
sends optimistically within a window, SNAPSHOT waits until the peer has fetched the state. `check` asserts the
invariants of each state after every change. pysyncobj has no flow control: it rewinds its pipeline at every success
(docs/reference/pysyncobj.md, D1), advances although nothing was sent (D19), and answers every rejection with a full
resend, which multiplies (D18).
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import field

from jetcluster.records import dataclass


class FlowState(enum.IntEnum):
    """The states of etcd-io/raft's `tracker.Progress`."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


@dataclass(slots=True, eq=False)
class PeerProgress:
    """The leader's knowledge of one peer's log, and the messages in flight to it."""

    peer: str
    next: int
    connected: bool
    state: FlowState = FlowState.PROBE
    match: int = 0
    """Index up to which the peer's log is known to be durable."""
    recovering: bool = False
    """The peer has reported a damaged journal; kept while its link is down."""
    whole: bool = False
    """The peer has reported over this connection that its journal is not damaged."""
    life: int | None = None
    """The peer's log that its answers are about (`GroupLog.life`); None before the first one of this connection."""
    probe_prev: int | None = None
    """`prev_index` of the probe in flight."""
    out: deque[tuple[int, int]] = field(default_factory=deque)
    """(last index, bytes) of batches in flight."""
    bytes_out: int = 0
    waiting_since: float = 0.0
    """Time since which the oldest message in flight is unanswered."""
    offered: int = 0
    """Index of the state offered to the peer."""
    base_probed: int = -1
    """The leader's log base that was probed over this connection: see `Replicator._reaches`."""
    sent_commit: int = 0
    context_sent: int = 0
    heard: float = 0.0
    """The peer's last sign of life for this group."""
    pinned: int | None = None
    """Index of a state that the peer fetches or has fetched: it needs the log after it. Kept while its link is down."""
    goal: int = 0
    """The leader's last index at `goal_at`, for a peer that catches up."""
    goal_at: float = 0.0
    near_at: float = float("-inf")
    """Time at which `caught_up` was last true."""

    def reset(self, next_index: int, connected: bool) -> None:
        """Begin again after a new or lost connection: nothing is in flight any more."""
        self.state = FlowState.PROBE
        self.match = 0  # a restarted peer may have lost entries, and must be able to say so
        self.next = next_index
        self.connected = connected
        self.probe_prev = None
        self.out.clear()
        self.bytes_out = 0
        self.base_probed = -1
        self.sent_commit = 0
        self.context_sent = 0
        if not connected:
            self.whole = False
            self.life = None
        self.check()

    def begin_anew(self, next_index: int) -> None:
        """Forget everything about the peer's log: it has a new one."""
        self.reset(next_index, self.connected)
        self.whole = False
        self.offered = self.goal = 0
        self.goal_at = 0.0
        self.near_at = float("-inf")
        self.pinned = None

    def check(self) -> None:
        """Assert the invariants."""
        out, match, next_index = self.out, self.match, self.next
        assert 0 <= match < next_index, (self.peer, match, next_index)
        assert self.offered >= 0 and self.sent_commit >= 0, (self.peer, self.offered, self.sent_commit)
        assert self.connected or not self.sent_commit, (self.peer, self.sent_commit)
        assert self.pinned is None or self.pinned >= 0, (self.peer, self.pinned)
        assert self.goal > 0 or self.goal == 0 == self.goal_at, (self.peer, self.goal, self.goal_at)
        assert self.bytes_out >= 0 and (out or not self.bytes_out), (self.peer, self.bytes_out)
        if self.state == FlowState.REPLICATE:
            assert self.probe_prev is None, (self.peer, self.probe_prev)
            assert not out or match < out[0][0] <= out[-1][0] < next_index, (self.peer, match, out, next_index)
        else:
            assert not out, (self.peer, self.state, len(out))
            probe = self.probe_prev
            assert probe is None or self.state == FlowState.PROBE, (self.peer, self.state, probe)
            assert probe is None or probe < next_index, (self.peer, probe, next_index)

    def window_open(self, max_bytes: int, max_batches: int) -> bool:
        if not self.connected:
            return False
        if self.state == FlowState.PROBE:
            return self.probe_prev is None
        return self.state == FlowState.REPLICATE and self.bytes_out < max_bytes and len(self.out) < max_batches

    def sent(self, prev_index: int, last_index: int, size: int, now: float) -> None:
        """Note a batch that was sent. An empty one (`last_index` == `prev_index`) counts only while probing."""
        if self.state == FlowState.PROBE:
            self.probe_prev = prev_index
            self.waiting_since = now
        elif last_index > prev_index:
            if not self.out:
                self.waiting_since = now
            self.out.append((last_index, size))
            self.bytes_out += size
        self.next = last_index + 1
        self.check()

    def acked(self, index: int, now: float) -> bool:
        """Note that the peer's log equals the leader's up to `index`. Returns True when `match` advanced."""
        self.heard = now
        news = index > self.match
        if news:
            self.match = index
            self.next = max(self.next, index + 1)
        while self.out and self.out[0][0] <= index:
            self.bytes_out -= self.out.popleft()[1]
            self.waiting_since = now
        if self.state == FlowState.SNAPSHOT:
            if index >= self.offered:
                self._replicate(now)
        elif self.state == FlowState.PROBE and self.probe_prev is not None and index >= self.probe_prev:
            self._replicate(self.waiting_since)
        self.check()
        return news

    def _replicate(self, since: float) -> None:
        self.state = FlowState.REPLICATE
        self.probe_prev = None
        self.sent_commit = 0  # with a probe it counted only as far as the probe matched
        if self.next > self.match + 1:  # a probe's entries are not answered yet, and may not have been appended
            self.out.append((self.next - 1, 0))
            self.waiting_since = since

    def rejected(self, prev_index: int, hint: int, last_index: int) -> bool:
        """Note that the peer lacks `prev_index` and proposes to go on at `hint`. Returns True when entries must be
        sent: one rewind per gap, so that the batches pipelined after a refused one do not each cause a resend."""
        if self.state == FlowState.SNAPSHOT:
            if hint <= self.offered:
                return False
        elif self.state == FlowState.PROBE:
            if prev_index != self.probe_prev:
                return False
        elif prev_index < self.match:
            return False
        if hint > last_index + 1:
            # The peer holds a state beyond the end of this log, of a newer leader: probing again at once would get the
            # same answer, so the stall timer does.
            return False
        self.state = FlowState.PROBE
        self.probe_prev = None
        self.out.clear()
        self.bytes_out = 0
        self.next = max(self.match + 1, hint)
        self.check()
        return True

    def snapshot(self, index: int, now: float) -> None:
        self.state = FlowState.SNAPSHOT
        self.offered = index
        self.probe_prev = None
        self.out.clear()
        self.bytes_out = 0
        self.waiting_since = now
        self.check()

    def needs(self, base_index: int, last_index: int, now: float, silence: float, lag: int) -> int | None:
        """Return the index after which the log is kept for the peer, or None. A peer that is silent for `silence`
        seconds loses its claim; one that fetched a state keeps it until it lacks at most `lag` entries."""
        if now - self.heard > silence:
            self.pinned = None
            return None
        if self.pinned is not None and self.pinned < base_index:
            self.pinned = None  # the log was trimmed above it: a full disk, or `retention.PinLimits`
        if self.state != FlowState.REPLICATE or self.match < base_index:
            return self.pinned
        if self.pinned is not None:
            self.pinned = None if self.match + lag >= last_index else max(self.pinned, self.match)
        return self.match

    def caught_up(self, last_index: int, now: float, lag: int, seconds: float) -> bool:
        """True when the peer lacks at most `lag` entries, or has what the leader had at most `seconds` ago (rounds as
        in section 4.2.1 of the Raft dissertation): behind a leader under full load the lag alone never gets small."""
        if last_index - self.match <= lag:
            return True
        if self.match < self.goal:
            return False
        quick = bool(self.goal) and now - self.goal_at <= seconds
        self.goal, self.goal_at = last_index, now
        return quick

    def is_near(self, last_index: int, now: float, lag: int, seconds: float) -> bool:
        """True when the peer is caught up, or was within the last 2 * `seconds`."""
        return last_index - self.match <= lag or now - self.near_at <= 2 * seconds

    def stalled(self, now: float, timeout: float) -> bool:
        """True when a message in flight has not been answered for `timeout` seconds."""
        waiting = self.probe_prev is not None or bool(self.out) or self.state == FlowState.SNAPSHOT
        return self.connected and waiting and now - self.waiting_since > timeout
