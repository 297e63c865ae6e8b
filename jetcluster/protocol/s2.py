"""The S2 stream format around a stream archive: written uncompressed, read in all forms.

A stream is a sequence of chunks `u8 type | u24 length | body`, little-endian, as in the Snappy framing format. What we
write is readable by any Snappy or S2 reader; what we read may come from nats-server, which compresses. Source:
google/snappy framing_format.txt and format_description.txt, klauspost/compress s2 README (repeat offsets).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import cache
from typing import Final

from jetcluster.errors import PeerError

STREAM_ID: Final = b"\xff\x06\x00\x00S2sTwO"
_MAGICS: Final = (b"S2sTwO", b"sNaPpY")
MAX_PLAIN_BYTES: Final = 65_536
"""Bytes in one uncompressed chunk that we write: what Snappy readers accept."""
MAX_BLOCK_BYTES: Final = 4 << 20
"""Bytes that one chunk may hold when read (S2's limit)."""
STEP_BYTES: Final = 65_536
STEP_ELEMENTS: Final = 256
"""Bytes of content, or literals and copies of a compressed block, that are looked at in one step: a millisecond."""
_COMPRESSED, _PLAIN, _STREAM_ID, _SKIPPABLE = 0x00, 0x01, 0xFF, 0x80


class S2Error(PeerError):
    """The bytes are no S2 stream, or damaged."""


def crc32c(data: bytes) -> int:
    """Return CRC-32C (Castagnoli), which the standard library lacks.

    Segments of LANE_BYTES are worked on side by side, one byte of each per step: `bytes.translate` looks all of
    them up at once. The segments' checksums are combined by shifting one over LANE_BYTES zeros (both are linear).
    """
    return _carried(0xFFFFFFFF, data) ^ 0xFFFFFFFF


def _carried(crc: int, data: bytes) -> int:
    """Return the checksum's inner value after `data`, which follows bytes of the inner value `crc`."""
    lanes = len(data) // LANE_BYTES
    if lanes:
        shift = _shift_tables()
        for lane in _lane_crcs(data, lanes):
            a, b, c, d = crc.to_bytes(4, "little")
            crc = shift[0][a] ^ shift[1][b] ^ shift[2][c] ^ shift[3][d] ^ lane
    table = _byte_table()
    for byte in data[lanes * LANE_BYTES :]:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


LANE_BYTES: Final = 256


def _lane_crcs(data: bytes, lanes: int) -> memoryview:
    """The checksums of all whole segments, each begun with 0; as u32."""
    tables = _planes()
    number = int.from_bytes
    end = lanes * LANE_BYTES
    a = b = c = d = 0
    for step in range(LANE_BYTES):
        index = (a ^ number(data[step:end:LANE_BYTES], "little")).to_bytes(lanes, "little")
        a = b ^ number(index.translate(tables[0]), "little")
        b = c ^ number(index.translate(tables[1]), "little")
        c = d ^ number(index.translate(tables[2]), "little")
        d = number(index.translate(tables[3]), "little")
    joined = bytearray(4 * lanes)
    for at, plane in enumerate((a, b, c, d)):
        joined[at::4] = plane.to_bytes(lanes, "little")
    return memoryview(joined).cast("I")


@cache
def _byte_table() -> list[int]:
    table = []
    for first in range(256):
        value = first
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


@cache
def _planes() -> list[bytes]:
    """The table's bytes 0 to 3, for `bytes.translate`."""
    return [bytes(value >> 8 * plane & 0xFF for value in _byte_table()) for plane in range(4)]


@cache
def _shift_tables() -> list[list[int]]:
    """Tables that move a checksum past LANE_BYTES zeros: by byte of the checksum and value of that byte."""
    table = _byte_table()
    bits = []
    for bit in range(32):
        crc = 1 << bit
        for _ in range(LANE_BYTES):
            crc = table[crc & 0xFF] ^ crc >> 8
        bits.append(crc)
    shifts = []
    for plane in range(4):
        column = []
        for value in range(256):
            crc = 0
            for bit in range(8):
                if value >> bit & 1:
                    crc ^= bits[8 * plane + bit]
            column.append(crc)
        shifts.append(column)
    return shifts


def masked(data: bytes) -> int:
    """The checksum of a chunk: CRC-32C, rotated and offset, so that data may hold its own checksum."""
    return _mask(crc32c(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def encode(data: bytes) -> Iterator[bytes]:
    """Uncompressed chunks that hold `data`; the stream begins with STREAM_ID."""
    for start in range(0, len(data), MAX_PLAIN_BYTES):
        piece = data[start : start + MAX_PLAIN_BYTES]
        yield b"\x01" + (len(piece) + 4).to_bytes(3, "little") + masked(piece).to_bytes(4, "little") + piece


class Decoder:
    """Takes a stream in pieces of any size; holds at most one incomplete chunk."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._begun = False

    @property
    def between_chunks(self) -> bool:
        """True when no chunk is incomplete."""
        return not self._pending

    @property
    def held(self) -> int:
        """Bytes of the chunk that is not complete."""
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The contents of the chunks that `data` completes. Raises S2Error."""
        for content in self.steps(data):
            if content is not None:
                yield content

    def steps(self, data: bytes) -> Iterator[bytes | None]:
        """Like `feed`; yields None after each millisecond of work, where others may go on."""
        pending = self._pending
        pending += data
        while len(pending) >= 4:
            kind, size = pending[0], int.from_bytes(pending[1:4], "little")
            if not self._begun and (kind != _STREAM_ID or bytes(pending[4 : 4 + size]) not in _MAGICS):
                if kind == _STREAM_ID and size == 6 and len(pending) < 10:
                    return
                raise S2Error("not an S2 stream")
            if size > MAX_BLOCK_BYTES + 8:
                raise S2Error(f"chunk of {size} bytes")
            if len(pending) < 4 + size:
                return
            body = bytes(pending[4 : 4 + size])
            del pending[: 4 + size]
            self._begun = True
            if kind in (_COMPRESSED, _PLAIN):
                yield (yield from _content(kind, body))
            elif kind < _SKIPPABLE:
                raise S2Error(f"unknown chunk type {kind:#x}")
            else:
                yield None


def _content(kind: int, body: bytes) -> Generator[None, None, bytes]:
    if len(body) < 4:
        raise S2Error("chunk without a checksum")
    data = body[4:] if kind == _PLAIN else (yield from decode_block(body[4:]))
    crc = 0xFFFFFFFF
    for at in range(0, len(data), STEP_BYTES):
        if at:
            yield
        crc = _carried(crc, data[at : at + STEP_BYTES])
    if _mask(crc ^ 0xFFFFFFFF) != int.from_bytes(body[:4], "little"):
        raise S2Error("wrong checksum")
    return data


def decode_block(block: bytes) -> Generator[None, None, bytes]:
    """One compressed block, Snappy's or S2's, in steps. Raises S2Error."""
    try:
        size, at = _uvarint(block)
        if size > MAX_BLOCK_BYTES:
            raise S2Error(f"block of {size} bytes")
        out = bytearray()
        offset = 0
        left = STEP_ELEMENTS
        while at < len(block):
            at, offset = _element(block, at, out, offset)
            if len(out) > size:
                break
            left -= 1
            if not left:
                left = STEP_ELEMENTS
                yield
    except IndexError:
        raise S2Error("block is cut off") from None
    if len(out) != size:
        raise S2Error(f"block of {size} bytes holds {len(out)}")
    return bytes(out)


def _element(block: bytes, at: int, out: bytearray, last: int) -> tuple[int, int]:
    """Decodes one literal or copy; returns where the next one begins, and the offset that a repeat would use."""
    tag = block[at]
    kind, value = tag & 3, tag >> 2
    at += 1
    if kind == 0:
        extra = value - 59 if value >= 60 else 0
        length = (int.from_bytes(_exactly(block, at, extra), "little") if extra else value) + 1
        at += extra
        out += _exactly(block, at, length)
        return at + length, last
    if kind == 1:
        offset = tag >> 5 << 8 | block[at]
        length = value & 7
        at += 1
        if not offset:  # S2: the offset of the copy before once more
            offset = last
            if length >= 5:
                extra = length - 4
                base = {5: 4, 6: 1 << 8, 7: 1 << 16}[length]
                length = int.from_bytes(_exactly(block, at, extra), "little") + base
                at += extra
        length += 4
    else:
        width = 2 if kind == 2 else 4
        offset = int.from_bytes(_exactly(block, at, width), "little")
        length = value + 1
        at += width
    _copy(out, offset, length)
    return at, offset


def _copy(out: bytearray, offset: int, length: int) -> None:
    start = len(out) - offset
    if offset <= 0 or start < 0 or len(out) + length > MAX_BLOCK_BYTES:
        raise S2Error("copy from outside the block")
    if offset >= length:
        out += out[start : start + length]
        return
    pattern = bytes(out[start:])
    out += (pattern * (length // offset + 1))[:length]


def _exactly(block: bytes, at: int, size: int) -> bytes:
    if at + size > len(block):
        raise S2Error("block is cut off")
    return block[at : at + size]


def _uvarint(block: bytes) -> tuple[int, int]:
    value = shift = at = 0
    while True:
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 35:
            raise S2Error("length too long")
