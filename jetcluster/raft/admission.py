"""`Admission`: the peers whose frames count, and which frames. Other peers may have a link, but are ignored: a peer
that reaches the route port, or has its password, is no member by that.

- A member of a group is named by the newest configuration of its log, committed or not, and belongs to the cluster: to
  the meta group by the newest configuration of this node's log, or, where that lags, by the word of a voter
  (`vouched`).
- Voters lead, campaign and announce the time. A learner may only answer, because any node that may join becomes one. A
  learner that may have had a vote (`may_lead`) may answer in a higher term than its leader's: it was a voter,
  campaigned before it learned that it is none, and follows no leader of a lower term, so the leader must be elected
  again.
- A peer without a vote in the group by this replica's log may have got one since (`may_lead`). Its frames count while
  this replica knows no live leader, as it does where it lags: a follower learns of new voters from its leader.

The peer is always that of the link, never a field of a frame.

`FrameDelivery` passes each frame on, or refuses it. A term is the one number that a single frame can raise on every
node, and that never falls. So a leap that no election explains is accepted only once in a while, and only from voters.
A refused peer keeps its link, so that a member whose term has run away is not cut off from its other groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from jetcluster.raft import codec
from jetcluster.raft.api import META_GROUP
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.group_state import GroupState
from jetcluster.raft.node_state import NodeState

REPORT_SECONDS = 60.0
"""Shortest time between two reports that frames of a peer are refused."""
MAX_REPORTED_PEERS = 256
_ANSWERS = (codec.Ack, codec.Reject, codec.SnapRequest, codec.Rejoin)
"""The messages that a learner sends, to the leader of its term."""
MAX_LEAPT_GROUPS = 1024
"""Groups whose last leap of terms is remembered."""


class Standing(Enum):
    """The standing of a peer in a group."""

    STRANGER = 0
    LEARNER = 1
    VOTER = 2


class Admission:
    """The standing of each peer in each group, by this node's journal and what voters have vouched for."""

    def __init__(self, groups: Mapping[int, GroupState], node: NodeState, vouched: Callable[[str], bool]) -> None:
        """`vouched` returns True for a peer that has a vote in the cluster by a voter's word, unlike in this node's
        log of the meta group."""
        self.groups = groups
        self._journal, self._clock, self._report = node.journal, node.clock, node.report
        self.vouched = vouched
        self.refused = 0
        """Frames refused."""
        self._told: dict[str, float] = {}
        """Peer -> when its refusal was last reported (monotonic seconds)."""

    def is_member(self, peer: str) -> bool:
        """True if `peer` belongs to the cluster, by this node's knowledge, or this node has not met its cluster yet."""
        meta = self.groups.get(META_GROUP)
        if meta is not None and meta.members:
            return peer in meta.members or self.vouched(peer)
        log = self._journal.groups.get(META_GROUP)
        if log is None:
            return True
        return peer in log.config.members or self.vouched(peer)

    def is_voter(self, peer: str) -> bool:
        """True if `peer` has a vote in the cluster, as far as known, or this node has not met its cluster yet."""
        log = self._journal.groups.get(META_GROUP)
        return log is None or log.config.has_vote(peer) or self.vouched(peer)

    def may_lead(self, gid: int, peer: str) -> bool:
        """True if `peer` may have a vote in group `gid` that this replica does not know of: the meta group votes on a
        few nodes only, a stream's group on any."""
        return self.is_voter(peer) if gid == META_GROUP else self.is_member(peer)

    def knows(self, peer: str) -> bool:
        """True if this node has met its cluster and `peer` belongs to it."""
        return META_GROUP in self._journal.groups and self.is_member(peer)

    def belongs(self, peer: str) -> bool:
        """True if `peer` belongs to the cluster or to a group."""
        return self.knows(peer) or any(peer in group.members for group in self.groups.values())

    def standing(self, group: GroupState, peer: str) -> Standing:
        """Return the standing of `peer` in `group`."""
        config = group.log.configs[-1][1]
        if peer in config.voters or peer in config.outgoing:
            meta = self.groups.get(META_GROUP)
            known = group is meta or (meta is not None and peer in meta.members) or self.is_member(peer)
            return Standing.VOTER if known else Standing.STRANGER
        if group.hears(peer) and self.may_lead(group.gid, peer):
            return Standing.VOTER
        learns = peer in group.members and (group.gid == META_GROUP or self.is_member(peer))
        return Standing.LEARNER if learns else Standing.STRANGER

    def refuse(self, peer: str, gid: int, why: str = "it is not known as a member") -> None:
        """Count a refused frame, and report the peer every REPORT_SECONDS."""
        self.refused += 1
        now = self._clock.monotonic()
        if now - self._told.get(peer, -REPORT_SECONDS) >= REPORT_SECONDS:
            if len(self._told) >= MAX_REPORTED_PEERS:
                self._told.clear()
            self._told[peer] = now
            self._report(gid, f"frames of {peer} are refused: {why}")


class FrameDelivery:
    """The way of a frame from a link to its group: it checks standing, format and leaps of terms, in this order."""

    def __init__(self, admission: Admission, node: NodeState) -> None:
        self._admission = admission
        self._config, self._counters, self._clock, self._report = node.config, node.counters, node.clock, node.report
        self._leapt: dict[int, float] = {}
        """Group -> when its term last leapt by more than `free_term_leap` (monotonic seconds)."""
        self._told = float("-inf")

    def deliver(self, group: Group, peer: str, frame: bytes) -> str:
        """Pass the frame on, or refuse it. Returns "", or the fault of a frame that no member would send: the caller
        must then close the link."""
        meta = self._admission.groups.get(META_GROUP)
        if meta is not None and peer in meta.members and peer in group.log.configs[-1][1].voters:
            standing = Standing.VOTER  # nearly every frame's
        else:
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
        allowed = isinstance(message, _ANSWERS) and (leap <= 0 or self._admission.may_lead(group.gid, peer))
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
        if len(self._leapt) >= MAX_LEAPT_GROUPS:
            self._leapt = {gid: when for gid, when in self._leapt.items() if now - when < config.leap_every}
        rested = now - self._leapt.get(group.gid, float("-inf")) >= config.leap_every
        free = isinstance(message, codec.PreVote)  # a PreVote raises no term
        if term - group.term <= config.max_term_leap and (free or (rested and len(self._leapt) < MAX_LEAPT_GROUPS)):
            return True
        self._counters.refused_frames += 1
        if now - self._told >= config.leap_every:
            self._told = now
            self._report(group.gid, f"a leap from term {group.term} to {term} is refused, of {peer}")
        return False


Frame = tuple[float, str, bytes]
"""(when it came, peer, bytes)."""


class EarlyFrames:
    """Frames for groups that this node does not have yet, by group, oldest first; bounded in groups, frames, bytes and
    time. Replicas of a new group come up within milliseconds of each other, and the first votes must not be lost."""

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.kept: dict[int, list[Frame]] = {}
        """Group -> its frames."""
        self.bytes = 0

    def keep(self, gid: int, peer: str, frame: bytes, now: float) -> bool:
        """Keep a frame. Returns False when there is no room."""
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
        """Drop the frames of a peer whose link is gone."""
        for gid in list(self.kept):
            rest = [frame for frame in self.pop(gid) if frame[1] != peer]
            if rest:
                self.kept[gid] = rest
                self.bytes += sum(len(frame) for _, _, frame in rest)

    def expire(self, now: float) -> int:
        """Drop the frames of groups that were not created in time, and return their number."""
        late = [gid for gid, kept in self.kept.items() if now - kept[0][0] > self._config.early_seconds]
        return sum(len(self.pop(gid)) for gid in late)
