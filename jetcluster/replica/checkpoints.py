"""`Checkpoints`: the rolling hash of a replica at the last few places in its log, for comparison with others."""

from __future__ import annotations

from itertools import islice

CHECKPOINT_EVERY = 64
"""Log entries between two remembered hashes; a power of two."""
CHECKPOINTS = 256
"""Remembered per replica: a follower that lags further than 64 * 256 entries is compared when it has caught up."""


class Checkpoints:
    """The rolling hash at the last few checkpoints, and at the newest applied index."""

    def __init__(self, index: int = 0, digest: bytes = b"") -> None:
        """`index` and `digest`: where the state machine stands."""
        self._hashes: dict[int, bytes] = {}
        self.newest: tuple[int, bytes] = (index, digest)

    def note(self, index: int, digest: bytes) -> None:
        self.newest = (index, digest)
        if not index & (CHECKPOINT_EVERY - 1):
            self._hashes[index] = digest
            if len(self._hashes) > CHECKPOINTS:
                del self._hashes[next(iter(self._hashes))]

    def at(self, index: int) -> bytes | None:
        return self.newest[1] if index == self.newest[0] else self._hashes.get(index)

    def newest_ones(self) -> list[tuple[int, bytes]]:
        """The newest hash and the newest checkpoints, newest first."""
        found = [self.newest] if self.newest[0] else []
        found += [
            (index, self._hashes[index]) for index in islice(reversed(self._hashes), 3) if index != self.newest[0]
        ]
        return found

    def to_tell(self) -> list[tuple[int, bytes]]:
        """The newest hash, and the newest checkpoint, which a follower that is a little behind can compare too."""
        told = [self.newest] if self.newest[0] else []
        if self._hashes:
            index = next(reversed(self._hashes))
            if index != self.newest[0]:
                told.append((index, self._hashes[index]))
        return told
