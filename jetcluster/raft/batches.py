"""Batches of the journal: what is written with one write and one sync."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetcluster.raft.grouplog import GroupLog


@dataclass(slots=True)
class OpenBatch:
    chunks: list[bytes] = field(default_factory=list)
    count: int = 0
    logs: dict[GroupLog, None] = field(default_factory=dict)
    moves: list[tuple[GroupLog, int, int, int, int]] = field(default_factory=list)
    sync: bool = False


@dataclass(slots=True)
class SealedBatch:
    seq: int
    segment: int
    offset: int
    chunks: list[bytes]
    marks: list[tuple[GroupLog, tuple[int, int]]]
    moves: list[tuple[GroupLog, int, int, int, int]]
    new_segment: bool
    sync: bool
    size: int
