"""Order per key: how many messages of one key a pull consumer has out at a time (docs/consumers.md, "Order per key").

The wish is in a consumer's configuration (`max_ack_pending_per_subject`, `key`), or in its metadata under the names
with `jetcluster.`, since stock clients drop fields that they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.errors import ApiError, invalid_config
from jetcluster.records import NamedTuple

Config = Mapping[str, Any]

LIMIT: Final = "max_ack_pending_per_subject"
KEY: Final = "key"
_PREFIX: Final = "jetcluster."

WHOLE_SUBJECT: Final = 0
"""`KeyWish.token` of a key that is the whole subject."""
MAX_TOKEN: Final = 64
"""Highest number of a token that may be a key."""
MAX_LIMIT: Final = 1 << 31
MAX_HEADER_CHARS: Final = 128

_TOKEN: Final = re.compile(r"token:([1-9][0-9]?)")
_HEADER: Final = re.compile(r"header:([!-9;-~]+)")
_NUMBER: Final = re.compile(r"[0-9]{1,10}")


class KeyWish(NamedTuple):
    """The order per key of a consumer's configuration."""

    limit: int
    """Messages of one key that may wait for their acks at a time, at least 1."""
    token: int = WHOLE_SUBJECT
    """Number of the subject's token that is the key, from 1."""
    header: bytes = b""
    """Name of the header whose value is the key; b"": the key is from the subject."""


class KeySharing(NamedTuple):
    """Facts of the order per key that only a consumer's owner knows."""

    waiting: int = 0
    """Number of keys whose messages wait, for others of them or for the member that has them."""
    members: int = 0
    """Number of members that share the keys."""
    spilled: int = 0
    """Messages that went to another member than their key's since the owner began, as too many waited."""


def wish_of(config: Config) -> KeyWish | None:
    """Returns what `config` asks for, None for nothing. Raises ApiError for a wish that makes no sense."""
    limit, key = _given(config, LIMIT), _given(config, KEY)
    if isinstance(limit, str):
        if not _NUMBER.fullmatch(limit):
            raise invalid_config(f"{LIMIT} must be a number of messages")
        limit = int(limit)
    if not limit:
        if key:
            raise invalid_config(f"key requires {LIMIT}")
        return None
    if not 0 < limit <= MAX_LIMIT:
        raise invalid_config(f"{LIMIT} must be from 1 to {MAX_LIMIT}")
    if not key or key == "subject":
        return KeyWish(limit)
    if (found := _TOKEN.fullmatch(key)) and int(found[1]) <= MAX_TOKEN:
        return KeyWish(limit, token=int(found[1]))
    if (found := _HEADER.fullmatch(key)) and len(found[1]) <= MAX_HEADER_CHARS:
        return KeyWish(limit, header=found[1].encode())
    raise invalid_config(f'key must be "subject", "token:N" (1 to {MAX_TOKEN}) or "header:NAME"')


def _given(config: Config, name: str) -> Any:
    """Returns the field or its twin in the metadata; they must not differ."""
    own, twin = config.get(name), (config.get("metadata") or {}).get(_PREFIX + name)
    if own and twin and str(own) != twin:
        raise invalid_config(f"{name} differs from {_PREFIX}{name} in the metadata")
    return own or twin


def in_force(config: Config) -> KeyWish | None:
    """Returns the wish of a stored configuration. None also for one that `check` refuses: an older version did not look
    at its metadata."""
    try:
        return check(config)
    except ApiError:
        return None


def check(config: Config) -> KeyWish | None:
    """Returns the wish, None without one. Raises ApiError for one that makes no sense, or with what it cannot go."""
    wish = wish_of(config)
    if wish is None:
        return None
    if config.get("deliver_subject"):
        raise invalid_config(f"{LIMIT} requires a pull consumer")
    if config.get("ack_policy") != "explicit":
        raise invalid_config(f"{LIMIT} requires ack policy explicit")
    if config.get("replay_policy") == "original":
        raise invalid_config(f"{LIMIT} requires replay policy instant")
    return wish
