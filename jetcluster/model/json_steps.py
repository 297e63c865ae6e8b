"""Decodes JSON in steps, because `json.loads` of a long text would block the event loop.

Objects and lists longer than `WHOLE_CHARS` are cut into pieces of many members for the decoder of the standard library.
A cut at a comma that does not separate two members leaves a string, an object or a list open, so the decoder refuses
the piece; then its members are decoded one by one. It is used for messages between nodes; clients' messages are
bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, Final

WHOLE_CHARS: Final = 32 * 1024
"""Characters that are decoded in one step, 0.5 ms at most."""
PIECE_CHARS: Final = 8 * 1024
"""Characters of a piece, which ends at the next comma."""
MEMBERS_PER_STEP: Final = 256
"""Members decoded one by one in a step."""
MAX_LEVELS: Final = 128
"""Values in each other that are decoded in steps: a level takes room on the stack, and how much is left of that hangs
on who calls."""

_SPACE = re.compile(r"[ \t\n\r]*")
_short = json.JSONDecoder().raw_decode
"""Decodes the value at a position and returns it with the position after it."""

_Steps = Generator[None, None, tuple[Any, int]]
"""Returns a value and the position after it."""


def decoding(text: str) -> Generator[None, None, Any]:
    """Returns the value that `json.loads` returns. Raises ValueError, and RecursionError beyond MAX_LEVELS
    levels that are long, or about 1,000 others."""
    if len(text) <= WHOLE_CHARS:
        return json.loads(text)
    value, end = yield from _value(text, _next(text, 0), 0)
    if _next(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _next(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int, level: int) -> _Steps:
    if level > MAX_LEVELS:
        raise RecursionError("too many long values in each other")
    first = text[at : at + 1]
    # A value that begins close to the end cannot be long; any other one may be.
    if first == "{" and len(text) - at > WHOLE_CHARS:
        return (yield from _object(text, at, level))
    if first == "[" and len(text) - at > WHOLE_CHARS:
        return (yield from _list(text, at, level))
    return _short(text, at)


def _object(text: str, at: int, level: int) -> _Steps:
    found: dict[str, Any] = {}
    at, more, passed, count = _next(text, at + 1), True, 0, 0
    if text[at : at + 1] == "}":
        return found, at + 1
    while more:
        cut = text.find(',"', at + PIECE_CHARS, at + 2 * PIECE_CHARS) if at >= passed else -1
        if cut > 0:
            passed = cut
            if (members := _decoded("{" + text[at:cut] + "}")) is not None:
                found |= members
                at = cut + 1
                yield
                continue
        if not count % MEMBERS_PER_STEP:
            yield
        count += 1
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = _short(text, at)
        at = _after(text, at, ":", "Expecting ':' delimiter")
        found[key], at = (yield from _value(text, at, level + 1)) if text[at : at + 1] in "{[" else _short(text, at)
        at, more = _more(text, at, "}")
    return found, at


def _list(text: str, at: int, level: int) -> _Steps:
    found: list[Any] = []
    at, more, passed, count = _next(text, at + 1), True, 0, 0
    if text[at : at + 1] == "]":
        return found, at + 1
    while more:
        cut = text.find(",", at + PIECE_CHARS, at + 2 * PIECE_CHARS) if at >= passed else -1
        if cut > 0:
            passed = cut
            if (members := _decoded("[" + text[at:cut] + "]")) is not None:
                found += members
                at = _next(text, cut + 1)
                yield
                continue
        if not count % MEMBERS_PER_STEP:
            yield
        count += 1
        value, at = (yield from _value(text, at, level + 1)) if text[at : at + 1] in "{[" else _short(text, at)
        found.append(value)
        at, more = _more(text, at, "]")
    return found, at


def _decoded(piece: str) -> Any:
    """Returns None when the text was not cut between two members, so that a string or a value is open."""
    try:
        return json.loads(piece)
    except ValueError:
        return None


def _after(text: str, at: int, sign: str, problem: str) -> int:
    if text[at : at + 1] != sign:  # usually there is no white space
        at = _next(text, at)
        if text[at : at + 1] != sign:
            raise json.JSONDecodeError(problem, text, at)
    return at + 1 if text[at + 1 : at + 2] > " " else _next(text, at + 1)


def _more(text: str, at: int, end: str) -> tuple[int, bool]:
    """Returns (position of the next member, True), or (position after the end, False). Raises ValueError."""
    sign = text[at : at + 1]
    if sign != "," and sign != end:
        at = _next(text, at)
        sign = text[at : at + 1]
    if sign == end:
        return at + 1, False
    return _after(text, at, ",", "Expecting ',' delimiter"), True
