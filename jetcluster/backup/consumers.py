"""Consumers of a stream as the entries of an archive, within the bounds of the servers that take it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jetcluster.errors import CallerError
from jetcluster.protocol.stream_archive import (
    CONSUMER_OVERHEAD_BYTES,
    CONSUMER_PREFIX,
    MAX_CONSUMER_BYTES,
    MAX_CONSUMERS_BYTES,
)

Fields = dict[str, Any]


class TooManyConsumersError(CallerError):
    """The consumers of a stream are more than an archive may have, even with nothing but their ack floors."""


def archived(consumers: Mapping[str, Fields]) -> tuple[dict[str, bytes], list[str]]:
    """Returns (consumer -> its entry, names of those with their ack floors alone). With too many pending messages an
    entry is larger than servers take; with the ack floor alone all that is pending comes again, and nothing is left
    out. The largest ones are cut first. Raises TooManyConsumersError."""
    made = {name: _encoded(found) for name, found in consumers.items()}
    total = sum(_cost(name, entry) for name, entry in made.items())
    cut: list[str] = []
    for name in sorted(made, key=lambda name: _cost(name, made[name]), reverse=True):
        before = _cost(name, made[name])
        if before <= MAX_CONSUMER_BYTES and total <= MAX_CONSUMERS_BYTES:
            break
        made[name] = _encoded(_with_floor_alone(consumers[name]))
        total += _cost(name, made[name]) - before
        cut.append(name)
    if total > MAX_CONSUMERS_BYTES or any(_cost(name, entry) > MAX_CONSUMER_BYTES for name, entry in made.items()):
        raise TooManyConsumersError(
            f"{len(made)} consumers are {total} bytes, and servers take {MAX_CONSUMERS_BYTES}: --no-consumers"
        )
    return made, sorted(cut)


def _with_floor_alone(found: Fields) -> Fields:
    floor = found["state"]["ack_floor"]
    return {**found, "state": {"delivered": floor, "ack_floor": floor}}


def _encoded(found: Fields) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _cost(name: str, entry: bytes) -> int:
    return len(CONSUMER_PREFIX) + len(name.encode()) + len(entry) + CONSUMER_OVERHEAD_BYTES
