"""Messages as columns, and the protocol's lines made of them without an object per row.

Arrow's own functions join the columns: a row costs a third of a microsecond, with or without our compiled loops.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jetcluster.spark.message import Message, check_size

PLAIN: Final = b"NATS/1.0\r\n"
OVERHEAD_BYTES: Final = 64
"""Bytes that a message is taken to cost besides its own."""
_KNOWN_NUMBERS: Final = 1024


def constant(value: bytes) -> Any:
    """Returns an Arrow scalar."""
    return pa.scalar(value, pa.binary())


def repeated(value: bytes, count: int) -> Any:
    """Returns an array of `count` times `value`."""
    return pa.repeat(constant(value), count)


def joined(*columns: Any) -> Any:
    """Returns the columns, which are binary arrays without nulls or bytes, joined row by row."""
    return pc.binary_join_element_wise(
        *[constant(one) if isinstance(one, bytes) else one for one in columns], constant(b"")
    )


def digits(numbers: Any) -> Any:
    """Returns numbers as text."""
    return pc.cast(pc.cast(numbers, pa.string()), pa.binary())


@dataclass(frozen=True)
class Rows:
    """Messages to publish: binary arrays of one length."""

    subjects: Any
    blocks: Any
    """Header blocks, b"" for none. None: no row has one."""
    payloads: Any
    ids: Any = None
    """Message ids, b"" where the row has none, null where its block has it. None: no row has one."""

    @property
    def count(self) -> int:
        return len(self.payloads)

    @property
    def columns(self) -> tuple[Any, Any, Any, Any]:
        return self.subjects, self.blocks, self.payloads, self.ids

    @property
    def have_ids(self) -> bool:
        """True when any row has an id, in the column or in its block."""
        if self.ids is None:
            return False
        return self.ids.null_count > 0 or not pc.all(pc.equal(self.ids, constant(b""))).as_py()

    def part(self, start: int, stop: int) -> Rows:
        """Returns the rows from `start` up to `stop`, without a copy."""
        return Rows(*[None if one is None else one.slice(start, stop - start) for one in self.columns])

    def taken(self, places: Any) -> Rows:
        """Returns the rows at these places."""
        return Rows(*[None if one is None else one.take(places) for one in self.columns])

    def sizes(self) -> Any:
        """Returns the bytes of each row, with OVERHEAD_BYTES."""
        size = pc.add(pc.binary_length(self.payloads), pc.binary_length(self.subjects))
        if self.blocks is not None:
            size = pc.add(size, pc.binary_length(self.blocks))
        return pc.add(size, OVERHEAD_BYTES)

    def bytes_of(self) -> int:
        """Returns the bytes of all rows, with OVERHEAD_BYTES for each."""
        return int(pc.sum(self.sizes()).as_py() or 0)

    def messages(self) -> Iterator[Message]:
        """Yields the rows one by one, without their ids."""
        blocks = [b""] * self.count if self.blocks is None else self.blocks.to_pylist()
        yield from map(Message, self.subjects.to_pylist(), blocks, self.payloads.to_pylist())


def together(parts: list[Rows]) -> Rows:
    """Returns the rows of several, which may lack columns that others have."""
    if len(parts) == 1:
        return parts[0]

    def column(pieces: tuple[Any, ...]) -> Any:
        if all(piece is None for piece in pieces):
            return None
        filled = [
            repeated(b"", part.count) if piece is None else piece for part, piece in zip(parts, pieces, strict=True)
        ]
        return pa.concat_arrays(filled)

    return Rows(*map(column, zip(*[part.columns for part in parts], strict=True)))


class Cutter:
    """Cuts rows, in whatever portions they come, into parts that depend on the rows alone, as a second try needs."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """Rows of a part, and their bytes (`Rows.sizes`) unless it has only one row."""
        assert most > 0, most
        self._most = most
        self._most_bytes = most_bytes
        self._rest: list[Rows] = []

    def cut(self, rows: Rows) -> Iterator[Rows]:
        """Yields all rows in parts, when no more are to come."""
        yield from self.add(rows)
        yield from self.rest()

    def add(self, rows: Rows) -> Iterator[Rows]:
        """Yields the parts that are complete; the rest waits for more rows."""
        rows = together([*self._rest, rows])
        self._rest = []
        for part in _cuts(rows, self._most, self._most_bytes):
            if part.complete:
                yield part.rows
            elif part.rows.count:
                self._rest = [part.rows]

    def rest(self) -> Iterator[Rows]:
        """Yields the last part, if there is one."""
        rest, self._rest = self._rest, []
        yield from rest


class _Cut(NamedTuple):
    rows: Rows
    complete: bool
    """No more row fits in."""


def _cuts(rows: Rows, most: int, most_bytes: int) -> Iterator[_Cut]:
    at = 0
    while at < rows.count:
        part = rows.part(at, min(at + most, rows.count))
        sums = pc.cumulative_sum(part.sizes())
        fits = part.count
        if sums[-1].as_py() > most_bytes:
            fits = max(1, pc.sum(pc.less_equal(sums, most_bytes)).as_py())
        yield _Cut(part.part(0, fits), fits == most or fits < part.count)
        at += fits


def render(rows: Rows, reply: bytes, limit: int, added: Any = None) -> memoryview:
    """Returns the PUB and HPUB lines of rows, with a reply subject (b"" for none). `added`: an array of lines with line
    breaks, which stand behind each row's own header lines; None for none. Raises PublishError when a message exceeds
    the server's max_payload (`limit`)."""
    heads, sizes = _heads(rows, added)
    if pc.max(sizes).as_py() > limit:
        at = pc.index(pc.greater(sizes, limit), True).as_py()
        check_size(next(rows.part(at, at + 1).messages()), b"" if heads is None else heads[at].as_py(), limit)
    place = b" %b " % reply if reply else b" "
    size = digits(sizes)
    if heads is None:
        return _bytes(joined(b"PUB ", rows.subjects, place, size, b"\r\n", rows.payloads, b"\r\n"))
    lengths = pc.binary_length(heads)
    numbers = joined(digits(lengths), b" ")
    verb: Any = b"HPUB "
    if pc.min(lengths).as_py() == 0:
        bare = pc.equal(lengths, 0)
        verb = pc.if_else(bare, constant(b"PUB "), constant(b"HPUB "))
        numbers = pc.if_else(bare, constant(b""), numbers)
    return _bytes(joined(verb, rows.subjects, place, numbers, size, b"\r\n", heads, rows.payloads, b"\r\n"))


def _heads(rows: Rows, added: Any) -> tuple[Any, Any]:
    """Returns header blocks as they are sent (None: none has one), and sizes of blocks and payloads."""
    sizes = pc.binary_length(rows.payloads)
    if added is None:
        heads = rows.blocks
    elif rows.blocks is None:
        heads = joined(PLAIN, added, b"\r\n")
    else:
        opened = pc.if_else(pc.equal(pc.binary_length(rows.blocks), 0), constant(PLAIN + b"\r\n"), rows.blocks)
        heads = joined(pc.binary_slice(opened, 0, -2), added, b"\r\n")
    return heads, sizes if heads is None else pc.add(sizes, pc.binary_length(heads))


def _bytes(lines: Any) -> memoryview:
    """Returns the bytes of all values of a new array, which lie in a row."""
    end = int.from_bytes(lines.buffers()[1][4 * len(lines) : 4 * len(lines) + 4].to_pybytes(), "little")
    return memoryview(lines.buffers()[2])[:end]


@functools.cache
def numbers_from_one() -> Any:
    """Returns 1, 2, 3, ... as text, for places in a batch."""
    return digits(pa.array(range(1, _KNOWN_NUMBERS + 1), pa.int64()))
