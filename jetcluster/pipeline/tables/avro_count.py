"""The values of an Avro payload, counted from its bytes before fastavro makes objects of them.

An item of an array has a byte at least (`avro_schema` refuses others), but that may be a record of a thousand columns,
and a payload has millions of bytes. So one that may have too many values is looked through first, which takes about a
microsecond a value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from jetcluster.pipeline.tables.payload import MAX_VALUES, ValueRoom
from jetcluster.pipeline.tables.varints import varint

Skip = Callable[[bytes, int], int]
"""(payload, place of a value) -> the place behind it. Raises IndexError where the payload ends before."""
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class AvroCount:
    """Counts the values in arrays and maps of payloads of one schema."""

    def __init__(self, parsed: Any, room: ValueRoom) -> None:
        """`parsed`: a schema as fastavro has it parsed, without a record inside of itself."""
        self._named: dict[str, tuple[Skip, int, int]] = {}
        self._room = room
        self._most = 0
        """The most values that a byte of an array or a map may become; 0 without any."""
        self._skip, _, _ = self._of(parsed)

    def check(self, payload: bytes, start: int) -> None:
        """Takes room for the values of the payload from `start` on. Bytes that are no such payload are left to the
        reader. Raises MisfitError."""
        if len(payload) * self._most <= MAX_VALUES:
            self._room.take(int(len(payload) * self._most))
            return
        with contextlib.suppress(IndexError):
            self.behind(payload, start)

    def behind(self, payload: bytes, start: int) -> int:
        """Returns the place behind the value at `start`, and takes room for it. Raises MisfitError, IndexError."""
        return self._skip(payload, start)

    def _of(self, schema: Any) -> tuple[Skip, int, int]:
        """Returns (skip, values of one, its bytes at least)."""
        if isinstance(schema, list):
            return self._union([self._of(one) for one in schema])
        if isinstance(schema, str):
            return self._named.get(schema) or _plain(schema)
        kind = schema["type"]
        if kind == "array":
            return self._blocks(self._of(schema["items"]), with_keys=False)
        if kind == "map":
            return self._blocks(self._of(schema["values"]), with_keys=True)
        if kind in ("record", "error"):
            found = self._record([self._of(one["type"]) for one in schema["fields"]])
        elif kind == "enum":
            found = (_skip_long, 1, 1)
        elif kind == "fixed":
            size = int(schema["size"])
            found = (lambda data, at: at + size, 1, size)
        else:
            return _plain(kind)
        self._named[schema["name"]] = found
        return found

    def _union(self, branches: list[tuple[Skip, int, int]]) -> tuple[Skip, int, int]:
        skips = [skip for skip, _, _ in branches]

        def skip(data: bytes, at: int) -> int:
            branch, at = _long(data, at)
            if branch < 0:
                raise IndexError(branch)
            return skips[branch](data, at)

        values = max((values for _, values, _ in branches), default=1)
        return skip, values, 1 + min((least for _, _, least in branches), default=0)

    def _record(self, fields: list[tuple[Skip, int, int]]) -> tuple[Skip, int, int]:
        skips = [skip for skip, _, _ in fields]

        def skip(data: bytes, at: int) -> int:
            for one in skips:
                at = one(data, at)
            return at

        return skip, 1 + sum(values for _, values, _ in fields), sum(least for _, _, least in fields)

    def _blocks(self, item: tuple[Skip, int, int], *, with_keys: bool) -> tuple[Skip, int, int]:
        one, values, least = item
        values, least = values + with_keys, least + with_keys
        self._most = max(self._most, -(-values // max(least, 1)))
        room = self._room

        def skip(data: bytes, at: int) -> int:
            while True:
                count, at = _long(data, at)
                if not count:
                    return at
                if count < 0:
                    count, (_, at) = -count, _long(data, at)
                room.take(count * values)
                for _ in range(count):
                    at = one(data, _skip_bytes(data, at) if with_keys else at)
                    if at > len(data):
                        raise IndexError(at)

        return skip, 1, 1


def _plain(kind: str) -> tuple[Skip, int, int]:
    if kind in _SIZES:
        size = _SIZES[kind]
        return lambda data, at: at + size, 1, size
    return (_skip_bytes if kind in ("bytes", "string") else _skip_long), 1, 1


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Returns (a number of Avro's, the place behind it)."""
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _skip_long(data: bytes, at: int) -> int:
    return varint(data, at)[1]


def _skip_bytes(data: bytes, at: int) -> int:
    count, at = _long(data, at)
    if count < 0:
        raise IndexError(at)
    return at + count
