"""One frame of a peer on its way to a group: may the peer say such a thing there, and is its term too far ahead?

A term is the one number that a single frame can raise on every node, and that never falls. So a leap that no election
explains is taken once in a while only, and from who has a vote; who is refused so keeps its link: a member whose own
term has run away is not cut off from everything else.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.clock import Clock
from jetcluster.raft import codec
from jetcluster.raft.admission import Admission, Standing
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.group import Group
from jetcluster.raft.node_state import RaftCounters

_ANSWERS = (codec.Ack, codec.Reject, codec.SnapRequest, codec.Rejoin)
"""The messages of a learner, to the leader of the very term."""
MAX_LEAPS = 1024
"""Groups of which is remembered when their terms have leapt."""


class FrameDelivery:
    def __init__(self, admission: Admission, config: RaftConfig, counters: RaftCounters, clock: Clock) -> None:
        self._admission = admission
        self._config = config
        self._counters = counters
        self._clock = clock
        self.report: Callable[[int, str], None] = lambda gid, text: None
        self._leapt: dict[int, float] = {}
        """By group, when its term was last raised by so much that it was not free."""
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
        if standing is Standing.LEARNER and (leap > 0 or not isinstance(message, _ANSWERS)):
            self._admission.refuse(peer, group.gid, "it is no voter")
            return ""
        far = leap > self._config.free_term_leap
        if far and not self._may_leap(group, peer, message):
            return ""
        try:
            wrong = group.receiver.on_message(peer, message)
        except Exception as error:  # noqa: BLE001 - an assertion of one group must not take the link of all
            group.fail(error)
            return ""
        if far and group.term >= message.term:
            self._leapt[group.gid] = self._clock.monotonic()
        return wrong

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
