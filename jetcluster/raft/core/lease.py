"""`Lease`: a leader reads without a round trip while a majority owes it not to elect another one.

A read at a leader must prove that nobody leads after it. ReadIndex (`read_index.py`) asks a majority each time. With a
lease a majority has promised, when asked at time s, to vote for nobody else for L seconds (`promise.py`). Every
election needs a voter of that majority, so until s + L nobody else leads, and what this leader has applied is the
newest state. L is measured by the voters' clocks, from later than s; this leader's clock may run slower than theirs.
With clocks that are wrong by at most a share e it uses the lease for L * (1 - e) / (1 + e) seconds (`use_of`).

- Only leaders that are read from ask, at most twice per lease; a group that is hardly read at its leader is elected
  anew without any wait.
- All configurations that may be in force by the log must have a majority that promised, counted anew at each change;
  this node must be a voter in all of them. A peer that left and comes back has promised nothing.
- Before TimeoutNow the leader gives its leases up, and says up to which number: its successor repeats that to the other
  voters before it asks for their votes. Later leases have higher numbers, so a TimeoutNow that comes late frees nobody
  from a newer promise.
- A resigning leader reads no more before it says so.

Other designs: docs/mechanisms/leases.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from jetcluster.raft import codec
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group_state import GroupState

_SURE = 1 << 62
"""Nanoseconds later than any request: when this node, which votes for nobody else while it leads, was asked."""
_IN_FLIGHT = 4
"""Requests that may be answered late."""


def use_of(config: RaftConfig) -> float:
    """Return the seconds for which a leader uses a promise of `lease` seconds: its clock may be slow, and the voters'
    fast."""
    return config.lease * (1 - config.clock_drift) / (1 + config.clock_drift)


class Lease:
    """The lease of one group, on its leader. Times are seconds of `Clock.uptime`."""

    def __init__(self, state: GroupState, leaving: Callable[[], bool]) -> None:
        """`leaving`: the leadership is being handed over, so no voter is asked to stay."""
        self._state = state
        self._leaving = leaving
        self._now = state.node.clock.uptime
        self._use = use_of(state.config)
        self.until = -math.inf
        """The lease holds until then; infinity in a group of one."""
        self._number = self._released = 0
        self.asked: deque[tuple[int, int]] = deque(maxlen=_IN_FLIGHT)
        """(number, nanoseconds) of the newest requests."""
        self._asked_at = self._window = -math.inf
        self._reads = 0
        """Reads since `_window`, which is at most a lease ago."""
        self._busy = False
        """True when the window before had enough reads."""
        self.promised: dict[str, int] = {}
        """Peer -> when the newest request that it has granted was sent (nanoseconds)."""

    def begin(self) -> None:
        """Begin a term as its leader."""
        self.end()
        self._number = self._released = 0
        self.settle()

    def end(self) -> None:
        """Forget all promises: this replica leads no more, or leads anew."""
        self.until = self._asked_at = self._window = -math.inf
        self._reads, self._busy = 0, False
        self.promised.clear()
        self.asked.clear()

    def serves(self) -> bool:
        """Return True when what is applied here may be read now. Otherwise, or if the lease is about to end, ask for
        one, provided that enough is read."""
        state = self._state
        if not (state.ready and state.engine.leading) or state.applied_index < state.engine.commit:
            return False
        if self.until == math.inf:
            return True
        now = self._now()
        use = self._use
        if self._pays(now) and self.until - now < use / 2 and now - self._asked_at >= use / 2:
            self._ask(now)
        return now < self.until and state.node.health.keeps_time

    def _pays(self, now: float) -> bool:
        """Count a read. Return True when there are enough of them, in this window or the one before it."""
        enough, age = self._state.config.lease_reads, now - self._window
        if age >= self._use:
            self._busy = self._reads >= enough and age < 2 * self._use
            self._window, self._reads = now, 0
        self._reads += 1
        return self._busy or self._reads >= enough

    def _ask(self, now: float) -> None:
        state = self._state
        log = state.log
        if self._leaving() or self._number >= codec.NO_REPLY or log.election_gseq > log.durable_gseq:
            return
        self._asked_at = now
        self._number += 1
        self.asked.append((self._number, int(now * 1e9)))
        self._tell(codec.LeaseRequest(state.term, self._number, int(state.config.lease * 1e6)))

    def _tell(self, message: codec.LeaseRequest | codec.LeaseReleased) -> None:
        state = self._state
        frame = codec.encode(message)
        for peer in state.log.config.electorate:
            if peer != state.me and state.node.peers.knows_leases(peer):
                state.send(peer, frame)

    def on_grant(self, peer: str, number: int) -> None:
        """Count the promise of `peer` that answers request `number`; answers to released requests count for nothing."""
        if number <= self._released or not self._state.log.config.has_vote(peer):
            return
        for asked, when in self.asked:
            if asked == number:
                self.promised[peer] = max(when, self.promised.get(peer, 0))
                self.settle()

    def settle(self) -> None:
        """Compute until when the lease holds, by the configurations that may be in force."""
        state = self._state
        log = state.log
        voters = set(log.config.electorate)
        self.promised = {peer: when for peer, when in self.promised.items() if peer in voters}
        reached = {**self.promised, state.me: _SURE}
        configs = log.configs_from(state.engine.commit)
        since = min(config.quorum_index(reached) if state.me in config.voters else 0 for config in configs)
        if since == _SURE:
            self.until = math.inf
        else:
            self.until = since / 1e9 + self._use if since else -math.inf

    def release(self) -> None:
        """Read by no lease any more that was asked for so far, and say so to all voters."""
        self._released = self._number
        self.promised.clear()
        self.settle()
        self._tell(codec.LeaseReleased(self._state.term, self._released))
