"""Settings of streams and consumers (`settings.toml`): requests, and what comes of each exactly."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_name("settings.toml")
_REPEATED: Final = re.compile(r"\$(.)\*(\d+)")
"""`$d*4096` in a text stands for 4096 times d."""
_VERSIONS: Final = ("_nats.level", "_nats.ver")
NOTHING: Final = "$nothing"
"""In place of a value: the key is not there."""

Fields = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Case:
    """One request, whose fields are those of a plain one with others in their place."""

    given: Fields
    """Fields of the request."""
    of: Fields | None = None
    """Fields of what is there and is to be updated; None: it is to be made."""
    on: Fields = field(default_factory=dict)
    """Fields of the stream that a consumer is to be of."""
    pedantic: bool = False
    refused: str = ""
    """Both codes and the text of the refusal."""
    becomes: Fields = field(default_factory=dict)
    """Fields in which its configuration differs from a plain one then."""
    pending: int | None = None
    """Messages that wait for the consumer."""


@cache
def cases(kind: str) -> tuple[Case, ...]:
    """All of a kind: `streams`, `updates`, `consumers` or `consumer_updates`."""
    with TABLE.open("rb") as file:
        return tuple(Case(**_unfolded(row)) for row in tomllib.load(file)[kind])


def with_fields(fields: Mapping[str, Any], others: Mapping[str, Any]) -> Fields:
    """`fields` with `others` in their place."""
    return {key: value for key, value in {**fields, **others}.items() if value != NOTHING}


def differing(found: Mapping[str, Any], plain: Mapping[str, Any]) -> Fields:
    """The fields of `found` that `plain` has otherwise, or not at all. Which server it is of (`_VERSIONS`) is looked at
    where nothing else of the metadata differs."""
    other = {key: found.get(key, NOTHING) for key in (*found, *plain) if found.get(key) != plain.get(key)}
    if isinstance(metadata := other.get("metadata"), dict):
        known = {key: plain["metadata"].get(key) for key in _VERSIONS}
        other["metadata"] = {key: value for key, value in metadata.items() if known.get(key) != value}
    return other


def _unfolded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unfolded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_unfolded(one) for one in value]
    repeated = _REPEATED.fullmatch(value) if isinstance(value, str) else None
    return repeated[1] * int(repeated[2]) if repeated else value
