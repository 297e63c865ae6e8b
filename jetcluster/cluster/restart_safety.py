"""Check whether this node may be stopped: each group that it votes in must keep a majority, connected and caught up.

Only a group's leader knows the progress of the others. The leaders are asked, in bounded time: one call per peer that
leads any of this node's groups, for all of its groups. A group whose leader does not answer is not safe.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.mesh.api import MeshError
from jetcluster.raft.api import META_GROUP, RaftGroup, Role
from jetcluster.records import NamedTuple
from jetcluster.replica.members import carried_without
from jetcluster.replica.services import Network, Runtime

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.replica.stream_replica import StreamReplica

METHOD: Final = "groups.without"
ASK_SECONDS: Final = 2.0
FIND_SECONDS: Final = 0.25
"""Wait for leaders that this node does not know: its own replica of the group may have stopped."""
MAX_SOUGHT_LEADERS: Final = 64
SILENT_SECONDS: Final = 3.0
"""Time after which a silent node with an open link does not count: it may stand still."""
_GID = struct.Struct("<I")
_ANSWER = struct.Struct("<IBB")
"""Group id; number of its voters without the asker, 0 if it is not led here; how many of them are caught up."""


class Risk(NamedTuple):
    """A group that would lose its majority."""

    account: str
    """Account of the stream; "" for the meta group."""
    name: str
    voters: int
    """Voters without this node; 0 when the leader did not answer."""
    current: int
    """Voters of these that are connected and caught up."""

    @property
    def text(self) -> str:
        what = f"stream '{self.account} > {self.name}'" if self.account else "the meta group"
        if not self.voters:
            return f"{what}: its leader is not known or does not answer"
        return f"{what}: {self.current} of {self.voters} other voters connected and caught up, {self.needed} needed"

    @property
    def needed(self) -> int:
        return _needed(self.voters)

    @property
    def passing(self) -> bool:
        """True when all other voters are available: the group, such as any of two, only pauses during the restart."""
        return 0 < self.voters == self.current


class Safety(NamedTuple):
    """The result of a check."""

    groups: int
    """Number of groups checked."""
    risks: tuple[Risk, ...]


class RestartSafety:
    """The check, and its answers to other nodes. One per node."""

    def __init__(
        self, runtime: Runtime, network: Network, meta: MetaReplica, replicas: Mapping[int, StreamReplica]
    ) -> None:
        self._runtime, self._network = runtime, network
        self._meta = meta
        self._replicas = replicas
        network.mesh.serve(METHOD, self._serve)

    async def check(self) -> Safety:
        """Checks all groups, in about two seconds at most. Groups of one stop with the node in any case."""
        asked: dict[str, list[int]] = {}
        known: dict[int, tuple[int, int]] = {}
        groups = {gid: group for gid, group in self._groups() if self._votes(group)}
        leaders = self._network.leaders
        unknown = [gid for gid in groups if leaders.get(gid) is None][:MAX_SOUGHT_LEADERS]
        await asyncio.gather(*(leaders.wait(gid, FIND_SECONDS) for gid in unknown))
        for gid, group in groups.items():
            leader = leaders.get(gid)
            if leader == self._network.me:
                known[gid] = self._without(group, self._network.me)
            elif leader is not None:
                asked.setdefault(leader, []).append(gid)
        answers = await asyncio.gather(*(self._ask(peer, gids) for peer, gids in asked.items()))
        for answer in answers:
            known |= answer
        risks = []
        for gid in groups:
            voters, current = known.get(gid, (0, 0))
            if groups[gid].stopped and self._others_are_there(groups[gid], voters, current):
                continue
            if current < _needed(voters) or not voters:
                risks.append(Risk(*self._named(gid), voters, current))
        return Safety(len(groups), tuple(risks))

    def _groups(self) -> Iterator[tuple[int, RaftGroup]]:
        if self._meta.group is not None:
            yield META_GROUP, self._meta.group
        for gid, replica in self._replicas.items():
            yield gid, replica.group

    def _votes(self, group: RaftGroup) -> bool:
        return self._network.me in group.peers and len(group.peers) > 1

    def _others_are_there(self, group: RaftGroup, voters: int, current: int) -> bool:
        """True when all other voters are available. A group whose local replica has stopped loses nothing by a restart,
        and may even need it: one of two voters, while a stream moves, commits nothing alone and may not be elected."""
        if voters:
            return current == voters
        raft, now = self._network.raft, self._runtime.clock.monotonic()
        others = [peer for peer in group.peers if peer != self._network.me]
        return all(now - raft.peers.last_seen(peer) < SILENT_SECONDS for peer in others)

    def _named(self, gid: int) -> tuple[str, str]:
        replica = self._replicas.get(gid)
        return (replica.assignment.account, replica.assignment.name) if replica is not None else ("", "meta")

    async def _ask(self, peer: str, gids: list[int]) -> dict[int, tuple[int, int]]:
        """Returns voters and current voters by group; a group without an answer is left out."""
        payload = b"".join(map(_GID.pack, gids))
        try:
            answer = await self._network.mesh.call(peer, METHOD, payload, ASK_SECONDS)
            return {gid: (voters, current) for gid, voters, current in _ANSWER.iter_unpack(answer) if voters}
        except (MeshError, struct.error):
            return {}

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        """Answers for the groups that this node leads."""
        groups = dict(self._groups())
        found = []
        for (gid,) in _GID.iter_unpack(payload):
            group = groups.get(gid)
            leads = group is not None and group.role is Role.LEADER and group.ready
            found.append(_ANSWER.pack(gid, *(self._without(group, peer) if leads and group is not None else (0, 0))))
        return b"".join(found)

    def _without(self, group: RaftGroup, peer: str) -> tuple[int, int]:
        """Returns the number of voters without `peer`, and of those that carry the group and were heard lately."""
        rest, carried = carried_without(group, peer)
        raft, now = self._network.raft, self._runtime.clock.monotonic()
        heard = [p for p in carried if p == self._network.me or now - raft.peers.last_seen(p) < SILENT_SECONDS]
        return len(rest), len(heard)


def _needed(voters: int) -> int:
    """Returns the votes needed of `voters` other voters; the majority counts the stopped node too, as it comes back."""
    return (voters + 1) // 2 + 1
