"""JSON at the edge: what clients send, read as leniently as Go's decoder does and no more; what we answer, compact."""

from __future__ import annotations

import json
from collections.abc import Generator
from itertools import islice
from typing import Any, Final

from jetcluster import errors
from jetcluster.errors import by_code

MAX_DEPTH_TEXT = "exceeded max depth"
PORTION: Final = 2000
"""Pieces of JSON that are made in one step, a millisecond at most: a key, a value and what stands between them are
pieces."""


def dumps(value: Any) -> bytes:
    """Compact JSON, ASCII only: valid with anything that a client put into a string."""
    return json.dumps(value, separators=(",", ":")).encode()


LONG: Final = 4096
"""Subjects, or deleted sequences: the JSON of more is made in steps."""


def is_long(fields: dict[str, Any]) -> bool:
    """True for an answer to STREAM.INFO with a long list in its state."""
    state = fields.get("state")
    return isinstance(state, dict) and max(len(state.get("subjects") or ()), len(state.get("deleted") or ())) > LONG


def encoding(value: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> Generator[None, None, bytes]:
    """As `dumps`, in steps: for what may be long. With `indent` as `json.dumps` lays it out. `value` is the caller's:
    it may not change between the steps."""
    separators = (",", ":") if indent is None else None
    encoder = json.JSONEncoder(indent=indent, separators=separators, ensure_ascii=ensure_ascii)
    pieces = encoder.iterencode(value)
    found = bytearray()
    while portion := "".join(islice(pieces, PORTION)):
        found += portion.encode()
        yield
    return bytes(found)


def loads(payload: bytes) -> Any:
    """Decodes one JSON value. Bytes that are not UTF-8 become U+FFFD as in Go; NaN and Infinity are no JSON.

    Raises ApiError 10025 (`invalid JSON: ...`), also for trailing data.
    """
    if not payload.strip():
        raise invalid_json("unexpected end of JSON input")
    try:
        value = json.loads(payload.decode("utf-8", "replace"), parse_constant=_no_constant)
    except RecursionError:
        raise invalid_json(MAX_DEPTH_TEXT) from None
    except ValueError as error:
        raise invalid_json(syntax_text(error, offset=True)) from None
    return without_surrogates(value) if b"\\u" in payload else value


def invalid_json(text: str) -> errors.ApiError:
    return by_code(errors.INVALID_JSON, err=text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


def syntax_text(error: ValueError, *, offset: bool = False) -> str:
    """Go's text for JSON that Python's decoder refused with `error`; `offset`: with the place, as Go tells it of a
    stream."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated"):
        return "unexpected EOF" if offset else "unexpected end of JSON input"
    where = next((text for start, text in _PLACES if error.msg.startswith(start)), "looking for beginning of value")
    at = error.pos - 1 if error.msg.startswith("Illegal trailing") else error.pos
    text = f"invalid character {error.doc[at]!r} {where}"
    return f"{text} at offset {at + 1}" if offset else text


_PLACES = (
    ("Expecting property name", "looking for beginning of object key string"),
    ("Expecting ':'", "after object key"),
    ("Expecting ','", "after object key:value pair"),
    ("Extra data", "after top-level value"),
    ("Invalid control character", "in string literal"),
    ("Invalid \\", "in string escape code"),
)
"""The beginning of a message of Python's decoder -> the words of Go's at that place."""


def without_surrogates(value: Any) -> Any:
    """A lone `\\ud800` escape is legal JSON, but no text: Go reads it as U+FFFD, Python would fail when encoding."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def json_kind(value: Any) -> str:
    """Go's word for the kind of a decoded value."""
    match value:
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"
