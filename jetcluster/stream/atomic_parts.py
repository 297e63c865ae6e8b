"""`BatchParts`: the parts of an atomic batch that is too long for one log entry, until its commit is applied.

The leader proposes parts and commit without anything in between, so in the log they stand next to each other in one
term. Where they do not (the leader went, or could not propose the rest), the commit will never come: the command that
is applied next makes the parts void. They are rows beside the messages, so a replica that restarts, or is rebuilt from
a peer, between a part and its commit has them.

    key u64 log index (big-endian) -> u64 term | u16 number | bytes of the batch
"""

from __future__ import annotations

import struct
from typing import Final

from jetcluster.store.block_store import BlockStore
from jetcluster.stream.commands import BatchPart
from jetcluster.stream.ports import SIDE_BATCH_PARTS

_KEY: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct("<QH")


class BatchParts:
    def __init__(self, store: BlockStore) -> None:
        """Continues with the rows of `store`."""
        self._store = store
        self._indexes: list[int] = []
        self.pieces: list[bytes] = []
        """The parts that came so far."""
        self._term = 0
        for key, value in store.side_scan(SIDE_BATCH_PARTS):
            self._term, _ = _HEAD.unpack_from(value)
            self._indexes.append(_KEY.unpack(key)[0])
            self.pieces.append(value[_HEAD.size :])

    def add(self, index: int, term: int, part: BatchPart) -> None:
        if not self._continues(index, term) or part.number != len(self._indexes):
            self.clear()
        if part.number != len(self._indexes):
            return  # its start was made void: so is this
        self._term = term
        self._indexes.append(index)
        self.pieces.append(part.data)
        self._store.side_put(SIDE_BATCH_PARTS, _KEY.pack(index), _HEAD.pack(term, part.number) + part.data)

    def take(self, index: int, term: int, count: int) -> bytes | None:
        """The `count` parts right before the commit at `index`, joined; None when they are not there. Either way none
        are left."""
        whole = self._continues(index, term) and len(self._indexes) == count
        joined = b"".join(self.pieces) if whole else None
        self.clear()
        return joined

    def clear(self) -> None:
        for index in self._indexes:
            self._store.side_delete(SIDE_BATCH_PARTS, _KEY.pack(index))
        self._indexes.clear()
        self.pieces.clear()

    def _continues(self, index: int, term: int) -> bool:
        return not self._indexes or (term == self._term and index == self._indexes[-1] + 1)
