"""A whole stream as a byte string in chunks: what a replica ships to one that cannot catch up from the log.

Records `u32 length of key | u32 length of value | u32 CRC | key | value`, keys without the stream's id, so that the
receiver may know the stream under another one; the last record has an empty key and the number of records as value.
The STATE record comes last: what vouches for the others is written when they are there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.blocks import decode_block
from jetcluster.store.kv import Kv, KvDamagedError, Snapshot

_HEAD = struct.Struct("<III")
_TOTAL = struct.Struct("<Q")
_KINDS = (keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE, keys.STATE)
MAX_RECORD = 128 << 20


def export(snapshot: Snapshot, stream: int, max_bytes: int) -> Iterator[bytes]:
    """Chunks of at most `max_bytes`. Every block is verified on the way; raises DamagedError."""
    pending = bytearray()
    records = 0
    try:
        for kind in _KINDS:
            for key, value in snapshot.scan(keys.stream_prefix(kind, stream), keys.stream_end(kind, stream)):
                if kind == keys.BLOCK:
                    decode_block(key, value)
                pending += _encode(key[:1] + key[keys.STREAM_PREFIX :], value)
                records += 1
                while len(pending) >= max_bytes:
                    yield bytes(pending[:max_bytes])
                    del pending[:max_bytes]
    except KvDamagedError as error:
        raise DamagedError(0, keys.MAX_SEQ) from error
    pending += _encode(b"", _TOTAL.pack(records))
    for start in range(0, len(pending), max_bytes):
        yield bytes(pending[start : start + max_bytes])


class Importer:
    """Puts the records of the chunks fed to it under stream `stream` of `kv`, as they become complete."""

    def __init__(self, kv: Kv, stream: int) -> None:
        self._kv = kv
        self._stream = stream
        self._pending = bytearray()
        self._records = 0
        self._finished = False

    def feed(self, chunk: bytes) -> None:
        pending = self._pending
        pending += chunk
        at = 0
        while len(pending) - at >= _HEAD.size:
            key_size, value_size, crc = _HEAD.unpack_from(pending, at)
            if self._finished or key_size + value_size > MAX_RECORD:
                raise DamagedError(0, keys.MAX_SEQ)
            start = at + _HEAD.size
            end = start + key_size + value_size
            if end > len(pending):
                break
            body = bytes(pending[start:end])
            if zlib.crc32(body, key_size) != crc:
                raise DamagedError(0, keys.MAX_SEQ)
            self._take(body[:key_size], body[key_size:])
            at = end
        del pending[:at]

    def finish(self) -> None:
        if not self._finished or self._pending:
            raise DamagedError(0, keys.MAX_SEQ)

    def _take(self, key: bytes, value: bytes) -> None:
        if not key:
            if value != _TOTAL.pack(self._records):
                raise DamagedError(0, keys.MAX_SEQ)
            self._finished = True
            return
        if key[0] not in _KINDS:
            raise DamagedError(0, keys.MAX_SEQ)
        self._kv.put(keys.stream_prefix(key[0], self._stream) + key[1:], value)
        self._records += 1


def _encode(key: bytes, value: bytes) -> bytes:
    body = key + value
    return _HEAD.pack(len(key), len(value), zlib.crc32(body, len(key))) + body
