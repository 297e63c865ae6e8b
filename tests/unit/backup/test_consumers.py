"""Consumers within the bounds of an archive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.backup import consumers
from jetcluster.backup.consumers import TooManyConsumersError, archived

FLOOR = {"consumer_seq": 3, "stream_seq": 4}


def consumer(pending: int) -> dict[str, Any]:
    state = {
        "delivered": {"consumer_seq": 3 + pending, "stream_seq": 4 + pending}, "ack_floor": FLOOR,
        "pending": {str(seq): {"sequence": seq, "ts": 1} for seq in range(5, 5 + pending)}, "redelivered": {"5": 2},
    }  # fmt: skip
    return {"config": {"durable_name": "c"}, "state": state}


def test_consumers_that_fit_are_whole() -> None:
    found, cut = archived({"a": consumer(2), "b": consumer(0)})
    assert cut == [] and json.loads(found["a"]) == consumer(2) and list(found) == ["a", "b"]
    assert archived({}) == ({}, [])


def test_one_with_too_much_pending_keeps_its_ack_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_CONSUMER_BYTES", 2000)
    found, cut = archived({"large": consumer(100), "small": consumer(3)})
    assert cut == ["large"] and json.loads(found["small"]) == consumer(3)
    assert json.loads(found["large"]) == {**consumer(0), "state": {"delivered": FLOOR, "ack_floor": FLOOR}}


def test_the_largest_ones_are_cut_until_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "MAX_CONSUMERS_BYTES", 3500)
    _, cut = archived({f"c{number}": consumer(number) for number in range(0, 60, 20)})
    assert cut == ["c40"]
    monkeypatch.setattr(consumers, "MAX_CONSUMERS_BYTES", 1000)
    with pytest.raises(TooManyConsumersError, match="--no-consumers"):
        archived({f"c{number}": consumer(1) for number in range(3)})
