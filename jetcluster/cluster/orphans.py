"""Remains of a deleted stream until all of it is removed, and data of streams not assigned to this node.

Nothing is deleted by inference. A stream's data goes when this node applies the meta log's deletion, and the same write
batch has a tombstone. The order on disk, for a crash at any point:

1. One batch deletes the stream's records and puts the tombstone. A restart that finds the tombstone does not start the
   stream, even if an older meta state on disk still assigns it; the meta log repeats the deletion.
2. After the flush that makes 1 and the meta state durable, the group leaves the journal. So there never is a stream
   with data and no log, which would look like a replica that lost its vote.
3. With the flush after that, the tombstone goes, once the durable meta state no longer assigns the stream.

A crash before 1 is durable leaves the whole stream, which lives until the meta log's deletion is applied again.

Records and logs without assignment and tombstone stay, and are reported (`unassigned`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from jetcluster.raft.api import META_GROUP
from jetcluster.store import keys
from jetcluster.store.block_store import ALL_KINDS
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv

if TYPE_CHECKING:
    from jetcluster.logs import Log
    from jetcluster.raft.node import RaftNode

_TOMBSTONE = struct.Struct(">5sI")
_REVISION = struct.Struct(">Q")
_UNKNOWN = (1 << 64) - 1
_PREFIX = b"\x00gone"
"""Kind 0 of `store.keys`: records of the node, not of a stream."""


class Orphans:
    """Tombstones of this node's removed replicas, and the steps of their removal."""

    def __init__(self, kv: RocksKv, raft: RaftNode, log: Log) -> None:
        self._kv = kv
        self._raft = raft
        start, end = _TOMBSTONE.pack(_PREFIX, 0), _PREFIX + b"\xff" * 5
        self._deleted: dict[int, bool] = {}
        """By gid of each tombstone, whether its group has left the journal."""
        self._revisions: dict[int, int] = {}
        try:
            for key, value in kv.scan(start, end):
                gid = _TOMBSTONE.unpack(key)[1]
                self._deleted[gid] = False
                self._revisions[gid] = _REVISION.unpack(value)[0] if value else _UNKNOWN
        except KvDamagedError as error:
            # What is left of such a stream is merely reported as unassigned: its records went with the tombstone, and
            # the meta state is as new as that.
            log.error("records of deleted streams cannot be read", error=str(error))  # noqa: TRY400
        for gid in self._deleted:
            self._erase(gid)

    def is_deleted(self, gid: int) -> bool:
        return gid in self._deleted

    def revision(self, gid: int) -> int:
        """Returns the index of the meta log at which the replica lost its place; a later assignment is a new one."""
        return self._revisions.get(gid, _UNKNOWN)

    def delete(self, gid: int, revision: int = _UNKNOWN) -> None:
        """Step 1: removes a stopped replica whose stream the meta log deleted, or moved away."""
        self._erase(gid)
        self._kv.put(_TOMBSTONE.pack(_PREFIX, gid), _REVISION.pack(revision))
        self._deleted[gid] = False
        self._revisions[gid] = revision

    def settle(self, assigned: Callable[[int], bool]) -> Callable[[], None]:
        """Does step 3, before a flush, for streams past step 2. The returned function does step 2 for the others, and
        must be called after the flush. `assigned` returns whether the meta state being flushed assigns a gid here."""
        for gid in [gid for gid, forgotten in self._deleted.items() if forgotten and not assigned(gid)]:
            self._kv.delete(_TOMBSTONE.pack(_PREFIX, gid))
            del self._deleted[gid]
            self._revisions.pop(gid, None)
        waiting = [gid for gid, forgotten in self._deleted.items() if not forgotten]

        def flushed() -> None:
            for gid in waiting:
                self._raft.remove_group(gid)
                self._deleted[gid] = True

        return flushed

    def unassigned(self, known: Collection[int]) -> list[int]:
        """Returns the streams with records or a log here that are neither `known` (assigned here) nor deleted."""
        found = {*self._stored(), *self._raft.orphans()} - {META_GROUP}
        return sorted(gid for gid in found if gid not in known and gid not in self._deleted)

    def _stored(self) -> set[int]:
        """Returns the ids of streams with records, by one seek per stream and kind."""
        found: set[int] = set()
        for kind in set(ALL_KINDS) - {keys.TABLE}:  # an older version leaves it behind
            gid = 0
            while (pair := self._kv.ceiling(keys.stream_prefix(kind, gid), bytes([kind + 1]))) is not None:
                gid = int.from_bytes(pair[0][1:5], "big")
                found.add(gid)
                if gid == 0xFFFF_FFFF:
                    break
                gid += 1
        return found

    def _erase(self, gid: int) -> None:
        for kind in ALL_KINDS:
            self._kv.delete_range(keys.stream_prefix(kind, gid), keys.stream_end(kind, gid))
