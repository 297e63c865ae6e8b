"""Answers of the API that contradict themselves, whoever asked for them and whatever for. JetStream's own words, not
those of a server: what is said of a stream or a consumer is of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

BAD_META_COMMAND: Final = "bad meta command"
DEFECTS: Final = ("internal error", BAD_META_COMMAND)
"""Beginnings of what is told when something that nobody expected was raised."""


def contradictions(answer: dict[str, Any]) -> Iterator[str]:
    """Nothing, where an answer may be true."""
    yield from _replicas(answer.get("cluster") or {})
    if isinstance(state := answer.get("state"), dict) and "last_seq" in state:
        yield from _messages(state)
    if isinstance(answer.get("delivered"), dict) and isinstance(answer.get("ack_floor"), dict):
        yield from _deliveries(answer)


def is_defect(error: dict[str, Any]) -> bool:
    """An error that tells of a mistake in the server, and of none in the request."""
    return str(error.get("description", "")).startswith(DEFECTS)


def _replicas(cluster: dict[str, Any]) -> Iterator[str]:
    """Replicas that lack something, or are away, are not current, and none of them is the leader."""
    for one in cluster.get("replicas") or []:
        if one.get("current") and (one.get("offline") or one.get("lag")):
            yield f"{one['name']} is current, and {'offline' if one.get('offline') else 'lags'}"
        if one["name"] == cluster.get("leader"):
            yield f"{one['name']} leads, and is among the others"


def _messages(state: dict[str, Any]) -> Iterator[str]:
    """Between the first and the last sequence are those that are there, and those that were deleted."""
    span = state["last_seq"] - state["first_seq"] + 1
    if state["messages"]:
        there = state["messages"] + state.get("num_deleted", 0)
        if span != there:
            yield f"{span} sequences are of {there} messages, there and deleted"
    elif span != 0 and state["last_seq"]:
        yield f"it is empty, and begins at {state['first_seq']} and ends at {state['last_seq']}"


def _deliveries(answer: dict[str, Any]) -> Iterator[str]:
    """All that is acknowledged was delivered."""
    delivered, floor = answer["delivered"], answer["ack_floor"]
    for count in ("consumer_seq", "stream_seq"):
        if floor[count] > delivered[count]:
            yield f"{count} {floor[count]} is acknowledged, and {delivered[count]} delivered"
