"""JSON that is read in steps: `json.loads` of a long text keeps the loop for as long as it takes.

Objects and lists of more text than `WHOLE` are cut into pieces of many members, which the decoder of the standard
library reads. A cut at a comma that does not stand between two members leaves a string, an object or a list open, so
the decoder refuses the piece; then its members are read one by one. For what nodes tell each other: what clients send
is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Final

WHOLE: Final = 32 * 1024
"""Characters that are decoded at once, 0.5 ms at most."""
PIECE: Final = 8 * 1024
"""Characters after which a piece ends, at the next comma."""
PORTION: Final = 256
"""Members that are read one by one in a step."""

_SPACE = re.compile(r"[ \t\n\r]*")
_short = json.JSONDecoder().raw_decode
"""A value from there on, and where it ends."""

_Steps = Generator[None, None, tuple[Any, int]]
"""A value and where the text goes on."""


def decoding(text: str) -> Generator[None, None, Any]:
    """The value that `json.loads` returns. Raises ValueError; and RecursionError beyond a thousand levels or so."""
    if len(text) <= WHOLE:
        return json.loads(text)
    value, end = yield from _value(text, _next(text, 0))
    if _next(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _next(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int) -> _Steps:
    first = text[at : at + 1]
    # A value that begins close to the end cannot be long, and of another one that is not known yet.
    if first == "{" and len(text) - at > WHOLE:
        return (yield from _object(text, at))
    if first == "[" and len(text) - at > WHOLE:
        return (yield from _list(text, at))
    return _short(text, at)


def _object(text: str, at: int) -> _Steps:
    found: dict[str, Any] = {}
    at, more, passed, count = _next(text, at + 1), True, 0, 0
    if text[at : at + 1] == "}":
        return found, at + 1
    while more:
        cut = text.find(',"', at + PIECE, at + 2 * PIECE) if at >= passed else -1
        if cut > 0:
            passed = cut
            if (members := _decoded("{" + text[at:cut] + "}")) is not None:
                found |= members
                at = cut + 1
                yield
                continue
        if not count % PORTION:
            yield
        count += 1
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = _short(text, at)
        at = _after(text, at, ":", "Expecting ':' delimiter")
        found[key], at = (yield from _value(text, at)) if text[at : at + 1] in "{[" else _short(text, at)
        at, more = _more(text, at, "}")
    return found, at


def _list(text: str, at: int) -> _Steps:
    found: list[Any] = []
    at, more, passed, count = _next(text, at + 1), True, 0, 0
    if text[at : at + 1] == "]":
        return found, at + 1
    while more:
        cut = text.find(",", at + PIECE, at + 2 * PIECE) if at >= passed else -1
        if cut > 0:
            passed = cut
            if (members := _decoded("[" + text[at:cut] + "]")) is not None:
                found += members
                at = _next(text, cut + 1)
                yield
                continue
        if not count % PORTION:
            yield
        count += 1
        value, at = (yield from _value(text, at)) if text[at : at + 1] in "{[" else _short(text, at)
        found.append(value)
        at, more = _more(text, at, "]")
    return found, at


def _decoded(piece: str) -> Any:
    """None where the text was not cut between two members: a string or a value is open then."""
    try:
        return json.loads(piece)
    except ValueError:
        return None


def _after(text: str, at: int, sign: str, problem: str) -> int:
    if text[at : at + 1] != sign:  # mostly nothing stands between
        at = _next(text, at)
        if text[at : at + 1] != sign:
            raise json.JSONDecodeError(problem, text, at)
    return at + 1 if text[at + 1 : at + 2] > " " else _next(text, at + 1)


def _more(text: str, at: int, end: str) -> tuple[int, bool]:
    """(the place where the next member begins, True), or (the place behind the end, False). Raises ValueError."""
    sign = text[at : at + 1]
    if sign != "," and sign != end:
        at = _next(text, at)
        sign = text[at : at + 1]
    if sign == end:
        return at + 1, False
    return _after(text, at, ",", "Expecting ',' delimiter"), True
