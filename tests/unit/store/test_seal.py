"""What of a pair is sealed, and what is not."""

from __future__ import annotations

import os

import pytest

from jetcluster.store import keys
from jetcluster.store.kv import KvDamagedError
from testkit.twins.encryption import store_seal


def test_values_of_numbers_are_as_they_are() -> None:
    """INFO rows and postings: what a start reads by the million."""
    seal = store_seal()
    for key in (keys.info(1, 1), keys.posting_prefix(1, b"s") + keys.seq_suffix(1), b"\6\0\0\0\1"):
        assert seal.value(key, b"numbers") == seal.opened(key, b"numbers") == b"numbers"
    with pytest.raises(AssertionError, match="a part of a subject"):
        seal.key(keys.posting_prefix(1, b"subject")[:-1])
    with pytest.raises(KvDamagedError):
        seal.shown(keys.posting_prefix(1, b"subject") + os.urandom(24))
