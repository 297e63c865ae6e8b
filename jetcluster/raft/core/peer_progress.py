"""Flow control of one peer, at the leader: what to send next and how much may be under way.

States as in etcd's raft (tracker/progress.go): PROBE sends one batch and waits for the answer, REPLICATE sends
optimistically within a window, SNAPSHOT waits until the peer has fetched the state. `check` states what holds of the
fields in each of them, after every change. pysyncobj has none of this: it rewinds its pipeline at every success
(docs/reference/pysyncobj.md, D1), advances although nothing was sent (D19), and answers every rejection with a full
resend, which multiplies (D18).
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import field

from jetcluster.records import dataclass


class FlowState(enum.IntEnum):
    """The states of etcd-io/raft's `tracker.Progress`: one Append at a time until the logs fit, many under way, or a
    snapshot."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


@dataclass(slots=True, eq=False)
class PeerProgress:
    """The leader's knowledge of one peer's log, and what is under way to it. `check` holds the invariants."""

    peer: str
    next: int
    connected: bool
    state: FlowState = FlowState.PROBE
    match: int = 0
    """Known durable on the peer (also of learners, which the base does not count)."""
    recovering: bool = False
    """It said that its journal is damaged; also while its link is down."""
    whole: bool = False
    """It said over this connection that it is not."""
    life: int | None = None
    """The log that it speaks of (`GroupLog.life`); None until it has spoken over this connection."""
    probe_prev: int | None = None
    """`prev_index` of the probe under way."""
    out: deque[tuple[int, int]] = field(default_factory=deque)
    """(last index, bytes) of batches under way."""
    bytes_out: int = 0
    waiting_since: float = 0.0
    """Since when the oldest thing under way is unanswered."""
    offered: int = 0
    base_probed: int = -1
    """The leader's base that was probed at, since the connection is there: see `Replicator._reaches`."""
    sent_commit: int = 0
    context_sent: int = 0
    heard: float = 0.0
    """The peer's last sign of life for this group."""
    pinned: int | None = None
    """It fetches the state of this index, or has, and needs the log behind it next; also while its link is down."""
    goal: int = 0
    """The leader's last index at `goal_at`, for a peer that catches up."""
    goal_at: float = 0.0
    near_at: float = float("-inf")
    """When `caught_up` said last that it is."""

    def reset(self, next_index: int, connected: bool) -> None:
        """The connection is new or gone: nothing is under way any more."""
        self.state = FlowState.PROBE
        self.match = 0  # a restarted peer may have lost what it had, and must be able to say so
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
        """The peer has another log than the one that all this was about."""
        self.reset(next_index, self.connected)
        self.whole = False
        self.offered = self.goal = 0
        self.goal_at = 0.0
        self.near_at = float("-inf")
        self.pinned = None

    def check(self) -> None:
        """Asserts what holds whenever nobody is in the middle of a change."""
        out, match, next_index = self.out, self.match, self.next
        assert 0 <= match < next_index, (self.peer, match, next_index)
        assert self.offered >= 0 and self.sent_commit >= 0, (self.peer, self.offered, self.sent_commit)
        assert self.connected or not self.sent_commit, (self.peer, self.sent_commit)  # nobody was there to hear of it
        assert self.pinned is None or self.pinned >= 0, (self.peer, self.pinned)
        assert self.goal > 0 or self.goal == 0 == self.goal_at, (self.peer, self.goal, self.goal_at)
        assert self.bytes_out >= 0 and (out or not self.bytes_out), (self.peer, self.bytes_out)
        if self.state == FlowState.REPLICATE:
            assert self.probe_prev is None, (self.peer, self.probe_prev)
            assert not out or match < out[0][0] <= out[-1][0] < next_index, (self.peer, match, out, next_index)
        else:  # nothing goes out optimistically
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
        """A batch left; an empty one (`last_index` == `prev_index`) is only followed while probing."""
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
        """The peer's log equals the leader's up to `index`. True when that is news."""
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
                self._replicate()
        elif self.state == FlowState.PROBE and self.probe_prev is not None and index >= self.probe_prev:
            self._replicate()
            if self.next > self.match + 1:  # what the probe carried is not answered yet, and maybe was not taken
                self.out.append((self.next - 1, 0))
        self.check()
        return news

    def _replicate(self) -> None:
        self.state = FlowState.REPLICATE
        self.probe_prev = None
        self.sent_commit = 0  # beside a probe it counted only as far as the probe matched

    def rejected(self, prev_index: int, hint: int, last_index: int) -> bool:
        """The peer does not hold `prev_index` and proposes to go on at `hint`. True when something new is to be sent:
        one rewind per gap, so that the batches pipelined behind a refused one do not each cause a resend."""
        if self.state == FlowState.SNAPSHOT:
            if hint <= self.offered:
                return False
        elif self.state == FlowState.PROBE:
            if prev_index != self.probe_prev:
                return False
        elif prev_index < self.match:
            return False
        if hint > last_index + 1:
            # It holds a state that this log does not reach (it heard of a newer leader): asking again at once would
            # get the same answer. The stall timer does.
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
        """The log behind which index is kept for the peer; None when nothing is. A peer that says nothing for `silence`
        loses what it had. One that fetched the state has it until no more than `lag` entries are missing."""
        if now - self.heard > silence:
            self.pinned = None
            return None
        if self.pinned is not None and self.pinned < base_index:
            self.pinned = None  # the disk was full, or would have been
        if self.state != FlowState.REPLICATE or self.match < base_index:
            return self.pinned
        if self.pinned is not None:
            self.pinned = None if self.match + lag >= last_index else max(self.pinned, self.match)
        return self.match

    def caught_up(self, last_index: int, now: float, lag: int, seconds: float) -> bool:
        """The peer lacks at most `lag` entries, or has what the leader had at most `seconds` ago: rounds as in section
        4.2.1 of the Raft dissertation. By entries alone a leader that is written at full speed never sees it."""
        if last_index - self.match <= lag:
            return True
        if self.match < self.goal:
            return False
        quick = bool(self.goal) and now - self.goal_at <= seconds
        self.goal, self.goal_at = last_index, now
        return quick

    def is_near(self, last_index: int, now: float, lag: int, seconds: float) -> bool:
        """See `caught_up`, between two acks."""
        return last_index - self.match <= lag or now - self.near_at <= 2 * seconds

    def stalled(self, now: float, timeout: float) -> bool:
        """Something under way has not been answered for `timeout`."""
        waiting = self.probe_prev is not None or bool(self.out) or self.state == FlowState.SNAPSHOT
        return self.connected and waiting and now - self.waiting_since > timeout
