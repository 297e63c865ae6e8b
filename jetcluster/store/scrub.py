"""`Scrub`: reads everything that a stream has on disk, piece by piece, and verifies every checksum.

Reads for requests touch what is asked for; what nobody asks for may rot unseen until the replica is needed.
"""

from __future__ import annotations

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.blocks import decode_block, decode_info
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.subject_index import check_posting

KINDS = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE, keys.STATE)
"""Kinds of a stream's records; the one that vouches for the others comes last."""


class Scrub:
    """One pass over stream `stream` of `kv`. What is written or removed meanwhile may be seen or not."""

    def __init__(self, kv: RocksKv, stream: int) -> None:
        self._kv = kv
        self._stream = stream
        self._kind = 0
        self._next = keys.stream_prefix(KINDS[0], stream)

    @property
    def done(self) -> bool:
        return self._kind >= len(KINDS)

    def step(self, max_bytes: int) -> int:
        """Verifies about `max_bytes` more, at least one record while there are any; how many it were. Raises
        DamagedError."""
        total = 0
        while not self.done and total < max_bytes:
            kind = KINDS[self._kind]
            end = keys.stream_end(kind, self._stream)
            key = b""
            try:
                for key, value in self._kv.scan(self._next, end):
                    verify(kind, key, value)
                    total += len(key) + len(value)
                    if total >= max_bytes:
                        self._next = key + b"\0"
                        return total
            except KvDamagedError as error:
                seq = keys.seq_of(key) if key and kind <= keys.POSTING else 0
                raise DamagedError(seq, keys.MAX_SEQ) from error
            self._kind += 1
            if not self.done:
                self._next = keys.stream_prefix(KINDS[self._kind], self._stream)
        return total


def verify(kind: int, key: bytes, value: bytes) -> None:
    """Raises DamagedError. Records of the other kinds have only the checksums of the store below, which reading has
    verified."""
    if kind == keys.BLOCK:
        decode_block(key, value)
    elif kind == keys.INFO:
        decode_info(key, value)
    elif kind == keys.POSTING:
        check_posting(key, value)
