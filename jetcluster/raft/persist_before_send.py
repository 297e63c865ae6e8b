"""Frames that may not leave before what they say is on disk (docs/reference/pysyncobj.md: D10, D12)."""

from __future__ import annotations

from jetcluster.raft.grouplog import GroupLog


class PersistBeforeSend:
    """In order; bounded by the leader's window, since every ack answers a batch."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, int, str, bytes]] = []
        """(term, index, record, peer, frame): see `add`."""

    def add(self, term: int, index: int, record: int, peer: str, frame: bytes) -> None:
        """`frame` to `peer` is true in `term` once `index` and `record` are durable."""
        self.frames.append((term, index, record, peer, frame))

    def release(self, log: GroupLog, term: int) -> list[tuple[str, bytes]]:
        """Frames that may leave now. Those of another term are dropped: a truncated tail's ack is stale by its term."""
        free: list[tuple[str, bytes]] = []
        held, self.frames = self.frames, []
        for item in held:
            of_term, index, record, peer, frame = item
            if of_term != term:
                continue
            if index <= log.written_index and record <= log.durable_gseq:
                free.append((peer, frame))
            else:
                self.frames.append(item)
        return free

    def keep_term(self, term: int) -> None:
        self.frames = [f for f in self.frames if f[0] == term]

    def drop_peer(self, peer: str) -> None:
        """Its connection is gone; it asks again for what it still needs."""
        self.frames = [f for f in self.frames if f[3] != peer]

    def clear(self) -> None:
        self.frames.clear()
