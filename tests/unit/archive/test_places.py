"""The checksum of places."""

from __future__ import annotations

import numpy as np

from jetcluster.archive.places import places, xored


def test_values_of_spark() -> None:
    """`SELECT xxhash64(seq, time_ns, digest)` of Spark 4.3.0; tests/spark/test_archive.py compares many more."""
    seqs, times, digests = [1, 2, -1], [0, 1_795_348_800_000_000_000, 7], [0, -5, 1 << 62]
    found = places(*(np.array(column, np.int64) for column in (seqs, times, digests)))
    assert found.tolist() == SPARK


SPARK = [1030700372374008485, 8947598198244164086, 1170780888763905752]


def test_xor() -> None:
    assert xored(np.array([], np.int64)) == 0
    assert xored(np.array([-1, 5], np.int64)) == ~5
