"""Replicas compare themselves: promise 2, "replicas cannot drift apart silently".

Every replica keeps a rolling hash over all commands it applied and what they resulted in (`stream.machine`). A leader
tells its followers the hash at its newest checkpoint every few seconds. A follower that had another hash at that index
stops answering reads, and a vote decides who is wrong (`hash_votes`): the odd one out, which may be the leader, fetches
the others' state. Its own is kept by nobody, because what was acknowledged is in the log that a majority agrees on.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jetcluster.mesh.frames import FrameError
from jetcluster.replica.background import Background
from jetcluster.replica.context import NodeContext
from jetcluster.replica.hash_votes import HashVotes

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

NOTICE = "hash"
INTERVAL = 2.0
TELL_TIMES = 3
"""An idle leader tells the same hash so often: a follower that was a moment behind compares the second one."""
MAX_PER_NOTICE = 4096

_ENTRY = struct.Struct("<IQ16s")


class DriftCheck:
    """One per node: tells what this node leads, compares what it follows."""

    def __init__(self, context: NodeContext, replicas: Mapping[int, StreamReplica], background: Background) -> None:
        self._context = context
        self._replicas = replicas
        self.votes = HashVotes(context, replicas, background)
        self._told: dict[int, tuple[int, int]] = {}
        """gid -> (index told last, how often)."""
        self._next = 0.0
        self.compared = 0
        """Hashes compared with a leader's and found equal (monitoring)."""
        context.mesh.on_notice(NOTICE, self._on_notice)
        context.mesh.on_peers(lambda info: self._told.clear(), lambda info: None)

    def forget(self, gid: int) -> None:
        self._told.pop(gid, None)
        self.votes.forget(gid)

    def tick(self) -> None:
        self.votes.tick()
        now = self._context.clock.monotonic()
        if now < self._next:
            return
        self._next = now + INTERVAL
        entries: list[bytes] = []
        for gid, replica in self._replicas.items():
            if not replica.leading or len(replica.group.peers) < 2:
                self._told.pop(gid, None)
                continue
            newest = replica.checkpoints.newest[0]
            index, times = self._told.get(gid, (0, 0))
            if index != newest:
                times = 0
            if times < TELL_TIMES:
                self._told[gid] = (newest, times + 1)
                entries += [_ENTRY.pack(gid, index, digest) for index, digest in replica.checkpoints.to_tell()]
        for start in range(0, len(entries), MAX_PER_NOTICE):
            self._context.mesh.notify(None, NOTICE, b"".join(entries[start : start + MAX_PER_NOTICE]))

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
                if replica.doubt:
                    self.votes.agrees(gid, index)
            else:
                self.votes.differs(gid, index, leader=True)
