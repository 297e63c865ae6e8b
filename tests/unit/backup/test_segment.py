"""Segments, and the sum of their messages."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.backup import segment
from jetcluster.backup.segment import MessageSum, StoredMessage
from jetcluster.backup.sequences import DamagedBackupError, Sequences

MESSAGES = st.lists(
    st.builds(
        StoredMessage, st.integers(1, 1 << 62), st.integers(-(1 << 62), 1 << 62), st.binary(min_size=1, max_size=9),
        st.binary(max_size=9), st.binary(max_size=99),
    ),
    unique_by=lambda message: message.seq,
).map(sorted)  # fmt: skip


def packed(messages: list[StoredMessage]) -> bytes:
    return segment.pack([message.encoded() for message in messages])


@given(MESSAGES)
def test_messages_come_back(messages: list[StoredMessage]) -> None:
    assert list(segment.unpack(packed(messages))) == messages


def test_only_what_a_point_lists_is_taken() -> None:
    messages = [StoredMessage(seq, seq, b"s", b"", b"x") for seq in (2, 3, 5, 8)]
    found = segment.chosen(packed(messages), Sequences.of([3, 4, 8]))
    assert [message.seq for message in found] == [3, 8]


ONE = StoredMessage(1, 1, b"s", b"", b"x")


@pytest.mark.parametrize(
    "data", [b"", packed([ONE])[:-5], b"x" + packed([ONE]), packed([ONE, ONE]), zlib.compress(b"NATSARC1"),
             zlib.compress(b"another format")],
)  # fmt: skip
def test_a_damaged_segment_is_told(data: bytes) -> None:
    with pytest.raises(DamagedBackupError):
        list(segment.unpack(data))


def test_a_segment_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "MAX_SEGMENT_BYTES", 1 << 21)
    with pytest.raises(DamagedBackupError, match="larger"):
        list(segment.unpack(packed([StoredMessage(1, 1, b"s", b"", bytes(5 << 20))])))


@given(MESSAGES, st.randoms())
def test_the_sum_is_of_the_messages_in_any_order(messages: list[StoredMessage], random: st.DataObject) -> None:
    def total(found: list[StoredMessage]) -> MessageSum:
        made = MessageSum()
        for message in found:
            made = made.plus(message.encoded())
        return made

    before = total(messages)
    shuffled = list(messages)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total(shuffled) == before
    if messages:
        assert total([messages[0]._replace(payload=messages[0].payload + b"!"), *messages[1:]]) != before
