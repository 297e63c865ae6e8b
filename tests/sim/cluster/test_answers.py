"""Answers that contradict themselves are noticed, and those that may be true are not."""

from __future__ import annotations

from typing import Any

import pytest

from testkit.sim.answers import contradictions, is_defect


def _replicas(**one: Any) -> dict[str, Any]:
    return {"cluster": {"leader": "n1", "replicas": [{"name": "n2", "current": True} | one]}}


def _state(messages: int, first: int, last: int, **more: int) -> dict[str, Any]:
    return {"state": {"messages": messages, "first_seq": first, "last_seq": last} | more}


def _consumer(delivered: int, floor: int) -> dict[str, Any]:
    counts = [{"consumer_seq": 5, "stream_seq": one} for one in (delivered, floor)]
    return {"delivered": counts[0], "ack_floor": counts[1]}


@pytest.mark.parametrize(
    "answer",
    [
        {}, _replicas(), _replicas(current=False, lag=3), _replicas(current=False, offline=True), _state(3, 5, 7),
        _state(3, 5, 9, num_deleted=2), _state(0, 0, 0), _state(0, 1, 0), _state(0, 8, 7), _consumer(7, 7),
        {"cluster": None},
    ],
)  # fmt: skip
def test_what_may_be_true_is_no_contradiction(answer: dict[str, Any]) -> None:
    assert not list(contradictions(answer))


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (_replicas(lag=1), "n2 is current, and lags"),
        (_replicas(offline=True), "n2 is current, and offline"),
        (_replicas(name="n1"), "n1 leads, and is among the others"),
        (_state(3, 5, 8), "4 sequences are of 3 messages"),
        (_state(3, 5, 7, num_deleted=1), "3 sequences are of 4 messages"),
        (_state(0, 5, 7), "it is empty"),
        (_consumer(6, 7), "stream_seq 7 is acknowledged, and 6 delivered"),
    ],
)
def test_what_cannot_be_true_is_one(answer: dict[str, Any], what: str) -> None:
    assert what in next(contradictions(answer))


@pytest.mark.parametrize(
    ("description", "defect"),
    [("internal error", True), ("bad meta command: KeyError", True), ("stream not found", False), ("", False)],
)
def test_an_error_that_tells_of_a_mistake_in_the_server_is_one(description: str, defect: bool) -> None:
    assert is_defect({"code": 500, "description": description}) is defect
