"""The record with a stream's counters."""

from __future__ import annotations

import pytest

from jetcluster.store.api import DamagedError
from jetcluster.store.state_record import Counters, decode_state, encode_state

COUNTERS = Counters(messages=3, bytes=1 << 40, first_seq=2, last_seq=(1 << 64) - 1, last_ts=-5)


@pytest.mark.parametrize("machine", [None, b"", b"state"])
def test_it_is_read_as_it_was_written(machine: bytes | None) -> None:
    assert decode_state(encode_state(COUNTERS, machine)) == (COUNTERS, machine)


def test_any_other_byte_is_damage_of_the_whole_stream() -> None:
    value = encode_state(COUNTERS, b"state")
    for at in range(len(value)):
        with pytest.raises(DamagedError) as raised:
            decode_state(value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :])
        assert (raised.value.first_seq, raised.value.last_seq) == (0, (1 << 64) - 1)
    for size in range(len(value)):
        with pytest.raises(DamagedError):
            decode_state(value[:size])
