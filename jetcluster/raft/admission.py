"""`Admission`: the peers whose frames count, and which frames. All others may be linked and are not listened to: a peer
that can reach the route port, or has its password, is no member of anything by that.

- A member of a group is who the newest configuration of its log names, committed or not, and who belongs to the cluster
  as well: to the meta group, by the newest configuration in this node's log of it, or by the word of a voter
  (`vouched`), where this node's log lags.
- Voters lead, stand for election and tell the time. A learner answers, no more: anybody who may join becomes one.
  One with a vote in the cluster may answer in a higher term than its leader's: it was a voter, stood for election
  before it heard that it is none, and follows nobody of a lower term. The leader has to be elected again.
- A voter of the cluster that has no vote in the group by this replica's log may have become one since. It is heard
  while nobody leads whom this replica knows, which is so where it lags: a replica that follows a leader hears of new
  ones from it.

The peer is always that of the link, never a field of a frame.

`FrameDelivery` hands each frame on, or refuses it. A term is the one number that a single frame can raise on every
node, and that never falls. So a leap that no election explains is taken once in a while only, and from who has a vote;
who is refused so keeps its link: a member whose own term has run away is not cut off from everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from jetcluster.clock import Clock
from jetcluster.raft import codec
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.node_state import RaftCounters

TELL_EVERY = 60.0
"""Seconds between two reports that frames of a peer are refused."""
MAX_TOLD = 256
_ANSWERS = (codec.Ack, codec.Reject, codec.SnapRequest, codec.Rejoin)
"""The messages of a learner, to the leader of the very term."""
MAX_LEAPS = 1024
"""Groups of which is remembered when their terms have leapt."""


class Standing(Enum):
    """The standing of a peer in a group."""

    STRANGER = 0
    LEARNER = 1
    VOTER = 2


class Admission:
    """The standing of each peer in each group, by this node's journal and what voters have vouched for."""

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
        return peer in log.config.members or self.vouched(peer)

    def is_voter(self, peer: str) -> bool:
        """Does `peer` have a vote in the cluster, as far as this node knows? As in `is_member`, anybody has one before
        this node has met its cluster."""
        log = self._journal.groups.get(META_GROUP)
        return log is None or log.config.has_vote(peer) or self.vouched(peer)

    def knows(self, peer: str) -> bool:
        """The same, of a node that has met its cluster; False before it has."""
        return META_GROUP in self._journal.groups and self.is_member(peer)

    def belongs(self, peer: str) -> bool:
        """To the cluster, or to a group."""
        return self.knows(peer) or any(peer in group.members for group in self._groups.values())

    def standing(self, group: GroupState, peer: str) -> Standing:
        """The standing of `peer` in `group`."""
        config = group.log.configs[-1][1]
        if peer in config.voters or peer in config.outgoing:
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


class FrameDelivery:
    """The way of a frame from a link to its group: standing, decoding, leaps of terms, in this order."""

    def __init__(self, admission: Admission, config: RaftConfig, counters: RaftCounters, clock: Clock) -> None:
        self._admission = admission
        self._config = config
        self._counters = counters
        self._clock = clock
        self.report: Callable[[int, str], None] = lambda gid, text: None
        self._leapt: dict[int, float] = {}
        """Group -> when its term was last raised by so much that it was not free."""
        self._told = float("-inf")

    def deliver(self, group: Group, peer: str, frame: bytes) -> str:
        """Hands the frame on. Returns what is wrong with it, if no member would send it: the link is then to be closed;
        else ""."""
        standing = self._admission.standing(group, peer)
        if standing is Standing.STRANGER:
            self._admission.refuse(peer, group.gid)
            return ""
        try:
            message = (codec.BY_HEAD.get(frame[:2]) or codec.decode)(frame)
        except codec.CodecError as error:
            self._counters.refused_frames += 1
            return f"Raft frame: {error}"
        leap = message.term - group.term
        allowed = isinstance(message, _ANSWERS) and (leap <= 0 or self._admission.is_voter(peer))
        if standing is Standing.LEARNER and not allowed:
            self._admission.refuse(peer, group.gid, "it is no voter")
            return ""
        far = leap > self._config.free_term_leap
        if far and not self._may_leap(group, peer, message):
            return ""
        try:
            group.receiver.on_message(peer, message)
        except Exception as error:  # noqa: BLE001 - an assertion of one group must not take the link of all
            group.fail(error)
            return ""
        if far and group.term >= message.term:
            self._leapt[group.gid] = self._clock.monotonic()
        return ""

    def _may_leap(self, group: Group, peer: str, message: codec.Message) -> bool:
        config, term, now = self._config, message.term, self._clock.monotonic()
        if len(self._leapt) >= MAX_LEAPS:
            self._leapt = {gid: when for gid, when in self._leapt.items() if now - when < config.leap_every}
        rested = now - self._leapt.get(group.gid, float("-inf")) >= config.leap_every
        free = isinstance(message, codec.PreVote)  # it raises no term
        if term - group.term <= config.max_term_leap and (free or (rested and len(self._leapt) < MAX_LEAPS)):
            return True
        self._counters.refused_frames += 1
        if now - self._told >= config.leap_every:
            self._told = now
            self.report(group.gid, f"a leap from term {group.term} to {term} is refused, of {peer}")
        return False


Frame = tuple[float, str, bytes]
"""When it came, from whom, and what."""


class EarlyFrames:
    """Frames for groups that this node does not have yet, by group, oldest first.

    Replicas of a new group come up within milliseconds of each other, and the first votes must not be lost. Bounded in
    groups, frames, bytes and time."""

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.kept: dict[int, list[Frame]] = {}
        """Group -> its frames."""
        self.bytes = 0

    def keep(self, gid: int, peer: str, frame: bytes, now: float) -> bool:
        """False when there is no room."""
        config = self._config
        kept = self.kept.get(gid, [])
        full = len(self.kept) >= config.early_groups and gid not in self.kept
        if full or len(kept) >= config.early_frames or self.bytes + len(frame) > config.early_bytes:
            return False
        self.kept.setdefault(gid, kept).append((now, peer, bytes(frame)))
        self.bytes += len(frame)
        return True

    def pop(self, gid: int) -> list[Frame]:
        kept = self.kept.pop(gid, [])
        self.bytes -= sum(len(frame) for _, _, frame in kept)
        return kept

    def drop_peer(self, peer: str) -> None:
        """Its link is gone."""
        for gid in list(self.kept):
            rest = [frame for frame in self.pop(gid) if frame[1] != peer]
            if rest:
                self.kept[gid] = rest
                self.bytes += sum(len(frame) for _, _, frame in rest)

    def expire(self, now: float) -> int:
        """Gives frames up and returns how many: no such group came in time."""
        late = [gid for gid, kept in self.kept.items() if now - kept[0][0] > self._config.early_seconds]
        return sum(len(self.pop(gid)) for gid in late)
