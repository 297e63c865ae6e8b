"""`varint`: numbers of 7 bits per byte, the least first, as Protobuf and Avro have them."""

from __future__ import annotations

MOST_BITS = 63
"""A number has no more bytes than 64 bits need."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns (the number at a place, the place behind it). Raises IndexError where none ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > MOST_BITS:
            raise IndexError(at)
