"""Files of a consumer's state, of both versions; cut, damaged, and too large ones."""

from __future__ import annotations

import random

import pytest

from jetcluster.budget import at_once
from jetcluster.protocol import consumer_file
from jetcluster.protocol.stream_archive import ArchiveError
from testkit.twins.old_archive import consumer_state

PENDING = [(12, 6, 1_699_999_990), (15, 9, 1_700_000_003)]


def test_a_state_is_decoded() -> None:
    raw = consumer_state((5, 10), (9, 15), PENDING, {12: 2, 3000: 1})
    assert at_once(consumer_file.decoding(raw)) == {
        "delivered": {"consumer_seq": 9, "stream_seq": 15},
        "ack_floor": {"consumer_seq": 5, "stream_seq": 10},
        "pending": {
            "12": {"Sequence": 6, "Timestamp": 1_699_999_990_000_000_000},
            "15": {"Sequence": 9, "Timestamp": 1_700_000_003_000_000_000},
        },
        "redelivered": {"12": 2},
    }


def test_a_state_of_version_1_is_decoded() -> None:
    raw = consumer_state((5, 10), (9, 15), PENDING, {15: 1}, version=1)
    found = at_once(consumer_file.decoding(raw))
    assert found["delivered"] == {"consumer_seq": 9, "stream_seq": 15}
    assert found["pending"] == {
        "12": {"Sequence": 5, "Timestamp": 1_699_999_990_000_000_000},
        "15": {"Sequence": 5, "Timestamp": 1_700_000_003_000_000_000},
    }
    assert found["redelivered"] == {"15": 1}


def test_one_that_has_had_nothing() -> None:
    found = at_once(consumer_file.decoding(consumer_state((0, 0), (0, 0))))
    assert found["pending"] == found["redelivered"] == {}


def test_too_many_pending_messages_begin_at_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_file, "MAX_PENDING", 1)
    floor = {"consumer_seq": 5, "stream_seq": 10}
    found = at_once(consumer_file.decoding(consumer_state((5, 10), (9, 15), PENDING)))
    assert found == {"delivered": floor, "ack_floor": floor}


def test_what_is_cut_off_is_refused() -> None:
    raw = consumer_state((5, 10), (9, 15), PENDING, {12: 2})
    for end in range(len(raw)):
        with pytest.raises(ArchiveError, match=r"cut off|unknown kind"):
            at_once(consumer_file.decoding(raw[:end]))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\x16\x03" + bytes(9), "unknown kind"),
        (b"\x17\x02" + bytes(9), "unknown kind"),
        (b"\x16\x02" + b"\xff" * 12, "too long"),
        (consumer_state((5, 1 << 63), (5, 1 << 63)), "out of bounds"),
        (consumer_state((5, 10), (9, 15), [(1 << 63, 6, 1)]), "out of bounds"),
    ],
)
def test_refused(raw: bytes, text: str) -> None:
    with pytest.raises(ArchiveError, match=text):
        at_once(consumer_file.decoding(raw))


def test_random_bytes_raise_nothing_else() -> None:
    rng = random.Random(1)
    raw = consumer_state((5, 10), (9, 15), PENDING, {12: 2})
    outcomes = set()
    for _ in range(3000):
        data = bytearray(raw)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = at_once(consumer_file.decoding(bytes(data)))
        except ArchiveError:
            outcomes.add("refused")
        else:
            outcomes.add("read")
            numbers = [one[key] for one in found.get("pending", {}).values() for key in ("Sequence", "Timestamp")]
            assert all(0 <= number < 1 << 63 for number in numbers)
    assert outcomes == {"refused", "read"}


def test_a_long_state_is_decoded_in_steps() -> None:
    pending = [(seq, seq, 1_700_000_000) for seq in range(1, 40_001)]
    steps = sum(1 for _ in consumer_file.decoding(consumer_state((0, 0), (40_000, 40_000), pending)))
    assert steps >= 80
