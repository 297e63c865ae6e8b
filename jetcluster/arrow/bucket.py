"""`read_bucket`: a key-value bucket as a table of keys, or as the history of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jetcluster.arrow.arguments import source_options, unix_nanoseconds
from jetcluster.arrow.options import OptionError
from jetcluster.arrow.reader import BUFFER_BYTES, read_extents, resolved
from jetcluster.arrow.resolve import check_loss
from jetcluster.arrow.schema import BUCKET_TYPES, arrow_schema
from jetcluster.client.servers import ServerOptions
from jetcluster.protocol import headers

COLUMNS: Final = ("subject", "data", "seq", "time", "headers_raw")
SCHEMA: Final = pa.schema([
    ("key", pa.string()), ("value", pa.binary()), ("operation", pa.string()), ("revision", pa.int64()),
    ("created", pa.timestamp("ns", "UTC")),
])  # fmt: skip
PUT, DELETE, PURGE = "PUT", "DEL", "PURGE"
_MARKERS: Final = {b"Remove": DELETE, b"MaxAge": PURGE, b"Purge": PURGE}
"""Operations that a server's own markers stand for (ADR-48)."""
_PREFIX: Final = r"^\$KV\.[^.]+\."


def read_bucket(
    servers: str | Sequence[str] | ServerOptions,
    bucket: str,
    keys: str | Sequence[str] = ">",
    *,
    history: bool = False,
    deleted: bool = False,
    as_of: int | datetime | None = None,
    connections: int | None = None,
    batch_rows: int = 10_000,
    buffer_bytes: int = BUFFER_BYTES,
    **more: Any,
) -> pa.RecordBatchReader:
    """Returns a reader of the bucket's keys that match `keys`, with columns `key`, `value`, `operation` (PUT, DEL or
    PURGE), `revision` and `created`: one row for each key that had a value at the call, which is that value or a later
    one. Keys that are deleted are left out, unless `deleted`. With `history`, all stored revisions of all keys, by
    revision, deletions included.

    `as_of`: values as of that revision or time, inclusive; a key whose value of then is not stored any more is left
    out. `more` are arguments of `read_stream`: `consistent`, `min_last`, `max_staleness`, `prefer` and the like. Raises
    as `read_stream`."""
    if not bucket or "." in bucket:
        raise OptionError(f"{bucket!r} is no bucket's name")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    if isinstance(as_of, int) and (isinstance(as_of, bool) or as_of < 1):
        raise OptionError(f"as_of is a revision, from 1 on, or a time, not {as_of!r}")
    filters = [">"] if ">" in wanted else [f"$KV.*.{key}" for key in wanted]
    given: dict[str, Any] = {"columns": COLUMNS, **more}
    options = source_options(servers, [f"KV_{bucket}"], None, None, filters, given)
    options = replace(
        options, arrow_rows=batch_rows, mode="scan" if history else "last", newest=as_of is None,
        as_of_seq=as_of if isinstance(as_of, int) else 0,
        as_of_time=unix_nanoseconds(as_of) if isinstance(as_of, datetime) else None,
    )  # fmt: skip
    extents, options = resolved(options)
    check_loss(extents)
    batches = read_extents(extents, options, connections, buffer_bytes)
    return pa.RecordBatchReader.from_batches(SCHEMA, _rows(batches, with_deleted=deleted or history))


def _rows(batches: Iterator[pa.RecordBatch], *, with_deleted: bool) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        subjects, data, seqs, times, blocks = batch.columns
        keys = pc.replace_substring_regex(subjects, _PREFIX, "")
        found = pa.RecordBatch.from_arrays([keys, data, operations(blocks), seqs, times], schema=SCHEMA)
        yield found if with_deleted else found.filter(pc.equal(found.column("operation"), PUT))


_NEEDS: Final = {
    "key": ("subject",), "value": ("data", "headers_raw"), "operation": ("headers_raw",), "revision": ("seq",),
    "created": ("time",),
}  # fmt: skip


class BucketColumns:
    """Columns of a bucket (`schema.BUCKET_TYPES`) from those of its stream, in the order of `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._schema = arrow_schema(names, BUCKET_TYPES)
        self.needed = list(dict.fromkeys(column for name in names for column in _NEEDS[name]))
        """The columns of the stream that are needed."""

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` has the columns `needed`. The value is null where the key was deleted."""
        return pa.RecordBatch.from_arrays(
            [self._column(batch, name) for name in self._schema.names], schema=self._schema
        )

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name == "key":
            return pc.replace_substring_regex(batch.column("subject"), _PREFIX, "")
        if name in ("revision", "created"):
            return batch.column(_NEEDS[name][0])
        found = operations(batch.column("headers_raw"))
        if name == "operation":
            return found
        return pc.if_else(pc.equal(found, PUT), batch.column("data"), pa.scalar(None, pa.binary()))


def operations(blocks: pa.Array) -> pa.Array:
    """Returns the operation of each message by its stored header block, which is null for none."""
    if blocks.null_count == len(blocks):
        return pa.repeat(pa.scalar(PUT), len(blocks))
    return pa.array([PUT if block is None else _operation(block) for block in blocks.to_pylist()], pa.string())


def _operation(block: bytes) -> str:
    named = headers.get(block, b"KV-Operation")
    if named is not None:
        return {b"DEL": DELETE, b"PURGE": PURGE}.get(named, PUT)
    return _MARKERS.get(headers.get(block, b"Nats-Marker-Reason") or b"", PUT)
