"""Names in keys: the parts that they show and that they hide."""

from __future__ import annotations

import pytest

from jetcluster.sealing.api import SealError
from jetcluster.sealing.keyring import Keyring
from jetcluster.sealing.names import MORE_BYTES, HiddenNames


def test_equal_names_look_equal_in_one_stream_only(keyring: Keyring) -> None:
    names = HiddenNames(keyring.names)
    hidden = names.hide(b"stream 1", b"orders.eu")
    assert len(hidden) == 9 + MORE_BYTES and b"orders" not in hidden
    assert names.hide(b"stream 1", b"orders.eu") == HiddenNames(keyring.names).hide(b"stream 1", b"orders.eu") == hidden
    assert names.hide(b"stream 2", b"orders.eu") != hidden != names.hide(b"stream 1", b"orders.us")
    assert names.show(b"stream 1", hidden) == b"orders.eu"
    assert names.hide(b"stream 1", b"") == names.show(b"stream 1", b"") == b""
    with pytest.raises(SealError):
        names.show(b"stream 2", hidden)
    with pytest.raises(SealError):
        names.show(b"stream 1", hidden[:5])
