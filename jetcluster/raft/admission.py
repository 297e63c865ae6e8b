"""`Admission`: the peers whose frames count, and which frames. All others may be linked and are not listened to: a peer
that can reach the route port, or has its password, is no member of anything by that.

- A member of a group is who the newest configuration of its log names, committed or not, and who belongs to the cluster
  as well: to the meta group, by the newest configuration in this node's log of it, or by the word of a voter
  (`vouched`), where this node's log lags.
- Voters lead, stand for election and tell the time. A learner answers, no more: anybody who may join becomes one.
- A voter of the cluster that has no vote in the group by this replica's log may have become one since. It is heard
  while nobody leads whom this replica knows, which is so where it lags: a replica that follows a leader hears of new
  ones from it.

The peer is always that of the link, never a field of a frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from jetcluster.clock import Clock
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.group_state import GroupState
from jetcluster.raft.journal import Journal

TELL_EVERY = 60.0
"""Seconds between two reports that frames of a peer are refused."""
MAX_TOLD = 256


class Standing(Enum):
    """The standing of a peer in a group."""

    STRANGER = 0
    LEARNER = 1
    VOTER = 2


class Admission:
    def __init__(self, groups: Mapping[int, GroupState], journal: Journal, clock: Clock) -> None:
        self._groups = groups
        self._journal = journal
        self._clock = clock
        self.vouched: Callable[[str], bool] = lambda peer: False
        """Is the peer known to have a vote in the cluster, though by this node's log of the meta group it has none?"""
        self.report: Callable[[int, str], None] = lambda gid, text: None
        self.refused = 0
        """Frames."""
        self._told: dict[str, float] = {}

    def is_member(self, peer: str) -> bool:
        """Does `peer` belong to the cluster, as far as this node knows? Anybody may as long as it knows of none: it has
        not met its cluster yet."""
        meta = self._groups.get(META_GROUP)
        if meta is not None and meta.members:
            return peer in meta.members or self.vouched(peer)
        log = self._journal.groups.get(META_GROUP)
        if log is None:
            return True
        return peer in log.config.voters or peer in log.config.learners or self.vouched(peer)

    def is_voter(self, peer: str) -> bool:
        """Does `peer` have a vote in the cluster, as far as this node knows? As in `is_member`, anybody has one before
        this node has met its cluster."""
        log = self._journal.groups.get(META_GROUP)
        return log is None or peer in log.config.voters or self.vouched(peer)

    def knows(self, peer: str) -> bool:
        """The same, of a node that has met its cluster; False before it has."""
        return META_GROUP in self._journal.groups and self.is_member(peer)

    def belongs(self, peer: str) -> bool:
        """To the cluster, or to a group."""
        return self.knows(peer) or any(peer in group.members for group in self._groups.values())

    def standing(self, group: GroupState, peer: str) -> Standing:
        """The standing of `peer` in `group`."""
        if peer in group.log.configs[-1][1].voters:
            meta = self._groups.get(META_GROUP)
            known = group is meta or (meta is not None and peer in meta.members) or self.is_member(peer)
            return Standing.VOTER if known else Standing.STRANGER
        if group.hears(peer) and self.is_voter(peer):
            return Standing.VOTER
        learns = peer in group.members and (group.gid == META_GROUP or self.is_member(peer))
        return Standing.LEARNER if learns else Standing.STRANGER

    def refuse(self, peer: str, gid: int, why: str = "it is not known as a member") -> None:
        """A frame that counts for nothing. Told once in a while."""
        self.refused += 1
        now = self._clock.monotonic()
        if now - self._told.get(peer, -TELL_EVERY) >= TELL_EVERY:
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told[peer] = now
            self.report(gid, f"frames of {peer} are refused: {why}")
