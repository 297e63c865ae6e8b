"""JSON of clients: requests are decoded as leniently as by Go's decoder, answers are encoded compactly."""

from __future__ import annotations

import json
from collections.abc import Generator
from itertools import islice
from typing import Any, Final

from jetcluster import errors
from jetcluster.errors import by_code

MAX_DEPTH_TEXT = "exceeded max depth"
PIECES_PER_STEP: Final = 2000
"""Pieces of JSON (keys, values, separators) that are encoded in one step, a millisecond at most."""


def dumps(value: Any) -> bytes:
    """Returns compact JSON in ASCII, which is valid whatever a string of a client contains."""
    return json.dumps(value, separators=(",", ":")).encode()


LONG_LIST_ITEMS: Final = 4096
"""Subjects or deleted sequences up to which JSON is encoded in one step."""


def is_long(fields: dict[str, Any]) -> bool:
    """Returns True for an answer to STREAM.INFO with a long list in its state."""
    state = fields.get("state")
    return (
        isinstance(state, dict)
        and max(len(state.get("subjects") or ()), len(state.get("deleted") or ())) > LONG_LIST_ITEMS
    )


def encoding(value: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> Generator[None, None, bytes]:
    """Encodes in steps; `indent` is that of `json.dumps`. The caller must not change `value` between the steps."""
    separators = (",", ":") if indent is None else None
    encoder = json.JSONEncoder(indent=indent, separators=separators, ensure_ascii=ensure_ascii)
    pieces = encoder.iterencode(value)
    found = bytearray()
    while portion := "".join(islice(pieces, PIECES_PER_STEP)):
        found += portion.encode()
        yield
    return bytes(found)


def loads(payload: bytes) -> Any:
    """Decodes one JSON value; bytes that are not UTF-8 become U+FFFD, as in Go. Raises ApiError 10025."""
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
    """Returns Go's text for an error of Python's decoder; with `offset`, Go's text for a stream, with the place."""
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
"""Beginning of the text of Python's decoder -> text of Go's."""


def without_surrogates(value: Any) -> Any:
    """Replaces lone `\\ud800` escapes by U+FFFD, as Go does; Python would fail to encode them."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    return value


def json_kind(value: Any) -> str:
    """Returns Go's name for the kind of a decoded value."""
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
