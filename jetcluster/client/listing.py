"""Lists of the JetStream API, which come in pages: all entries, whatever is made and deleted between two pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from jetcluster.errors import PassingError

Json = dict[str, Any]
Ask = Callable[[str, Json], Json]
"""(subject below the API's prefix, body) -> answer."""

MAX_TRIES: Final = 20
"""Readings of a list from its beginning, when it shifts between two pages."""


class ListChangedError(PassingError):
    """A list changed at every attempt to read it."""


class UnansweredError(PassingError):
    """Streams or consumers are missing in a list, as their leaders did not answer."""


@dataclass(slots=True)
class WholeList:
    """All entries of a list."""

    entries: dict[str, Any] = field(default_factory=dict)
    """Name -> entry."""
    missing: set[str] = field(default_factory=set)
    """Names of those that did not answer."""


def listed(ask: Ask, subject: str, what: str) -> WholeList:
    """Returns all of a list, whose entries are in the field `what` of each page. Raises ListChangedError, and what
    `ask` raises."""
    for _ in range(MAX_TRIES):
        if (found := _listed(ask, subject, what)) is not None:
            return found
    raise ListChangedError(f"{subject} changes all the time")


def _listed(ask: Ask, subject: str, what: str) -> WholeList | None:
    """None if the list shifted: each page has to begin with the last entry of the one before, or one in front of it. If
    not, something in front was deleted, and an entry may have slipped from this page to the one before."""
    found = WholeList()
    offset, before = 0, set[str]()
    while True:
        page = ask(subject, {"offset": offset})
        entries = {_name(one): one for one in page.get(what) or ()}
        silent = set(page.get("missing") or ())
        names = entries.keys() | silent
        if before and not names & before:
            return None
        found.entries |= entries
        found.missing |= silent
        end = offset + len(names)
        if not names or end >= int(page.get("total") or 0):
            found.missing -= found.entries.keys()
            return found
        step = end - 1 if len(names) > 1 else end
        offset, before = step, set(names) if len(names) > 1 else set()


def _name(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    return str(entry["name"] if "name" in entry else entry["config"]["name"])
