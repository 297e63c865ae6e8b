"""Questions to the pages and their answers: queries and their parameters, JSON, errors, the steps of a long page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetcluster.errors import CallerError
from jetcluster.records import dataclass

Query = Mapping[str, str]
"""Decoded query parameters; the first value of each name."""

Json = dict[str, Any]
ROWS_PER_STEP = 128
"""Lines of a list that are made in one step, well below a millisecond."""
BUSY = "too much is being worked on, try again"
"""The answer where a `BusyError` is raised."""


class QueryError(CallerError):
    """A parameter that makes no sense: HTTP 400, the text is the body."""


class NotAskedError(QueryError):
    """The question is for another server (`leader-only`). Over HTTP that is a 400; in the system account, where all
    servers hear it, this one says nothing."""


@dataclass(slots=True, frozen=True)
class Health:
    """`status` is the HTTP status: 200, 400 (question incomplete), 404 (asset unknown), 503."""

    status: int
    body: Json


_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def flag(query: Query, name: str) -> bool:
    """A boolean by Go's rules; absent is false."""
    text = query.get(name, "")
    if not text or text in _FALSE:
        return False
    if text in _TRUE:
        return True
    raise QueryError(f"Error decoding boolean for '{name}': strconv.ParseBool: parsing \"{text}\": invalid syntax")


def number(query: Query, name: str, default: int) -> int:
    """A decimal; absent, zero and negative are the default."""
    text = query.get(name, "")
    if not text:
        return default
    try:
        value = int(text, 10)
    except ValueError as error:
        raise QueryError(
            f"Error decoding int for '{name}': strconv.Atoi: parsing \"{text}\": invalid syntax"
        ) from error
    return value if value > 0 else default


def identifier(query: Query, name: str) -> int:
    """A decimal without a sign; absent is 0."""
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit()):
        raise QueryError(f"Error decoding uint64 for '{name}': strconv.ParseUint: parsing \"{text}\": invalid syntax")
    return int(text or 0)


def subs_detail(query: Query) -> tuple[bool, bool]:
    """`subs=1` or `subs=detail` -> (list, detail)."""
    if query.get("subs", "").lower() == "detail":
        return True, True
    return flag(query, "subs"), False
