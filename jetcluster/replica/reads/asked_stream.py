"""`AskedStream`: the stream that a membership answers for, with the differences between the replica's own (`OwnStream`)
and a mirror's upstream (`replica.mirror_host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jetcluster.mirror.ports import Pace
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.replica.reads.confirm import confirmed_commit, tell
from jetcluster.replica.reads.waits import Read
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.stream.rules import STRONG, WEAK


class AskedStream(Protocol):
    """The stream that a membership answers for: the replica's own, or the upstream of a mirror."""

    may_change: bool
    """True when `allows` and `is_another` may change by themselves: every tick and request asks them then."""

    @property
    def name(self) -> str:
        """The stream's name; asked only while `allows`."""

    @property
    def role(self) -> str:
        """The replica's role in the statistics of answers."""

    @property
    def is_another(self) -> bool:
        """True when the stream of that name is not the one whose messages this replica has."""

    @property
    def is_replaced(self) -> bool:
        """True when the stream was created anew since its messages came: their age cannot be known."""

    def allows(self, joined: bool) -> bool:
        """True when this replica may answer for the stream. `joined`: it does so now."""

    def confirms(self, origin: Origin, payload: bytes) -> bool:
        """True when a leader must confirm before a request of `origin` is answered."""

    def unconfirmed(self, origin: Origin, messages: Sequence[Outgoing]) -> int:
        """The number of requests, from the first one on, for which `confirms` is False. They have no headers."""

    async def confirmed(self) -> int | None:
        """The index that this replica must reach before such an answer; None when no leader says."""

    def reached(self) -> int:
        """The index that this replica has reached, in the same measure."""

    answers_unled: bool
    """True when requesters that were told of nothing newer are answered without a leader."""

    @property
    def consistency(self) -> str:
        """The stream's `read_consistency`."""

    @property
    def provable(self) -> bool:
        """True when a leader can be asked what is committed."""

    looks: Pace | None
    """For an upstream, the turns in which a replica asks for `heard` without a request, so that it knows its age."""

    @property
    def is_copied_whole(self) -> bool:
        """True when all messages of the stream are to be here, so that their last sequence says how old this is."""

    async def heard(self) -> int | None:
        """As `confirmed`, also by the word of an upstream elsewhere that does not prove it: ages go by it."""

    def knows_all_told(self, origin: Origin) -> bool:
        """True when the commit index that this node knows has all that `origin` may have been told."""

    async def tell(self, reads: list[Read]) -> None:
        """Set `told` of reads: the last sequence of the stream that their requesters were told of."""


class OwnStream:
    """The stream of the replica itself."""

    answers_unled = False
    may_change = False
    is_another = is_replaced = False
    provable = True
    looks: Pace | None = None
    is_copied_whole = True

    def __init__(self, replica: ReplicaState, domain: str) -> None:
        self._replica = replica
        self._domain = domain
        self._confirms_all = self._confirms_none = False
        self.configure()

    def configure(self) -> None:
        """Follow the stream's configuration."""
        self._confirms_all = self.consistency == STRONG
        self._confirms_none = self.consistency == WEAK

    @property
    def consistency(self) -> str:
        return self._replica.machine.rules.read_consistency

    def knows_all_told(self, origin: Origin) -> bool:
        return origin.kind != "peer"

    async def tell(self, reads: list[Read]) -> None:
        await tell(self._replica, self._replica.assignment, self._domain, reads)

    @property
    def name(self) -> str:
        return self._replica.assignment.name

    @property
    def role(self) -> str:
        return "leader" if self._replica.leading else "follower"

    def allows(self, joined: bool) -> bool:
        return self._replica.machine.rules.allow_direct

    def confirms(self, origin: Origin, payload: bytes) -> bool:
        return self._confirms_all or (origin.kind == "peer" and not self._confirms_none)

    def unconfirmed(self, origin: Origin, messages: Sequence[Outgoing]) -> int:
        return 0 if self.confirms(origin, b"") else len(messages)

    async def confirmed(self) -> int | None:
        return await confirmed_commit(self._replica.network, self._replica.group)

    heard = confirmed

    def reached(self) -> int:
        return self._replica.group.applied_index
