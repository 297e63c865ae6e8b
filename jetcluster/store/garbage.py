"""`Garbage`: the deleted blocks that a compaction is to free while space is short."""

from __future__ import annotations

from typing import Final

from jetcluster.store import keys
from jetcluster.store.kv import OpenWrites

MAX_RANGES: Final = 64
"""Key ranges remembered for a compaction that frees space."""


class Garbage:
    """Bounds of the deleted keys, for each kind and stream."""

    def __init__(self) -> None:
        self._bounds: dict[bytes, tuple[bytes, bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def note(self, writes: OpenWrites) -> bool:
        """Note what `writes` delete; True when there were blocks among it. Other deleted records are small, and every
        write deletes some."""
        deleted = [(key, key + b"\0") for key, value in writes.values.items() if value is None]
        found = False
        for start, end in writes.ranges + deleted:
            if start[0] != keys.BLOCK:
                continue
            found = True
            prefix = start[: keys.STREAM_PREFIX]
            known = self._bounds.get(prefix)
            if known is not None:
                start, end = min(start, known[0]), max(end, known[1])
            elif len(self._bounds) >= MAX_RANGES:
                continue
            self._bounds[prefix] = start, end
        return found

    def take(self) -> dict[bytes, tuple[bytes, bytes]]:
        taken, self._bounds = self._bounds, {}
        return taken

    def put_back(self, taken: dict[bytes, tuple[bytes, bytes]]) -> None:
        """Note again what could not be freed."""
        for prefix, (start, end) in taken.items():
            low, high = self._bounds.get(prefix, (start, end))
            self._bounds[prefix] = min(start, low), max(end, high)
