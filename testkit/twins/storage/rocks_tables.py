"""Files of the data store's twin: tables of sorted records in blocks with checksums, and the manifest that names them.

table    = block, ..., index, footer
block    = record, ..., crc u32;   record = key bytes u32, value bytes u32 (DELETED: none), key, value
index    = (first key, last key, offset u32, size u32), ..., crc u32
manifest = (size u32, crc u32, JSON of the tables then live), ...
"""

from __future__ import annotations

import bisect
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

BLOCK: Final = 16 << 10
_RECORD = struct.Struct("<II")
_WORD = struct.Struct("<I")
_FOOTER = struct.Struct("<IIII")
_MAGIC: Final = 0x54535254  # "TRST"
_DELETED: Final = 0xFFFFFFFF

Record = tuple[bytes, bytes | None]
"""Key and value; None: deleted."""


class RocksError(Exception):
    """The text is RocksDB's."""


@dataclass(slots=True)
class Block:
    first: bytes
    last: bytes
    offset: int
    size: int


@dataclass(slots=True, eq=False)
class Table:
    number: int
    level: int
    size: int
    records: int = 0
    deleted: int = 0
    blocks: list[Block] = field(default_factory=list)
    seen: int = 0
    """`SectorFile.tampered` of its file when it was read last."""
    bad: list[Block] = field(default_factory=list)
    """Blocks that did not validate then."""
    broken: str = ""
    """Why nothing of it can be read."""

    @property
    def name(self) -> str:
        return f"{self.number:06d}.sst"

    @property
    def first(self) -> bytes:
        return self.blocks[0].first if self.blocks else b""

    @property
    def last(self) -> bytes:
        return self.blocks[-1].last if self.blocks else b""

    def overlaps(self, start: bytes | None, end: bytes | None) -> bool:
        """Has keys of [start, end], as far as its index tells."""
        return bool(self.blocks) and (end is None or self.first <= end) and (start is None or self.last >= start)

    def blocks_over(self, start: bytes, end: bytes | None) -> list[Block]:
        """The blocks that a look for keys of [start, end] reads."""
        at = bisect.bisect_left(self.blocks, start, key=lambda block: block.last)
        found: list[Block] = []
        while at < len(self.blocks) and (end is None or self.blocks[at].first <= end):
            found.append(self.blocks[at])
            at += 1
        return found


def encode(number: int, level: int, records: list[Record]) -> tuple[Table, bytes]:
    """`records` sorted by key."""
    table = Table(number, level, 0, len(records), sum(value is None for _, value in records))
    parts: list[bytes] = []
    at = held = 0
    block: list[bytes] = []
    first = last = b""

    def end_block() -> None:
        nonlocal at, held, block
        data = b"".join(block)
        data += _WORD.pack(zlib.crc32(data))
        table.blocks.append(Block(first, last, at, len(data)))
        parts.append(data)
        at += len(data)
        held, block = 0, []

    for key, value in records:
        if not block:
            first = key
        last = key
        block += (_RECORD.pack(len(key), _DELETED if value is None else len(value)), key, value or b"")
        held += _RECORD.size + len(key) + len(value or b"")
        if held >= BLOCK:
            end_block()
    if block:
        end_block()
    index = b"".join(
        _RECORD.pack(len(b.first), len(b.last)) + b.first + b.last + _RECORD.pack(b.offset, b.size)
        for b in table.blocks
    )
    index += _WORD.pack(zlib.crc32(index))
    footer = _FOOTER.pack(_MAGIC, at, len(index), zlib.crc32(index[-4:]))
    data = b"".join(parts) + index + footer
    table.size = len(data)
    return table, data


def read_index(table: Table, data: bytes, path: str) -> None:
    """Fills in the blocks. Raises RocksError."""
    if len(data) != table.size:
        text = f"Corruption: Sst file size mismatch: {path}. Expected {table.size}, actual size {len(data)}\n"
        raise RocksError(text)
    at = table.size - _FOOTER.size
    magic, start, size, check = _FOOTER.unpack_from(data, max(at, 0)) if at >= 0 else (0, 0, 0, 0)
    index = data[start : start + size]
    good = magic == _MAGIC and len(index) == size >= 4 and check == zlib.crc32(index[-4:])
    if not good or _WORD.unpack(index[-4:])[0] != zlib.crc32(index[:-4]):
        raise RocksError(f"Corruption: Footer at {at} checksum mismatch in {path}")
    blocks: list[Block] = []
    at, end = 0, size - 4
    while at < end:
        a, b = _RECORD.unpack_from(index, at)
        at += _RECORD.size
        first, last = index[at : at + a], index[at + a : at + a + b]
        at += a + b
        blocks.append(Block(first, last, *_RECORD.unpack_from(index, at)))
        at += _RECORD.size
    table.blocks = blocks


def read_block(block: Block, data: bytes, path: str) -> list[Record]:
    """`data`: of the block alone. Raises RocksError."""
    body = data[:-4]
    stored = _WORD.unpack(data[-4:])[0] if len(data) == block.size else 0
    if len(data) != block.size or stored != zlib.crc32(body):
        raise RocksError(
            f"Corruption: block checksum mismatch: stored(context removed) = {stored}, computed = {zlib.crc32(body)}, "
            f"type = 4  in {path} offset {block.offset} size {block.size - 4}"
        )
    records: list[Record] = []
    at = 0
    while at < len(body):
        a, b = _RECORD.unpack_from(body, at)
        at += _RECORD.size
        key = body[at : at + a]
        at += a
        if b == _DELETED:
            records.append((key, None))
        else:
            records.append((key, body[at : at + b]))
            at += b
    return records


def edit(tables: list[Table], next_number: int) -> bytes:
    """One entry of the manifest: all that is live from here on."""
    live = [[t.number, t.level, t.size, t.records, t.deleted] for t in tables]
    body = json.dumps({"next": next_number, "tables": live}, separators=(",", ":")).encode()
    return _RECORD.pack(len(body), zlib.crc32(body)) + body


def read_manifest(data: bytes, path: str) -> dict[str, Any]:
    """The last entry. One that is cut off, or that sectors are missing of, was never synced. Raises RocksError."""
    found: dict[str, Any] | None = None
    at = 0
    while at + _RECORD.size <= len(data):
        size, crc = _RECORD.unpack_from(data, at)
        body = data[at + _RECORD.size : at + _RECORD.size + size]
        if not size or len(body) < size or b"\0" in body:
            break
        if zlib.crc32(body) != crc:
            found = None
            break
        found = json.loads(body)
        at += _RECORD.size + size
    if found is None:
        raise RocksError(f"Corruption: checksum mismatch  The file {path} may be corrupted.")
    return found
