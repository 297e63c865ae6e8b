"""Frames that may not leave before what they say is on disk (docs/reference/pysyncobj.md: D10, D12)."""

from __future__ import annotations

from collections.abc import Iterator

from jetcluster.raft.grouplog import GroupLog


def is_durable(log: GroupLog, index: int, record: int) -> bool:
    """True when entries up to `index` and the group's journal record number `record` are on disk."""
    return index <= log.durable_index and record <= log.durable_gseq


class PersistBeforeSend:
    """In order; bounded by the leader's window, since every ack answers a batch."""

    def __init__(self) -> None:
        self._frames: list[tuple[int, int, int, str, bytes]] = []

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, term: int, index: int, record: int, peer: str, frame: bytes) -> None:
        """`frame` to `peer` is true in `term` once `index` and `record` are durable."""
        self._frames.append((term, index, record, peer, frame))

    def release(self, log: GroupLog, term: int) -> Iterator[tuple[str, bytes]]:
        """Frames that may leave now. Those of another term are dropped: a truncated tail's ack is stale by its term."""
        if not self._frames:
            return
        held, self._frames = self._frames, []
        for item in held:
            if item[0] != term:
                continue
            if is_durable(log, item[1], item[2]):
                yield item[3], item[4]
            else:
                self._frames.append(item)

    def keep_term(self, term: int) -> None:
        self._frames = [f for f in self._frames if f[0] == term]

    def drop_peer(self, peer: str) -> None:
        """Its connection is gone; it asks again for what it still needs."""
        self._frames = [f for f in self._frames if f[3] != peer]

    def clear(self) -> None:
        self._frames.clear()
