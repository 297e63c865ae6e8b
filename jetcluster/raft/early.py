"""Frames for groups that a node does not have yet: replicas of a new group come up within milliseconds of each other,
and the first votes must not be lost. Bounded in groups, frames, bytes and time.
"""

from __future__ import annotations

from jetcluster.raft.config import RaftConfig

Frame = tuple[float, str, bytes]
"""When it came, from whom, and what."""


class EarlyFrames:
    """The frames that wait for their group, by group, oldest first."""

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.kept: dict[int, list[Frame]] = {}
        """By group."""
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
