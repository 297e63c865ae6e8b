"""A body opens in its place only."""

from __future__ import annotations

import pytest

from jetcluster.sealing.api import TAG_BYTES, KeyringError, SealError
from jetcluster.sealing.keyring import Keyring
from jetcluster.sealing.segments import HEAD_BYTES, Segments
from testkit.twins.time import SeededRng


def test_a_body_opens_at_its_offset_with_its_head_in_its_segment(keyring: Keyring) -> None:
    segments = Segments(keyring, SeededRng(7))
    cipher = segments.fresh(3)
    assert len(cipher.head) == HEAD_BYTES
    sealed = cipher.seal(200, b"head", b"body of a record")
    assert len(sealed) == 16 + TAG_BYTES and b"body" not in sealed
    assert segments.known(3, cipher.head).open(200, b"head", sealed) == b"body of a record"
    for segment, offset, bound in ((3, 201, b"head"), (3, 200, b"hEad"), (4, 200, b"head")):
        with pytest.raises(SealError):
            segments.known(segment, cipher.head).open(offset, bound, sealed)
    with pytest.raises(SealError):
        cipher.open(200, b"head", sealed[:10])
    assert segments.fresh(3).head != cipher.head


def test_a_segment_of_an_unknown_data_key_is_refused(keyring: Keyring) -> None:
    segments = Segments(keyring, SeededRng(8))
    head = segments.fresh(1).head
    with pytest.raises(KeyringError, match="segment 1 of the journal is sealed with data key 9"):
        segments.known(1, b"\x09" + head[1:])
