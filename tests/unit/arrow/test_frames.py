"""Frames of batched answers."""

from __future__ import annotations

import pytest

from jetcluster.arrow.convert import Converter
from jetcluster.arrow.frames import MessageBatch, MissingFieldError, sequence
from tests.unit.arrow.rows import MIXED, batch_of


def test_frames() -> None:
    batch = batch_of(MIXED)
    assert [sequence(head) for head in batch.heads] == [1, 2, 3]
    assert [batch.below(seq).count for seq in (0, 1, 2, 4)] == [0, 0, 1, 3]
    assert batch.is_whole(0, 3) and not batch.is_whole(1, 3) and not batch.is_whole(0, 4)
    assert not MessageBatch(batch.heads[::2], batch.payloads[::2]).is_whole(0, 3)
    for bad in (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nNats-Sequence: x\r\n\r\n"):
        with pytest.raises(MissingFieldError):
            sequence(bad)
    with pytest.raises(MissingFieldError):
        Converter(["seq"], "S").convert(MessageBatch([b"NATS/1.0\r\nA: b\r\n\r\n"], [b""]))
