"""`places`: a checksum over where rows are. It is Spark's `xxhash64(seq, time_ns, digest)`, so that a query over any
table with these columns can be compared with an archive."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_PRIMES: Final = [
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )
]  # fmt: skip
_SEED: Final = 42
"""Spark's."""


def places(seqs: Any, times: Any, digests: Any) -> Any:
    """Returns the signed 64-bit hashes of rows, from three arrays of int64 (numpy)."""
    found = np.full(len(seqs), _SEED, np.uint64)
    for column in (seqs, times, digests):
        found = _hashed(np.asarray(column, np.int64).view(np.uint64), found)
    return found.view(np.int64)


def xored(values: Any) -> int:
    """Returns the XOR of an array of int64; 0 for no values."""
    return int(np.bitwise_xor.reduce(np.asarray(values, np.int64)))


def _hashed(values: Any, seeds: Any) -> Any:
    """XXH64 of eight bytes, by its specification."""
    first, second, third, fourth, fifth = _PRIMES
    found = seeds + fifth + np.uint64(8)
    found ^= _turned(values * second, 31) * first
    found = _turned(found, 27) * first + fourth
    found ^= found >> np.uint64(33)
    found *= second
    found ^= found >> np.uint64(29)
    found *= third
    found ^= found >> np.uint64(32)
    return found


def _turned(values: Any, bits: int) -> Any:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
