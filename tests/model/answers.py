"""Expected answers to requests, as far as they can be known, and the comparison with an answer that came.

An expected value is plain JSON, but for what no model can know: `ANY` is whatever is there, `MAYBE` also nothing at
all, `Text` the beginning of a text, `Between` a number, a `Stamp` a time and a `Name` a text that are learned when they
are first seen and must stay so.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple

ZERO_TIME = "0001-01-01T00:00:00Z"


class Free:
    """A value that no model knows."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: object) -> Free:
        return self


ANY = Free("ANY")
MAYBE = Free("MAYBE")


class Text(NamedTuple):
    """A text that begins so."""

    beginning: str


class Between(NamedTuple):
    """A whole number of these, or between them."""

    least: int
    most: int


class Stamp:
    """A time of the server's, in nanoseconds since 1970."""

    def __init__(self) -> None:
        self.ns: int | None = None

    def __repr__(self) -> str:
        return f"Stamp({self.ns})"

    def is_(self, text: object, learned: dict[Stamp, int]) -> bool:
        """Tells whether it may be this time; where it was not known, it is `learned`."""
        try:
            ns = text if isinstance(text, int) else nanoseconds(str(text))
        except ValueError:
            return False
        return (self.ns if self.ns is not None else learned.setdefault(self, ns)) == ns


class Name:
    """A text that the server chose."""

    def __init__(self) -> None:
        self.value: str | None = None

    def __repr__(self) -> str:
        return f"Name({self.value})"


def nanoseconds(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time in UTC without trailing zeros. Raises ValueError."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{0,8}[1-9]))?Z", text)
    if found is None:
        raise ValueError(f"no time in UTC: {text!r}")
    whole = datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    return int(whole.timestamp()) * 10**9 + int(f"{found[2] or '':0<9}")


def parts(reply: str) -> tuple[Any, ...]:
    """The tokens of an ack subject, its time as a number. One of version 2 becomes the same of version 1, by which
    servers take acks as well."""
    tokens: list[Any] = reply.split(".")
    if tokens[:2] == ["$JS", "ACK"] and len(tokens) == 11:
        tokens[2:4] = []
    if tokens[:2] == ["$JS", "ACK"] and len(tokens) == 9:
        tokens[7] = int(tokens[7])
    return tuple(tokens)


def rfc3339(ns: int) -> str:
    whole = datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{ns % 10**9:09d}".rstrip("0").rstrip(".")
    return f"{whole}{fraction}Z"


class Answer(NamedTuple):
    """One message to whoever asked."""

    status: Any = ""
    """The rest of the header line, "404 Message Not Found"; "" when there is none."""
    headers: Any = ()
    """Pairs of key and value, in order."""
    data: Any = b""
    """Bytes, or the value of JSON."""
    subject: Any = ""
    """"": the one that was asked for the answer."""
    reply: Any = ""
    """The parts of an ack subject, or ""."""


def compared(wanted: Any, found: Any) -> list[str]:
    """The differences, each as "place: difference". Stamps learn their times when there is none."""
    learned: dict[Stamp, int] = {}
    told = _differences(wanted, found, "", learned)
    if not told:
        for stamp, ns in learned.items():
            stamp.ns = ns
    return told


def _differences(wanted: Any, found: Any, at: str, learned: dict[Stamp, int]) -> list[str]:
    if wanted is ANY or wanted is MAYBE:
        return []
    if isinstance(wanted, Stamp):
        return [] if wanted.is_(found, learned) else [f"{at}: {found!r} for {wanted}"]
    if isinstance(wanted, Name):
        if wanted.value is None and isinstance(found, str) and found:
            wanted.value = found
        return [] if wanted.value == found else [f"{at}: {found!r} for {wanted}"]
    if isinstance(wanted, Between):
        well = type(found) is int and wanted.least <= found <= wanted.most
        return [] if well else [f"{at}: {found!r} is not {wanted}"]
    if isinstance(wanted, Text):
        return [] if str(found).startswith(wanted.beginning) else [f"{at}: {found!r} does not begin with {wanted}"]
    if isinstance(wanted, dict) and isinstance(found, dict):
        told = [f"{at}.{key}: missing" for key in wanted if key not in found and wanted[key] is not MAYBE]
        told += [f"{at}.{key}: not expected: {found[key]!r}" for key in found if key not in wanted]
        for key in wanted:
            if key in found:
                told += _differences(wanted[key], found[key], f"{at}.{key}", learned)
        return told
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        if len(wanted) != len(found):
            return [f"{at}: {len(found)} for {len(wanted)}: {list(found)!r} for {list(wanted)!r}"]
        pairs = enumerate(zip(wanted, found, strict=True))
        return [text for n, pair in pairs for text in _differences(*pair, f"{at}[{n}]", learned)]
    same = wanted == found and type(wanted) is type(found)
    return [] if same else [f"{at}: {found!r} for {wanted!r}"]
