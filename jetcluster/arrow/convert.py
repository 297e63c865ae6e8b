"""Conversion of messages to `pyarrow.RecordBatch`. Compiled loops have put most of an answer into columns, which become
arrays as they are. Where those are missing, Arrow's kernels find the fields and parse numbers and times, a whole batch
at once, as Python code per message would be slow."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jetcluster import native
from jetcluster.arrow.frames import OWN_FIELDS, PLAIN, Batch, ColumnBatch, MessageBatch, MissingFieldError
from jetcluster.arrow.schema import arrow_schema
from jetcluster.protocol import headers as header_block

_CRLF: Final = b"\r\n"
_PLAIN_START: Final = PLAIN + OWN_FIELDS[2:]
_OWN_LINES: Final = 8
"""Lines in the server's own part of a block: six fields, and what follows each of the two final CRLFs."""
_SUBJECT, _SEQUENCE, _TIME = 1, 2, 3
_NAMES: Final = {_SUBJECT: b"Nats-Subject: ", _SEQUENCE: b"Nats-Sequence: ", _TIME: b"Nats-Time-Stamp: "}
_MAX_FIELD_BYTES: Final = 1 << 30


def digest(subject: bytes, block: bytes, payload: bytes) -> int:
    """Returns a signed 64-bit hash of a message's subject, header block (b"" for none) and payload, not of its sequence
    and time. It is the same on every replica, in a mirror, and after archive and restore."""
    hashed = hashlib.blake2b(b"%d %d %b%b%b" % (len(subject), len(block), subject, block, payload), digest_size=8)
    return int.from_bytes(hashed.digest(), "little", signed=True)


class Converter:
    """Converts messages of `stream` to record batches with the columns `names`, in that order."""

    def __init__(self, names: Sequence[str], stream: str, *, kafka: bool = False, time_unit: str = "us") -> None:
        self._schema = arrow_schema(names, kafka=kafka, time_unit=time_unit)
        makers = _KAFKA if kafka else _COLUMNS | _TIMES[time_unit]
        self._makers = [makers[name] for name in names]
        self._stream = stream
        self._with_blocks = bool({"headers", "headers_raw", "digest"} & set(names))

    def convert(self, batch: Batch) -> Any:
        """Raises MissingFieldError."""
        rows: _Rows
        rows = _ColumnRows(batch, self._stream) if isinstance(batch, ColumnBatch) else _MessageRows(batch, self._stream)
        return pa.RecordBatch.from_arrays([make(rows) for make in self._makers], schema=self._schema)


class _Rows(ABC):
    """One batch during its conversion. Intermediate arrays that several columns need are computed once."""

    stream: str
    count: int
    plain: bool
    """No message has stored headers."""

    @property
    @abstractmethod
    def raw_subjects(self) -> Any:
        """Binary."""

    @property
    @abstractmethod
    def seqs(self) -> Any:
        """64-bit integers."""

    @property
    @abstractmethod
    def nanoseconds(self) -> Any:
        """64-bit integers since 1970."""

    @property
    @abstractmethod
    def payloads(self) -> Any:
        """Binary."""

    @property
    @abstractmethod
    def blocks(self) -> list[bytes]:
        """Stored header blocks, b"" for none."""

    def header_fields(self) -> tuple[Any, ...] | None:
        """Returns the fields of the blocks as `header_fields` of native/rows.pyx does; None: they are to be found."""
        return None

    @functools.cached_property
    def subjects(self) -> Any:
        return _text(self.raw_subjects)

    @functools.cached_property
    def times(self) -> Any:
        return pc.cast(self.nanoseconds, pa.timestamp("ns", "UTC"))

    @functools.cached_property
    def micros(self) -> Any:
        nanoseconds = self.nanoseconds
        if not self.count or pc.min(nanoseconds).as_py() >= 0:
            return pc.cast(pc.divide(nanoseconds, 1000), pa.timestamp("us", "UTC"))
        return pc.cast(pc.floor_temporal(self.times, unit="microsecond"), pa.timestamp("us", "UTC"))

    def constant(self, value: Any, kind: Any) -> Any:
        return pa.repeat(pa.scalar(value, kind), self.count)


class _ColumnRows(_Rows):
    """Rows whose columns are there already."""

    def __init__(self, batch: ColumnBatch, stream: str) -> None:
        self.stream = stream
        self.count = batch.count
        self._batch = batch
        self.plain = not len(batch.blocks[1])

    @functools.cached_property
    def raw_subjects(self) -> Any:
        return _binary(self.count, self._batch.subjects)

    @functools.cached_property
    def seqs(self) -> Any:
        return self._numbers(self._batch.seqs)

    @functools.cached_property
    def nanoseconds(self) -> Any:
        return self._numbers(self._batch.times)

    @functools.cached_property
    def payloads(self) -> Any:
        return _binary(self.count, self._batch.payloads)

    @functools.cached_property
    def blocks(self) -> list[bytes]:
        return [b""] * self.count if self.plain else _binary(self.count, self._batch.blocks).to_pylist()

    def _numbers(self, column: Any) -> Any:
        return pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(column)])

    def header_fields(self) -> tuple[Any, ...] | None:
        rows = native.row_loops()
        return None if rows is None else rows.header_fields(*self._batch.blocks, self.count)


class _MessageRows(_Rows):
    """Rows whose fields are to be found."""

    def __init__(self, batch: MessageBatch, stream: str) -> None:
        self.stream = stream
        self.count = batch.count
        self._payloads = batch.payloads
        self._heads = batch.heads
        self._first = 1
        self.plain = not self.count or batch.heads[0].startswith(_PLAIN_START)
        if self.plain:
            heads = pa.array(batch.heads, pa.binary())
            self.plain = pc.all(pc.starts_with(heads, _PLAIN_START)).as_py() is not False
        if self.plain:
            lines = pc.split_pattern(heads, _CRLF)
            widths = pc.min_max(pc.list_value_length(lines)).as_py()
            self.plain = not self.count or widths == {"min": _OWN_LINES + 1, "max": _OWN_LINES + 1}
        if not self.plain:
            tails = [head[cut:] for head, cut in zip(batch.heads, self._cuts, strict=True)]
            lines = pc.split_pattern(pa.array(tails, pa.binary()), _CRLF)
            self._first = 0
        self._lines = lines

    @functools.cached_property
    def _cuts(self) -> list[int]:
        """The offset in each block at which the server's own fields begin. Clients may have published any line in place
        of NATS/1.0."""
        cuts = [head.rfind(OWN_FIELDS) + 2 for head in self._heads]
        if cuts and min(cuts) < len(_CRLF):
            raise MissingFieldError("a message without Nats-Stream")
        return cuts

    def field(self, at: int) -> Any:
        """Returns one of the server's own fields as a binary array. Raises MissingFieldError."""
        name = _NAMES[at]
        found = pc.list_element(self._lines, self._first + at)
        if pc.all(pc.starts_with(found, name)).as_py() is False:
            raise MissingFieldError(f"a message without {name.decode().strip(': ')} where it belongs")
        return pc.binary_slice(found, len(name), _MAX_FIELD_BYTES)

    @functools.cached_property
    def raw_subjects(self) -> Any:
        return self.field(_SUBJECT)

    @functools.cached_property
    def seqs(self) -> Any:
        return pc.cast(pc.cast(self.field(_SEQUENCE), pa.string()), pa.int64())

    @functools.cached_property
    def nanoseconds(self) -> Any:
        try:
            times = pc.cast(pc.cast(self.field(_TIME), pa.string()), pa.timestamp("ns", "UTC"))
        except pa.ArrowInvalid as error:
            raise MissingFieldError(f"a message without Nats-Time-Stamp where it belongs: {error}") from error
        return pc.cast(times, pa.int64())

    @functools.cached_property
    def payloads(self) -> Any:
        return pa.array(self._payloads, pa.binary())

    @functools.cached_property
    def blocks(self) -> list[bytes]:
        if self.plain:
            return [b""] * self.count
        starts = (head[:cut] for head, cut in zip(self._heads, self._cuts, strict=True))
        return [b"" if start == PLAIN else start + _CRLF for start in starts]


def _text(found: Any) -> Any:
    """Converts binary to string, with replacement characters for invalid UTF-8."""
    try:
        return pc.cast(found, pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.as_py().decode(errors="replace") for value in found], pa.string())


def _raw_subjects(rows: _Rows) -> Any:
    """Returns the subjects that are not UTF-8, and null for all others."""
    found = rows.raw_subjects
    try:
        pc.cast(found, pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if _is_text(value) else value for value in found.to_pylist()], pa.binary())
    return pa.nulls(rows.count, pa.binary())


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers(rows: _Rows) -> Any:
    """Returns maps of name to values in order; null for a message without headers."""
    kind = arrow_schema(["headers"]).field(0).type
    if rows.plain:
        return pa.nulls(rows.count, kind)
    if (found := rows.header_fields()) is not None:
        return _maps(kind, rows.count, *found)
    offsets: list[int | None] = []
    value_offsets: list[int] = [0]
    keys: list[bytes] = []
    values: list[bytes] = []
    for block in rows.blocks:
        begin = len(keys)
        offsets.append(begin if block else None)
        if not block:
            continue
        for line in block.split(_CRLF)[1:-2]:
            key, colon, value = line.partition(b":")
            if colon and key:
                keys.append(key)
                values.append(value.strip(b" \t"))
        if len(keys) - begin > 1 and len(set(keys[begin:])) < len(keys) - begin:  # a name more than once
            fields: dict[bytes, list[bytes]] = {}
            begin_values = value_offsets[-1]
            for key, value in zip(keys[begin:], values[begin_values:], strict=True):
                fields.setdefault(key, []).append(value)
            del keys[begin:], values[begin_values:]
            for key, several in fields.items():
                keys.append(key)
                values += several
                value_offsets.append(len(values))
        else:
            value_offsets += range(value_offsets[-1] + 1, len(values) + 1)
    offsets.append(len(keys))
    items = pa.ListArray.from_arrays(
        pa.array(value_offsets, pa.int32()), _text(pa.array(values, pa.binary())), type=kind.item_type
    )
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), _text(pa.array(keys, pa.binary())), items, type=kind)


def _maps(kind: Any, count: int, bits: Any, offsets: Any, names: tuple[Any, Any], values: tuple[Any, Any]) -> Any:
    """Returns the maps of such fields, in which each name has one value."""
    fields = len(names[0]) // 4 - 1
    ones = pa.array(range(fields + 1), pa.int32())
    items = pa.ListArray.from_arrays(ones, _text(_binary(fields, values)), type=kind.item_type)
    pairs = pa.StructArray.from_arrays([_text(_binary(fields, names)), items], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, count, [pa.py_buffer(bits), pa.py_buffer(offsets)], children=[pairs])


def _binary(count: int, column: tuple[Any, Any]) -> Any:
    """Returns an array of offsets of 32 bits and bytes."""
    return pa.Array.from_buffers(pa.binary(), count, [None, *map(pa.py_buffer, column)])


def _kafka_headers(rows: _Rows) -> Any:
    if rows.plain:
        return pa.nulls(rows.count, arrow_schema(["headers"], kafka=True).field(0).type)
    return kafka_headers(rows.blocks)


def kafka_headers(blocks: Sequence[bytes]) -> Any:
    """Converts header blocks, b"" for none, to the column `headers` of Spark's Kafka source."""
    kind = arrow_schema(["headers"], kafka=True).field(0).type
    offsets: list[int | None] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    for block in blocks:
        offsets.append(len(keys) if block else None)
        for key, value in header_block.parse(block) if block else ():
            keys.append(key)
            values.append(value)
    offsets.append(len(keys))
    pairs = pa.StructArray.from_arrays(
        [_text(pa.array(keys, pa.binary())), pa.array(values, pa.binary())], fields=list(kind.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs, type=kind)


def _digests(rows: _Rows) -> Any:
    subjects, payloads = rows.raw_subjects.to_pylist(), rows.payloads.to_pylist()
    return pa.array(map(digest, subjects, rows.blocks, payloads), pa.int64())


_Maker = Callable[[_Rows], Any]

_COLUMNS: Final[dict[str, _Maker]] = {
    "stream": lambda rows: rows.constant(rows.stream, pa.string()),
    "subject": lambda rows: rows.subjects,
    "seq": lambda rows: rows.seqs,
    "time": lambda rows: rows.micros,
    "time_ns": lambda rows: rows.nanoseconds,
    "headers": _headers,
    "data": lambda rows: rows.payloads,
    "headers_raw": lambda rows: pa.array([block or None for block in rows.blocks], pa.binary()),
    "subject_raw": _raw_subjects,
    "digest": _digests,
}

_TIMES: Final[dict[str, dict[str, _Maker]]] = {"us": {}, "ns": {"time": lambda rows: rows.times}}

_KAFKA: Final[dict[str, _Maker]] = {
    "key": lambda rows: rows.raw_subjects,
    "value": lambda rows: rows.payloads,
    "topic": lambda rows: rows.constant(rows.stream, pa.string()),
    "partition": lambda rows: rows.constant(0, pa.int32()),
    "offset": lambda rows: rows.seqs,
    "timestamp": lambda rows: rows.micros,
    "timestampType": lambda rows: rows.constant(1, pa.int32()),  # LogAppendTime
    "headers": _kafka_headers,
}
