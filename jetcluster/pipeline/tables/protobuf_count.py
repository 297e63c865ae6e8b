"""The values of a Protobuf payload, counted from its bytes before protobuf makes messages of them.

A message within another one may be two bytes, and takes room for all fields of its type as soon as it is parsed. So a
payload that may have too many values is looked through first, which takes about a microsecond a field.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jetcluster.pipeline.tables.payload import MAX_VALUES, ValueRoom
from jetcluster.pipeline.tables.varints import varint

MAX_DEPTH: Final = 100
"""Messages in messages; protobuf parses no more."""
_VARINT, _EIGHT, _BYTES, _GROUP, _END, _FOUR = range(6)
"""Wire types."""


class _Type(NamedTuple):
    """A message type."""

    values: int
    fields: Mapping[int, _Type]
    """Number of a field -> its type; of those that are messages."""
    packed: frozenset[int]
    """Numbers of the fields that may be many values in one piece of bytes."""


class ProtobufCount:
    """Counts the values of payloads of one message type."""

    def __init__(self, descriptor: Any, room: ValueRoom) -> None:
        self._room = room
        known: dict[str, _Type] = {}
        self._type = _type_of(descriptor, known)
        self._most = max(1, *(-(-one.values // 2) for one in known.values()))
        """The most values that a byte may become."""

    def check(self, payload: bytes) -> None:
        """Takes room for the values of a payload. Bytes that are no message are left to the reader. Raises
        MisfitError."""
        if len(payload) * self._most > MAX_VALUES:
            with contextlib.suppress(IndexError):
                self.behind(payload)

    def behind(self, payload: bytes) -> int:
        """Returns the place behind the message, and takes room for it. Raises MisfitError, IndexError."""
        return self._message(payload, 0, len(payload), self._type, 0, group=False)

    def _message(self, data: bytes, at: int, end: int, kind: _Type | None, depth: int, *, group: bool) -> int:
        """`kind` is None for a message of a type that is not known. A group ends with a tag of its own."""
        if depth > MAX_DEPTH:
            raise IndexError(depth)
        if kind is not None:
            self._room.take(kind.values)
        while at < end:
            tag, at = varint(data, at)
            number, wire = tag >> 3, tag & 7
            inner = None if kind is None else kind.fields.get(number)
            if wire == _BYTES:
                size, at = varint(data, at)
                if at + size > end:
                    raise IndexError(at)
                if inner is not None:
                    self._message(data, at, at + size, inner, depth + 1, group=False)
                elif kind is not None and number in kind.packed:
                    self._room.take(size)
                at += size
            elif wire == _VARINT:
                _, at = varint(data, at)
            elif wire in (_EIGHT, _FOUR):
                at += 8 if wire == _EIGHT else 4
            elif wire == _GROUP:
                at = self._message(data, at, end, inner, depth + 1, group=True)
            elif wire == _END and group:
                return at
            else:
                raise IndexError(at)
        if group or at > end:
            raise IndexError(at)
        return at


def _type_of(descriptor: Any, known: dict[str, _Type]) -> _Type:
    """Types may have each other, and themselves."""
    found = known.get(descriptor.full_name)
    if found is None:
        fields: dict[int, _Type] = {}
        packed = frozenset(one.number for one in descriptor.fields if one.is_repeated and _is_number(one))
        known[descriptor.full_name] = found = _Type(1 + len(descriptor.fields), fields, packed)
        for one in descriptor.fields:
            if one.message_type is not None:
                fields[one.number] = _type_of(one.message_type, known)
    return found


def _is_number(field: Any) -> bool:
    return field.message_type is None and field.cpp_type != field.CPPTYPE_STRING
