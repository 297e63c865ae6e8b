"""`GetRequest`: the request object of Direct Get and STREAM.MSG.GET, decoded as in Go, and its validation.

Keys match in any case, `null` leaves a field unset, unknown keys are only noted; integers must be in range, times are
RFC 3339.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, NoReturn

from jetcluster.errors import CallerError, PassingError
from jetcluster.model.times import parse_rfc3339
from jetcluster.records import dataclass
from jetcluster.stream.read.freshness import ANY, Freshness, of_field
from jetcluster.stream.read.freshness import FIELDS as FRESHNESS_FIELDS

_U64_MAX: Final = (1 << 64) - 1
_INT_MAX: Final = (1 << 63) - 1


class SetBackError(PassingError):
    """The stream was replaced by one with fewer messages during the search: what was looked at is not what is there."""


class MalformedRequest(CallerError, ValueError):
    """The payload is no request object."""


@dataclass(slots=True, eq=False)
class GetRequest:
    """A decoded request. Zero values stand for absent ones, as in Go; absent times are None."""

    seq: int = 0
    last_by_subj: bytes = b""
    next_by_subj: bytes = b""
    batch: int = 0
    max_bytes: int = 0
    start_time: int | None = None
    multi_last: list[bytes] = field(default_factory=list)
    up_to_seq: int = 0
    up_to_time: int | None = None
    no_hdr: bool = False
    msg_id_prefixes: list[bytes] = field(default_factory=list)
    """Our own, of MSG.GET only: which messages have such an id (`id_search`)."""
    fresh: Freshness = ANY
    """The freshness that the object asks for, without headers."""
    given: list[str] = field(default_factory=list)
    """Names of the fields in the object that were not null."""
    unknown: list[str] = field(default_factory=list)
    """Unknown keys, which MSG.GET refuses in strict mode."""

    @classmethod
    def decode(cls, payload: bytes) -> GetRequest:
        """Decodes a request. Raises MalformedRequest with the reason, or FreshnessError."""
        try:
            # Subjects may have bytes that are not UTF-8; they are kept, so that such messages can be read.
            fields = _decode_json(payload.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as error:
            raise MalformedRequest(str(error)) from error
        request = cls()
        if fields is None:
            return request
        if not isinstance(fields, dict):
            raise MalformedRequest("not an object")
        for key, value in fields.items():
            field = _FIELDS.get(key)
            if field is None:
                field = _FIELDS.get(key.lower())
                if field is None:
                    if key.lower() not in FRESHNESS_FIELDS:
                        request.unknown.append(key)
                    elif value is not None:
                        request.fresh = request.fresh.stricter(of_field(key.lower(), value))
                    continue
            if value is not None:
                request.given.append(field[0])
                setattr(request, field[0], field[1](value))
        return request

    @property
    def selects(self) -> bool:
        """True when a field selects a message; else the answer is 408 Empty Request."""
        return bool(
            self.seq or self.last_by_subj or self.next_by_subj or self.multi_last or self.start_time is not None
        )

    @property
    def conflicts(self) -> bool:
        """True for fields that exclude each other (408), and for a negative `batch` (nats-server: a bare EOB)."""
        last = self.last_by_subj
        timed = self.start_time is not None
        return bool(
            self.batch < 0
            or (last and (self.seq or timed or self.next_by_subj or self.batch or self.multi_last))
            or (timed and self.seq)
            or (self.next_by_subj and self.multi_last)
            or (self.up_to_seq and self.up_to_time is not None)
            or self.msg_id_prefixes
        )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid number {name}")


_decode_json: Final = json.JSONDecoder(parse_constant=_no_constant).decode  # json.loads would build one per call


def _unsigned(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _U64_MAX:
        raise MalformedRequest("not an unsigned 64-bit integer")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or not -_INT_MAX - 1 <= value <= _INT_MAX:
        raise MalformedRequest("not a 64-bit integer")
    return value


def _text(value: Any) -> bytes:
    if type(value) is not str:
        raise MalformedRequest("not a string")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone \ud800 escape, which no subject can have
        return value.encode("utf-8", "replace")


def _texts(value: Any) -> list[bytes]:
    if type(value) is not list:
        raise MalformedRequest("not a list")
    return [b"" if item is None else _text(item) for item in value]


def _time(value: Any) -> int:
    if type(value) is not str:
        raise MalformedRequest("not a time")
    try:
        return parse_rfc3339(value)
    except ValueError as error:
        raise MalformedRequest(str(error)) from error


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise MalformedRequest("not a boolean")
    return value


_FIELDS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "seq": ("seq", _unsigned),
    "last_by_subj": ("last_by_subj", _text),
    "next_by_subj": ("next_by_subj", _text),
    "batch": ("batch", _integer),
    "max_bytes": ("max_bytes", _integer),
    "start_time": ("start_time", _time),
    "multi_last": ("multi_last", _texts),
    "up_to_seq": ("up_to_seq", _unsigned),
    "up_to_time": ("up_to_time", _time),
    "no_hdr": ("no_hdr", _flag),
    "msg_id_prefixes": ("msg_id_prefixes", _texts),
}
