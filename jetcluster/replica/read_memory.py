"""`ReadMemory`: the bytes of reads' requests that wait, of one membership, and of all replicas of a node. A replica is
a member of the group that answers for its own stream, and a mirror's of its upstream's, too."""

from __future__ import annotations

from typing import Final

MAX_MEMBER_BYTES: Final = 16 << 20
"""A request may be as large as a message."""
MAX_NODE_BYTES: Final = 64 << 20
MAX_SLOW_MEMBER_BYTES: Final = 4 << 20
MAX_SLOW_NODE_BYTES: Final = 16 << 20
"""The same of slow requesters' reads, apart from the others."""


class ReadMemory:
    """Bytes of requests that wait; `whole`: those of the node, where these are a membership's."""

    def __init__(self, most: int, whole: ReadMemory | None = None) -> None:
        self.used = 0
        self._most, self._whole = most, whole

    def take(self, size: int) -> bool:
        """Count more; False where they would be too many, unless they are all: one request has always room."""
        if size and self.used and self.used + size > self._most:
            return False
        if self._whole is not None and not self._whole.take(size):
            return False
        self.used += size
        return True

    def change(self, size: int) -> None:
        """Count more, or fewer, in any case."""
        self.used += size
        if self._whole is not None:
            self._whole.change(size)
