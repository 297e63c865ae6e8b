"""The record with a stream's counters and its state machine's own bytes, written at most once per commit."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from jetcluster.store.api import DamagedError

_FIXED = struct.Struct("<IBQQQQq")
_CRC = struct.Struct("<I")
_HAS_MACHINE_STATE = 1


class Counters(NamedTuple):
    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    last_ts: int


def encode_state(counters: Counters, machine_state: bytes | None) -> bytes:
    flags = 0 if machine_state is None else _HAS_MACHINE_STATE
    value = _FIXED.pack(0, flags, *counters) + (machine_state or b"")
    return _CRC.pack(zlib.crc32(value[4:])) + value[4:]


def decode_state(value: bytes) -> tuple[Counters, bytes | None]:
    """Raises DamagedError over all sequences."""
    if len(value) < _FIXED.size or _CRC.unpack_from(value)[0] != zlib.crc32(value[4:]):
        raise DamagedError(0, (1 << 64) - 1)
    _, flags, *numbers = _FIXED.unpack_from(value)
    machine_state = value[_FIXED.size :] if flags & _HAS_MACHINE_STATE else None
    return Counters(*numbers), machine_state
