"""Comparison of replicas, and the vote on which of them is right: replicas must not drift apart silently.

Every replica keeps a rolling hash over all applied commands and their results (`stream.apply.machine`). Every few
seconds a leader sends its followers the hash at its newest checkpoint. A follower with another hash at that index stops
answering reads and begins a vote.

In the vote every replica judges itself. It asks all voters for their hashes at the disputed index and at the newest
indexes since. If a majority has another hash, this replica, leader or follower, rejects its own state and is rebuilt
from the others; nothing acknowledged is lost, because a majority agrees on the log that holds it. If a majority has the
same hash, the odd replica will find out by its own vote. Without a majority (a voter is away, or all differ) nothing is
rebuilt; the disagreement is reported and the voters are asked again.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from jetcluster.mesh.api import MeshError
from jetcluster.mesh.frames import FrameError
from jetcluster.model.advisory import replicas_differ
from jetcluster.records import dataclass
from jetcluster.replica.replica_state import tell_both
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Network, Runtime

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

METHOD: Final = "hash.at"
ASK_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 1.0
REPORT_AFTER_ROUNDS: Final = 3
"""Rounds without a majority before they are reported: a voter may just lag a little."""
LATER_SECONDS: Final = 10.0
"""Time between rounds after that."""
MAX_POINTS: Final = 4
"""Indexes in one question."""

_GID = struct.Struct("<I")
_POINT = struct.Struct("<Q16s")
_UNKNOWN = bytes(16)

Point = tuple[int, bytes]
"""(log index, rolling hash after it)."""


@dataclass(slots=True)
class _Vote:
    """The vote on one stream; it is open until a majority has the same hash."""

    first: Point
    at: float
    """Time of the next round."""
    rounds: int = 0
    running: bool = False
    told: bool = False


class HashVotes:
    """The votes in progress. One per node; `tick` a few times per second."""

    def __init__(
        self, runtime: Runtime, network: Network, replicas: Mapping[int, StreamReplica], background: Background
    ) -> None:
        self._runtime, self._network = runtime, network
        self._replicas = replicas
        self._votes: dict[int, _Vote] = {}
        self._background = background
        network.mesh.serve(METHOD, self._serve)

    @property
    def undecided(self) -> list[int]:
        """Streams whose replicas differ while no majority has decided which one is right (monitoring)."""
        return [gid for gid, vote in self._votes.items() if vote.told]

    def differs(self, gid: int, index: int, *, leader: bool) -> None:
        """Begin a vote: another replica has another hash at `index`. `leader`: it is the leader's."""
        replica = self._replicas[gid]
        own = replica.checkpoints.at(index)
        if own is None or not replica.sound:
            return
        if leader and not replica.leading:
            replica.set_disputed(f"differs from its leader at {index}")
        if gid not in self._votes:
            self._votes[gid] = _Vote((index, own), 0.0)
            self.tick()

    def agrees(self, gid: int, index: int) -> None:
        """Note that this replica has its leader's hash at `index`. A difference at a later index stays disputed."""
        vote = self._votes.get(gid)
        if vote is None or index >= vote.first[0]:
            self._votes.pop(gid, None)
            self._replicas[gid].set_disputed("")

    def forget(self, gid: int) -> None:
        self._votes.pop(gid, None)

    def tick(self) -> None:
        if not self._votes:
            return
        now = self._runtime.clock.monotonic()
        for gid, vote in list(self._votes.items()):
            replica = self._replicas.get(gid)
            if replica is None or not replica.sound:
                del self._votes[gid]  # the replica is gone, or its state is being replaced
            elif not vote.running and now >= vote.at:
                vote.running = True
                self._background.spawn(self._round(gid, vote, replica))

    async def _round(self, gid: int, vote: _Vote, replica: StreamReplica) -> None:
        points = [vote.first, *(p for p in replica.checkpoints.newest_ones() if p[0] > vote.first[0])][:MAX_POINTS]
        voters = replica.group.peers
        others = [peer for peer in voters if peer != self._network.me]
        answers = await asyncio.gather(*(self._ask(peer, gid, points) for peer in others))
        vote.running = False
        vote.rounds += 1
        vote.at = self._runtime.clock.monotonic() + (
            RETRY_SECONDS if vote.rounds < REPORT_AFTER_ROUNDS else LATER_SECONDS
        )
        if self._votes.get(gid) is not vote or not replica.sound or replica.group.peers != voters:
            return
        for at, (index, own) in enumerate(points):
            hashes = {peer: answer[at] for peer, answer in zip(others, answers, strict=True) if answer}
            hashes[self._network.me] = own
            known = {peer: value for peer, value in hashes.items() if peer in voters and value != _UNKNOWN}
            winner = majority(known, len(voters))
            if winner is not None:
                self._decided(gid, replica, index, right=winner == own)
                return
        if vote.rounds >= REPORT_AFTER_ROUNDS and not vote.told:
            vote.told = True
            self._tell(replica, vote.first[0], known)

    def _decided(self, gid: int, replica: StreamReplica, index: int, *, right: bool) -> None:
        del self._votes[gid]
        if right:
            replica.set_disputed("")
        else:
            replica.diverged(index)

    async def _ask(self, peer: str, gid: int, points: Sequence[Point]) -> list[bytes]:
        request = _GID.pack(gid) + b"".join(_POINT.pack(*point) for point in points)
        try:
            reply = await self._network.mesh.call(peer, METHOD, request, ASK_SECONDS)
        except MeshError:
            return []
        return [reply[at : at + 16] for at in range(0, len(reply), 16)] if len(reply) == 16 * len(points) else []

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        """Answer with the hash here at each index, zeros where it is unknown; the question has the asker's hashes."""
        if (len(payload) - _GID.size) % _POINT.size or len(payload) > _GID.size + MAX_POINTS * _POINT.size:
            raise MeshError("malformed question for hashes")
        (gid,) = _GID.unpack_from(payload)
        replica = self._replicas.get(gid)
        if replica is None or not replica.sound:
            raise MeshError("no replica here that could say so")
        answer = b""
        for index, theirs in _POINT.iter_unpack(payload[_GID.size :]):
            own = replica.checkpoints.at(index)
            answer += own if own is not None else _UNKNOWN
            if own is not None and own != theirs:
                self.differs(gid, index, leader=replica.group.leader == peer)
        return answer

    def _tell(self, replica: StreamReplica, index: int, known: Mapping[str, bytes]) -> None:
        assignment = replica.assignment
        text = "replicas differ, and no majority of them agrees: nothing is rebuilt"
        self._runtime.log.error(text, stream=assignment.name, index=index, peers=sorted(known))
        nodes = replica.known.machine.nodes
        named = [
            (nodes[peer].name if peer in nodes else "", peer, known.get(peer, b"").hex())
            for peer in replica.group.peers
        ]
        tell_both(replica, replicas_differ(assignment.name, self._network.name, index, named))


def majority(hashes: Mapping[str, bytes], voters: int) -> bytes | None:
    """The hash that more than half of `voters` have, else None."""
    ranked = Counter(hashes.values()).most_common(1)
    return ranked[0][0] if ranked and 2 * ranked[0][1] > voters else None


NOTICE = "hash"
NOTICE_SECONDS = 2.0
REPEATED_NOTICES = 3
"""An idle leader sends the same hash this many times: a follower that lagged compares the second or third."""
REMIND_SECONDS = 600.0
"""Time after which it does so again: a follower may have lagged for longer, and applied since what nobody compared."""
MAX_PER_NOTICE = 4096

_ENTRY = struct.Struct("<IQ16s")


class DriftCheck:
    """Sends the hashes of streams that this node leads, and compares those that it follows. One per node."""

    def __init__(
        self, runtime: Runtime, network: Network, replicas: Mapping[int, StreamReplica], votes: HashVotes
    ) -> None:
        self._runtime, self._network = runtime, network
        self._replicas = replicas
        self.votes = votes
        self._told: dict[int, tuple[int, int]] = {}
        """Group -> (index sent last, number of times)."""
        self._open: dict[int, None] = {}
        """Groups with a hash to send, or to send again."""
        self._next = 0.0
        self._remind_at = runtime.clock.monotonic() + REMIND_SECONDS
        self.compared = 0
        """Hashes compared with a leader's and found equal (monitoring)."""
        network.mesh.on_notice(NOTICE, self._on_notice)
        network.mesh.on_peers(lambda info: self._tell_anew(), lambda info: None)

    def forget(self, gid: int) -> None:
        self._told.pop(gid, None)
        self._open.pop(gid, None)
        self.votes.forget(gid)

    def look(self, visited: Iterable[StreamReplica]) -> None:
        """Take replicas that were visited (`replica.rounds`): what changes a hash or the leader makes a visit due."""
        for replica in visited:
            gid = replica.assignment.gid
            if not replica.leading or len(replica.group.peers) < 2:
                self._told.pop(gid, None)
                self._open.pop(gid, None)
            elif self._told.get(gid) != (replica.checkpoints.newest[0], REPEATED_NOTICES):
                self._open[gid] = None

    def _tell_anew(self) -> None:
        """Send all hashes again: a node has come that may lack them, or one has lagged."""
        self._remind_at = self._runtime.clock.monotonic() + REMIND_SECONDS
        self._told.clear()
        self.look(self._replicas.values())

    def tick(self) -> None:
        self.votes.tick()
        now = self._runtime.clock.monotonic()
        if now < self._next:
            return
        if now >= self._remind_at:
            self._tell_anew()
        self._next = now + NOTICE_SECONDS
        entries: list[bytes] = []
        for gid in list(self._open):
            replica = self._replicas.get(gid)
            if replica is None or not replica.leading:
                del self._open[gid]
                continue
            newest = replica.checkpoints.newest[0]
            index, times = self._told.get(gid, (0, 0))
            times = times + 1 if index == newest else 1
            self._told[gid] = newest, times
            if times >= REPEATED_NOTICES:
                del self._open[gid]
            entries += [_ENTRY.pack(gid, index, digest) for index, digest in replica.checkpoints.to_tell()]
        for start in range(0, len(entries), MAX_PER_NOTICE):
            self._network.mesh.notify(None, NOTICE, b"".join(entries[start : start + MAX_PER_NOTICE]))

    def _on_notice(self, peer: str, payload: bytes) -> None:
        if len(payload) % _ENTRY.size or len(payload) > _ENTRY.size * MAX_PER_NOTICE:
            raise FrameError("malformed list of hashes")
        for gid, index, digest in _ENTRY.iter_unpack(payload):
            replica = self._replicas.get(gid)
            if replica is None or replica.group.leader != peer or not replica.sound:
                continue
            own = replica.checkpoints.at(index)
            if own is None:
                continue
            if own == digest:
                self.compared += 1
                if replica.disputed:
                    self.votes.agrees(gid, index)
            else:
                self.votes.differs(gid, index, leader=True)
