"""The retention guard: limits remove a message only once a named consumer has acknowledged it.

It is in a stream's configuration (`retention_guard`: `consumer`, `max_bytes`, `max_age`, `discard`), and always also in
its metadata, under `jetcluster.retention_guard.consumer` and so on: a stock client that edits the stream drops fields
that it does not know, and the guard must not go with them. State machines look at the field alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.errors import by_code, invalid_config
from jetcluster.model import durations
from jetcluster.model.limits import UNLIMITED, AccountLimits
from jetcluster.records import NamedTuple

Config = Mapping[str, Any]

FIELD: Final = "retention_guard"
_PREFIX: Final = "jetcluster.retention_guard."
_KEYS: Final = ("consumer", "max_bytes", "max_age", "discard")
_NEW: Final = "new"
_OLD: Final = "old"
_NAME: Final = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,255}")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MAX_NAMED: Final = 200
"""Characters of unknown keys that an error shows."""


class GuardRules(NamedTuple):
    """The guard of a stream's configuration."""

    consumer: str
    """The durable consumer whose acknowledgements let messages go."""
    max_bytes: int = 0
    """Bytes of messages that the guard holds back; 0: no bound."""
    max_age: int = 0
    """Age of a message up to which the guard holds it back, nanoseconds; 0: no bound."""
    refuses: bool = True
    """Beyond its bounds publishes are refused (discard `new`); else the oldest messages go all the same (`old`)."""

    def to_wire(self) -> dict[str, Any]:
        return {
            "consumer": self.consumer,
            "max_bytes": self.max_bytes,
            "max_age": self.max_age,
            "discard": _NEW if self.refuses else _OLD,
        }


def rules_of(config: Config) -> GuardRules | None:
    """Returns the guard of a stored configuration, None without one. Metadata alone, which an older version did not
    look at, is none."""
    given = config.get(FIELD)
    return None if given is None else _rules(given)


def normalised(field: Config | None, metadata: Mapping[str, str]) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Returns the field and the metadata with what either of them has. What makes no sense stays: `check` refuses."""
    twin = _twin(metadata)
    if field is None and twin:
        if not _is_readable(twin):
            return None, dict(metadata)
        field = _rules(_read(twin)).to_wire()
    if field is None or twin:
        return (dict(field) if field is not None else None), dict(metadata)
    shown = {key: str(value) for key, value in _rules(field).to_wire().items() if value}
    if field.get("max_age"):
        shown["max_age"] = durations.render(int(field["max_age"]))
    return dict(field), {**metadata, **{f"{_PREFIX}{key}": value for key, value in shown.items()}}


def removed(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns the metadata without a guard."""
    return {key: value for key, value in metadata.items() if not key.startswith(_PREFIX)}


def check(config: Config, limits: AccountLimits = UNLIMITED) -> None:
    """Checks the guard of a normalised configuration. Raises ApiError 10052, or 10122 for more bytes than a stream of
    the account may have."""
    guard = rules_of(config)
    if guard is not None:
        _check_rules(guard, config)
        memory = config["storage"] == "memory"
        per_stream = limits.memory_max_stream_bytes if memory else limits.storage_max_stream_bytes
        if 0 < per_stream < guard.max_bytes:
            raise by_code(10122)
    _check_twin(_twin(config.get("metadata") or {}), guard)


def _check_twin(twin: Mapping[str, str], guard: GuardRules | None) -> None:
    if unknown := sorted(twin.keys() - set(_KEYS)):
        raise invalid_config(f"{FIELD} has no {', '.join(unknown)[:_MAX_NAMED]}")
    if twin and not _is_readable(twin):
        raise invalid_config(
            f"{_PREFIX}max_bytes must be a number of bytes, max_age a duration, and discard {_NEW} or {_OLD}"
        )
    if twin and _rules(_read(twin)) != guard:
        raise invalid_config(f"{FIELD} differs from {_PREFIX}* in the metadata")


def _check_rules(guard: GuardRules, config: Config) -> None:
    if not guard.consumer:
        raise invalid_config(f"{FIELD} requires a consumer")
    if not _NAME.fullmatch(guard.consumer):
        raise invalid_config(f"{FIELD} consumer is not the name of a consumer")
    _check_bounds(guard, config)
    if config["retention"] != "limits":
        raise invalid_config(f"{FIELD} requires limits retention")


def _check_bounds(guard: GuardRules, config: Config) -> None:
    if guard.max_bytes < 0 or guard.max_age < 0:
        raise invalid_config(f"{FIELD} max_bytes and max_age can not be negative")
    if not guard.max_bytes and not guard.max_age:
        raise invalid_config(f"{FIELD} requires max_bytes or max_age: a guard must not hold messages back for ever")
    if guard.max_bytes and guard.max_bytes <= config["max_bytes"]:
        raise invalid_config(f"{FIELD} max_bytes must be larger than that of the stream")
    if guard.max_age and guard.max_age <= config["max_age"]:
        raise invalid_config(f"{FIELD} max_age must be larger than that of the stream")


def _rules(given: Config) -> GuardRules:
    return GuardRules(
        str(given.get("consumer") or ""),
        int(given.get("max_bytes") or 0),
        int(given.get("max_age") or 0),
        given.get("discard") != _OLD,
    )


def _twin(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}


def _is_readable(twin: Mapping[str, str]) -> bool:
    age = durations.parse(twin.get("max_age", "0").encode())
    return (
        _NUMBER.fullmatch(twin.get("max_bytes", "0")) is not None
        and age is not None
        and twin.get("discard", _NEW) in {_NEW, _OLD}
    )


def _read(twin: Mapping[str, str]) -> dict[str, Any]:
    age = durations.parse(twin.get("max_age", "0").encode())
    return {**twin, "max_bytes": int(twin.get("max_bytes", "0")), "max_age": age}
