"""A value opens for its key only, and no nonce repeats."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetcluster.sealing.api import SealError
from jetcluster.sealing.ciphers import AES
from jetcluster.sealing.keyring import Keyring
from jetcluster.sealing.values import OVERHEAD_BYTES, Values
from testkit.twins.time import SeededRng


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(value=st.binary(max_size=300), key=st.binary(max_size=40), bit=st.integers(0))
def test_a_value_opens_for_its_key_only_and_no_bit_may_differ(
    keyring: Keyring, value: bytes, key: bytes, bit: int
) -> None:
    values = Values(keyring, SeededRng(2))
    sealed = values.seal(key, value)
    assert len(sealed) == len(value) + OVERHEAD_BYTES
    assert values.open(key, sealed) == Values(keyring, SeededRng(3)).open(key, sealed) == value
    with pytest.raises(SealError):
        values.open(key + b"x", sealed)
    flipped = bytearray(sealed)
    bit %= 8 * len(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SealError):
        values.open(key, bytes(flipped))
    for size in (0, 13, len(sealed) - 1):
        with pytest.raises(SealError):
            values.open(key, sealed[:size])


def test_no_two_values_have_the_same_nonce_and_key(keyring: Keyring) -> None:
    rng = SeededRng(4)
    runs = [Values(keyring, rng) for _ in range(3)]
    sealed = [run.seal(b"key", b"value") for run in runs for _ in range(100)]
    assert len({one[:20] for one in sealed}) == len({one[20:] for one in sealed}) == 300


def test_values_go_on_with_a_new_data_key_after_a_rotation(keyring: Keyring) -> None:
    values = Values(keyring, SeededRng(5))
    old = values.seal(b"key", b"value")
    keyring.settle("other", AES)
    new = values.seal(b"key", b"value")
    assert (old[0], new[0]) == (1, 2)
    assert values.open(b"key", old) == values.open(b"key", new) == b"value"
    del keyring.keys[1]
    with pytest.raises(SealError, match="data key 1, which is not here"):
        Values(keyring, SeededRng(6)).open(b"key", old)
