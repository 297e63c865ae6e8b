"""The parts of a pair that are sealed, and those that are not."""

from __future__ import annotations

import os

import pytest

from jetcluster.store import keys
from jetcluster.store import seal as seal_module
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


def test_few_subjects_are_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal_module, "MAX_HEADS", 10)
    seal = store_seal()
    pairs = {keys.posting_prefix(1, b"%d" % number) + keys.seq_suffix(number): b"" for number in range(100)}
    stored = seal.all_sealed(pairs)
    assert len(seal.heads) <= 10
    assert [seal.key(key) for key in pairs] == list(stored)
    assert [seal.shown(key) for key in stored] == list(pairs)
