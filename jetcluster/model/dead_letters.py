"""Dead letters: where messages go that a consumer gives up (docs/consumers.md, "Dead letters").

The wish is in a consumer's configuration (`dead_letter`: `subject`, `on_max_deliver`, `on_term`), or in its metadata
under `jetcluster.dead_letter.subject` and so on, since stock clients drop fields that they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jetcluster.errors import ApiError, invalid_config
from jetcluster.model import subjects
from jetcluster.records import NamedTuple

Config = Mapping[str, Any]

FIELD: Final = "dead_letter"
_PREFIX: Final = "jetcluster.dead_letter."
_DEFAULTS: Final = {"on_max_deliver": True, "on_term": False}
_WORDS: Final = {"true": True, "false": False}
_SUBJECT: Final = "{subject}"
_PLACES: Final = ("{stream}", "{consumer}", _SUBJECT)
_PLACE: Final = re.compile("|".join(_PLACES))
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_NOT_OURS: Final = ("$", "_INBOX.")
"""Beginnings of subjects that belong to the server and to the answers to requests."""
MAX_SUBJECT_BYTES: Final = 256
"""Longest configured subject."""
_MAX_NAMED: Final = 200
"""Characters of unknown keys that an error shows."""
_UNKNOWN_SUBJECT: Final = "_"
"""In place of `{subject}` when the message is no longer stored."""


class LetterWish(NamedTuple):
    """The dead letters of a consumer's configuration."""

    subject: str
    """As configured, with `{stream}`, `{consumer}` and `{subject}`."""
    on_max_deliver: bool = True
    on_term: bool = False

    @property
    def pattern(self) -> str:
        """The subjects of all its letters, of any consumer."""
        return _pattern(self.subject)

    def filter_of(self, stream: str, consumer: str) -> str:
        """Returns the subjects of all letters of a consumer."""
        return _pattern(self.subject, {"{stream}": stream, "{consumer}": consumer})

    def subject_of(self, stream: str, consumer: str, subject: str) -> str:
        """Returns the subject of the letter for a message with `subject`, "" when it is no longer stored."""
        places = {"{stream}": stream, "{consumer}": consumer, _SUBJECT: subject or _UNKNOWN_SUBJECT}
        return _filled(self.subject, places)


def wish_of(config: Config) -> LetterWish | None:
    """Returns what `config` asks for, None for nothing. Raises ApiError for a wish that makes no sense."""
    own = config.get(FIELD) or {}
    if not isinstance(own, dict):
        raise invalid_config(f"{FIELD} must be an object")
    own = {key: value for key, value in own.items() if value is not None}
    twin = {
        key.removeprefix(_PREFIX): value
        for key, value in (config.get("metadata") or {}).items()
        if key.startswith(_PREFIX)
    }
    if unknown := sorted((own.keys() | twin.keys()) - _DEFAULTS.keys() - {"subject"}):
        raise invalid_config(f"{FIELD} has no {', '.join(unknown)[:_MAX_NAMED]}")
    if not own and not twin:
        return None
    said = {key: _WORDS.get(value) if key in _DEFAULTS else value for key, value in twin.items()}
    if None in said.values():
        raise invalid_config(f"{_PREFIX}on_max_deliver and {_PREFIX}on_term must be true or false")
    for key in own.keys() & said.keys():
        if own[key] != said[key]:
            raise invalid_config(f"{FIELD}.{key} differs from {_PREFIX}{key} in the metadata")
    wish = LetterWish(**{"subject": "", **_DEFAULTS, **said, **own})
    if not isinstance(wish.subject, str) or not all(isinstance(word, bool) for word in wish[1:]):
        raise invalid_config(f"{FIELD} must have a subject, and true or false")
    if not wish.subject:
        raise invalid_config(f"{FIELD} requires a subject")
    return wish


def in_force(config: Config) -> LetterWish | None:
    """Returns the wish of a stored configuration. None also for one that `check` refuses: an older version did not look
    at its metadata."""
    try:
        return check(config)
    except ApiError:
        return None


def check(config: Config, stream: Config | None = None) -> LetterWish | None:
    """Returns the wish, None without one. Raises ApiError for one that makes no sense, or with what it cannot go.
    `stream` is the configuration of its stream, None where that is not looked at."""
    wish = wish_of(config)
    if wish is None:
        return None
    if config.get("ack_policy") not in {"explicit", "all"}:
        raise invalid_config(f"{FIELD} requires ack policy explicit or all")
    if not wish.on_max_deliver and not wish.on_term:
        raise invalid_config(f"{FIELD} requires on_max_deliver or on_term")
    if wish.on_max_deliver and (config.get("max_deliver") or -1) < 1:
        raise invalid_config(f"{FIELD} with on_max_deliver requires max_deliver")
    _check_subject(wish.subject)
    check_cycle(wish, config, stream or {})
    return wish


def check_cycle(wish: LetterWish, config: Config, stream: Config) -> None:
    """Raises ApiError where the consumer could get its own letters. Longer ways round (a mirror's transform, a consumer
    of the letters) are ended by the number of their hops."""
    one = config.get("filter_subject")
    filters = list(config.get("filter_subjects") or ([one] if one else ()))
    if not filters and (stream.get("mirror") or stream.get("sources")):  # whose subjects nobody knows here
        raise invalid_config(f"{FIELD} of a consumer without a filter requires a stream without mirror and sources")
    if not filters or stream.get("subject_transform"):  # what the stream takes becomes what the filters are for
        filters += stream.get("subjects") or ()
    if any(subjects.overlap(wish.pattern, filter) for filter in filters):
        raise invalid_config(f"{FIELD} subject must not be one that the consumer gets")


def is_publishable(subject: str) -> bool:
    """Returns True for the subject of a letter, filled, that may be published."""
    return (
        subjects.is_valid(subject)
        and subjects.is_literal(subject)
        and not subject.startswith(_NOT_OURS)
        and _CONTROL.search(subject) is None
    )


def _check_subject(subject: str) -> None:
    if len(subject.encode("utf-8", "replace")) > MAX_SUBJECT_BYTES:
        raise invalid_config(f"{FIELD} subject is too long, maximum allowed is {MAX_SUBJECT_BYTES} bytes")
    if subject.startswith(_NOT_OURS):
        raise invalid_config(f"{FIELD} subject must not begin with $ or _INBOX")
    plain = _filled(subject, dict.fromkeys(_PLACES, "x"))
    if not is_publishable(plain) or "{" in plain or "}" in plain:
        raise invalid_config(f"{FIELD} subject must be a literal subject with {', '.join(_PLACES)} at most")
    if "{" in subject.split(".", 1)[0]:
        raise invalid_config(f"{FIELD} subject must have a literal first token")
    if any(_SUBJECT in part and part != _SUBJECT for part in subject.split(".")):
        raise invalid_config(f"{FIELD} subject must have {{subject}} as a token of its own")


def _pattern(subject: str, places: Mapping[str, str] | None = None) -> str:
    """Returns the subjects of all letters; `places` tells stream and consumer, None: any."""
    parts: list[str] = []
    for part in subject.split("."):
        if part == _SUBJECT:
            return ".".join([*parts, ">"])
        parts.append(_filled(part, places) if places is not None else "*" if "{" in part else part)
    return ".".join(parts)


def _filled(text: str, places: Mapping[str, str]) -> str:
    """Replaces in one pass: a name may look like a place."""
    return _PLACE.sub(lambda found: places[found[0]], text)
