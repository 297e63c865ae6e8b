"""Dead letters: where messages go that a consumer gives up (docs/consumers.md, "Dead letters").

The wish is in a consumer's configuration (`dead_letter`: `subject`, `on_max_deliver`, `on_term`), or in its metadata
under `jetcluster.dead_letter.subject` and so on, since stock clients drop fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        return _pattern(_filled(self.subject, stream, consumer, _SUBJECT))

    def subject_of(self, stream: str, consumer: str, subject: str) -> str:
        """Returns the subject of the letter for a message with `subject`, "" when it is no longer stored."""
        return _filled(self.subject, stream, consumer, subject or _UNKNOWN_SUBJECT)


def wish_of(config: Config) -> LetterWish | None:
    """Returns what `config` asks for, None for nothing. Raises ApiError for a wish that makes no sense."""
    own = config.get(FIELD) or {}
    if not isinstance(own, dict):
        raise invalid_config(f"{FIELD} must be an object")
    twin = {
        key.removeprefix(_PREFIX): value
        for key, value in (config.get("metadata") or {}).items()
        if key.startswith(_PREFIX)
    }
    if unknown := sorted((own.keys() | twin.keys()) - _DEFAULTS.keys() - {"subject"}):
        raise invalid_config(f"{FIELD} has no {', '.join(unknown)}")
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


def check(config: Config, stream_subjects: Sequence[str] = ()) -> LetterWish | None:
    """Returns the wish, None without one. Raises ApiError for one that makes no sense, or with what it cannot go.
    `stream_subjects` are what an unfiltered consumer gets."""
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
    one = config.get("filter_subject")
    filters = config.get("filter_subjects") or ([one] if one else stream_subjects)
    if any(subjects.overlap(wish.pattern, filter) for filter in filters):
        raise invalid_config(f"{FIELD} subject must not be one that the consumer gets")
    return wish


def _check_subject(subject: str) -> None:
    plain = _filled(subject, "s", "c", "x")
    whole = subjects.is_valid(plain) and subjects.is_literal(plain)
    if not whole or "{" in plain or "}" in plain:
        raise invalid_config(f"{FIELD} subject must be a literal subject with {', '.join(_PLACES)} at most")
    if plain.startswith("$"):
        raise invalid_config(f"{FIELD} subject must not begin with $")
    if any(_SUBJECT in part and part != _SUBJECT for part in subject.split(".")):
        raise invalid_config(f"{FIELD} subject must have {{subject}} as a token of its own")


def _pattern(subject: str) -> str:
    parts: list[str] = []
    for part in subject.split("."):
        if part == _SUBJECT:
            return ".".join([*parts, ">"])
        parts.append("*" if "{" in part else part)
    return ".".join(parts)


def _filled(text: str, stream: str, consumer: str, subject: str) -> str:
    for place, value in zip(_PLACES, (stream, consumer, subject), strict=True):
        text = text.replace(place, value)
    return text
