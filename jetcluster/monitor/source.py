"""Queries to the pages and their answers: parameters, JSON, errors, the steps of a long page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetcluster.errors import CallerError
from jetcluster.records import dataclass

Query = Mapping[str, str]
"""Decoded query parameters; the first value of each name."""

Json = dict[str, Any]
ROWS_PER_STEP = 128
"""Rows of a list that one step makes, in well below a millisecond."""
WORKER_METHOD = "worker.page"
"""The request by which one worker asks another for a page (`monitor.machine`)."""
FINDINGS_METHOD = "monitor.findings"
"""The request by which one server asks another for its facts and findings (`monitor.findings`)."""
BUSY = "too much is being worked on, try again"
"""The answer to a request that a `BusyError` refuses."""


class QueryError(CallerError):
    """An invalid parameter: HTTP 400, with the text as the body."""


class NotAskedError(QueryError):
    """A query for another server (`leader-only`): HTTP 400. In the system account, where every server receives the
    query, this one does not reply."""


@dataclass(slots=True, frozen=True)
class Health:
    """`status` is the HTTP status: 200, 400 (incomplete query), 404 (asset unknown), 503."""

    status: int
    body: Json


_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def flag(query: Query, name: str) -> bool:
    """Returns a boolean as Go parses it; absent is False."""
    text = query.get(name, "")
    if not text or text in _FALSE:
        return False
    if text in _TRUE:
        return True
    raise QueryError(f"Error decoding boolean for '{name}': strconv.ParseBool: parsing \"{text}\": invalid syntax")


def number(query: Query, name: str, default: int) -> int:
    """Returns a decimal; `default` when it is absent, zero or negative."""
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
    """Returns a decimal without a sign; absent is 0."""
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit()):
        raise QueryError(f"Error decoding uint64 for '{name}': strconv.ParseUint: parsing \"{text}\": invalid syntax")
    return int(text or 0)


def subs_detail(query: Query) -> tuple[bool, bool]:
    """Returns (list, detail) for `subs=1` or `subs=detail`."""
    if query.get("subs", "").lower() == "detail":
        return True, True
    return flag(query, "subs"), False
