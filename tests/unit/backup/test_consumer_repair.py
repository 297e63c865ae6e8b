"""Consumers that are not as in the backup."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.backup.consumer_repair import behind, put_right
from tests.unit.backup.accounts import FakeStream
from tests.unit.backup.restoring import Servers


def state(seq: int, used: int = 0) -> dict[str, Any]:
    return {"ack_floor": {"consumer_seq": used, "stream_seq": seq}, "delivered": {"consumer_seq": used}}


def durable(name: str, floor: int) -> dict[str, Any]:
    return {"config": {"durable_name": name}, "state": state(floor)}


def servers(**held: dict[str, Any]) -> Servers:
    stream = FakeStream("S")
    stream.consumers = {name: {"config": {}, "state": one} for name, one in held.items()}
    return Servers(stream)


def test_those_that_are_farther_and_those_that_end_by_themselves_are_right() -> None:
    there = servers(same=state(5), farther=state(9, used=4), before=state(4))
    wanted = {name: durable(name, 5) for name in ("same", "farther", "before", "gone")}
    wanted["ephemeral"] = {"config": {}, "state": state(5)}
    assert behind(there, "S", wanted) == {"before": state(4), "gone": None}


def test_they_are_made_and_placed_and_used_ones_are_told() -> None:
    there = servers(fresh=state(0), used=state(2, used=3))
    said: list[str] = []
    wanted = {name: durable(name, 5) for name in ("fresh", "used", "gone")} | {"new": durable("new", 0)}
    wrong = put_right(there, "S", wanted, said.append)
    assert wrong == ["S: consumer used is at 2, in the backup at 5, and was used since"]
    held = there.streams["S"].consumers
    floors = {name: one["state"]["ack_floor"]["stream_seq"] for name, one in held.items()}
    assert floors == {"fresh": 5, "used": 2, "gone": 5, "new": 0}
    assert held["gone"]["config"] == {"durable_name": "gone"}
    assert there.asked_for == ["CONSUMER.RESET", "CONSUMER.CREATE", "CONSUMER.RESET", "CONSUMER.CREATE"]
    assert len(said) == 3


@pytest.mark.parametrize("policy", ["new", "last", "last_per_subject"])
def test_one_that_would_leave_out_messages_is_told(policy: str) -> None:
    there, one = servers(), durable("c", 0)
    one["config"]["deliver_policy"] = policy
    wrong = put_right(there, "S", {"c": one}, [].append)
    assert wrong == [f"S: consumer c is not in its place, and its deliver policy is {policy}"]
    assert there.asked_for == []


def test_one_that_is_refused_is_not_left_half() -> None:
    there = servers(fresh=state(0))
    there.refused = "not allowed"
    wrong = put_right(there, "S", {name: durable(name, 5) for name in ("fresh", "gone")}, [].append)
    assert len(wrong) == 2 and all("not allowed" in line for line in wrong)
    assert set(there.streams["S"].consumers) == {"fresh"}
