"""The groups that were here and left: a journal forgets their records, and must not forget that there were any.

A replica without a log may begin as a voter only where it never promised anything: it would vote twice in one term, and
would be counted for entries that it acknowledged and does not have. That it has no log here any more says nothing. So
the ids of removed groups are kept, and repeated at the beginning of each segment, in a REMOVE of group 0: versions
before pass over it.

    body = version u8, floor u32, run*        run = first id u32, number of ids u32
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from itertools import pairwise

_HEAD = struct.Struct("<BI")
_RUN = struct.Struct("<II")
_VERSION = 1
MOST = 4096
"""Ids that are kept one by one: 32 KB in each segment, at most."""


class RemovedGroups:
    """One per journal."""

    def __init__(self, gids: Collection[int] = (), floor: int = 0) -> None:
        self.floor = floor
        """Any group up to here may have been here, for all that is known."""
        self._gids = set(gids)

    def __contains__(self, gid: int) -> bool:
        return gid in self._gids

    def __bool__(self) -> bool:
        return bool(self._gids or self.floor)

    def may_have_been(self, gid: int) -> bool:
        return gid <= self.floor or gid in self._gids

    def add(self, gid: int) -> None:
        self._gids.add(gid)
        if len(self._gids) > MOST:
            oldest = sorted(self._gids)[: MOST // 4]
            self._gids.difference_update(oldest)
            self.raise_floor(oldest[-1])

    def discard(self, gid: int) -> None:
        """It is here again, and its own log says the rest."""
        self._gids.discard(gid)

    def raise_floor(self, gid: int) -> None:
        """Nothing certain is known of groups up to `gid`."""
        self.floor = max(self.floor, gid)

    def encode(self) -> bytes:
        return _HEAD.pack(_VERSION, self.floor) + b"".join(_RUN.pack(*run) for run in self._runs())

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Groups are numbered upwards, and often leave together."""
        gids = sorted(self._gids)
        starts = [0, *(at for at, (a, b) in enumerate(pairwise(gids), 1) if b != a + 1), len(gids)]
        return ((gids[start], end - start) for start, end in pairwise(starts) if end > start)


def decode_removed(body: bytes) -> RemovedGroups:
    """Raises ValueError on anything that `encode` did not make."""
    if len(body) < _HEAD.size or (len(body) - _HEAD.size) % _RUN.size:
        raise ValueError("removed groups: the record is cut short")
    version, floor = _HEAD.unpack_from(body)
    if version != _VERSION:
        raise ValueError(f"removed groups: version {version}")
    runs = list(_RUN.iter_unpack(body[_HEAD.size :]))
    if sum(count for _, count in runs) > MOST + 1:
        raise ValueError("removed groups: too many")
    return RemovedGroups([gid for first, count in runs for gid in range(first, first + count)], floor)
