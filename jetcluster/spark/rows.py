"""`RowReader`: a task's record batches as messages in columns, checked before any is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal, matches
from jetcluster.spark.fence import MARKER
from jetcluster.spark.render import Rows, constant, repeated
from jetcluster.spark.sink_options import SinkError, SinkOptions

MSG_ID: Final = b"Nats-Msg-Id"
RESERVED: Final = (b"Nats-Batch-", b"Nats-Expected-", b"Nats-Stream-Source", b"Nats-Required-Api-Level", MARKER)
"""Prefixes of headers that have a meaning for the server, which would act on them or refuse the message."""
_KEY: Final = re.compile(r"(?!\.)[-/_=.a-zA-Z0-9]+(?<!\.)")
_OPERATIONS: Final[dict[str | None, bytes | None]] = {
    "PUT": None,
    "DEL": b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n",
    "PURGE": b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n",
}
"""Operation on a key -> the header block that clients of buckets send for it."""
_NO_ID: Final = r"[\r\n]|^[ \t]|[ \t]$"
_REMEMBERED_SUBJECTS: Final = 100_000


class RowError(SinkError):
    """A row cannot be published."""


class RowReader:
    """Converts record batches of one task to rows."""

    def __init__(self, options: SinkOptions, patterns: Sequence[bytes]) -> None:
        """`patterns` are the stream's subjects."""
        self._stream = options.stream
        self._bucket = options.bucket
        self._subject = options.subject.encode()
        self._drop = options.drop_reserved
        self._with_ids = options.idempotence == "msgid"
        self._reserved = (*RESERVED, MSG_ID) if options.idempotence == "fence" else RESERVED
        self._needles = tuple(b"\n" + name for name in self._reserved)
        self._patterns = patterns
        self._good: set[bytes] = set()

    def rows(self, batch: Any) -> Rows:
        """Returns the rows of a `pyarrow.RecordBatch`. Raises RowError."""
        if self._bucket:
            batch = bucket_messages(batch, self._bucket)
        names = batch.schema.names

        def column(name: str) -> Any:
            """None where it is missing, or null in all rows."""
            found = batch.column(names.index(name)) if name in names else None
            return None if found is None or found.null_count == len(found) else found

        subjects = self._subjects(column("subject"), column("subject_raw"), batch.num_rows)
        data, ids = column("data"), column("msg_id") if self._with_ids else None
        payloads = repeated(b"", batch.num_rows) if data is None else _binary(data)
        if ids is not None:
            ids = _binary(ids)
            _check_ids(ids)
        maps, raw = column("headers"), column("headers_raw")
        if maps is None and raw is None:
            return Rows(subjects, None, payloads, ids)
        blocks, ids = self._blocks(maps, raw, subjects, ids)
        return Rows(subjects, blocks, payloads, ids)

    def _subjects(self, texts: Any, raw: Any, count: int) -> Any:
        if self._subject:
            found = repeated(self._subject, count)
        else:
            found = repeated(b"", count) if texts is None else _binary(texts)
            if raw is not None:  # set where the subject is not UTF-8
                raw = _binary(raw)
                found = pc.if_else(pc.equal(raw, constant(b"")), found, raw)
        for subject in pc.unique(found).to_pylist():
            if subject not in self._good:
                self._check_subject(subject)
        return found

    def _check_subject(self, subject: bytes) -> None:
        if not is_valid_literal(subject):
            raise RowError(f"subject {subject.decode(errors='replace')!r} is not one that can be published to")
        if not any(matches(subject, pattern) for pattern in self._patterns):
            shown = b", ".join(self._patterns).decode()
            raise RowError(
                f"stream {self._stream} does not take subject {subject.decode(errors='replace')}: it has {shown}"
            )
        if len(self._good) >= _REMEMBERED_SUBJECTS:
            self._good.clear()
        self._good.add(subject)

    def _blocks(self, maps: Any, raw: Any, subjects: Any, ids: Any) -> tuple[Any, Any]:
        """Returns header blocks, and ids: null where the block has the row's id."""
        count = len(subjects)
        blocks = [b""] * count
        wanted: list[bytes | None] = [b""] * count if ids is None else ids.to_pylist()
        every_map = [None] * count if maps is None else maps.to_pylist()
        every_raw = [None] * count if raw is None else raw.to_pylist()
        own = False
        for at, (pairs, block) in enumerate(zip(every_map, every_raw, strict=True)):
            if not block and not pairs:
                continue
            block = self._checked(block or build(pairs), subjects[at].as_py())
            if self._with_ids and (found := header_block.get(block, MSG_ID)):
                if wanted[at] in (b"", found):
                    wanted[at] = None
                    own = True
                else:
                    block = header_block.remove(block, MSG_ID)
            blocks[at] = block
        kept = pa.array(wanted, pa.binary()) if own or ids is not None else None
        return (pa.array(blocks, pa.binary()) if any(blocks) else None), kept

    def _checked(self, block: bytes, subject: bytes) -> bytes:
        if not block:
            return b""
        if not header_block.is_well_formed(block):
            raise RowError(
                f"headers_raw of a row on {subject.decode(errors='replace')} is no header block: {block[:60]!r}"
            )
        if not any(needle in block for needle in self._needles):
            return block
        named = [key for key, _ in header_block.parse(block) if key.startswith(self._reserved)]
        if named and not self._drop:
            raise RowError(
                f"a row on {subject.decode(errors='replace')} has header {named[0].decode()}, "
                "which means something to the server; "
                "reservedHeaders=drop leaves such headers out"
            )
        for key in named:
            block = header_block.remove(block, key)
        return b"" if block == b"NATS/1.0\r\n\r\n" else block


def bucket_messages(batch: Any, bucket: str) -> Any:
    """Returns the messages that put or delete the keys of a `pyarrow.RecordBatch`. Raises RowError."""
    keys = batch.column("key").to_pylist()
    for key in keys:
        if key is None or _KEY.fullmatch(key) is None:
            raise RowError(f"{key!r} is no key of a bucket: letters, digits and - _ / = . are, no dot first or last")
    names, columns = ["subject", "data"], [pa.array([f"$KV.{bucket}.{key}" for key in keys]), batch.column("value")]
    if "operation" in batch.schema.names:
        given = batch.column("operation").to_pylist()
        if unknown := set(given) - {None, *_OPERATIONS}:
            raise RowError(f"operation is {', '.join(map(str, _OPERATIONS))} or null, not {min(unknown)!r}")
        blocks = pa.array([_OPERATIONS.get(one) for one in given], pa.binary())
        columns[1] = pc.if_else(pc.is_valid(blocks), pa.scalar(None, columns[1].type), columns[1])
        names, columns = [*names, "headers_raw"], [*columns, blocks]
    if "msg_id" in batch.schema.names:
        names, columns = [*names, "msg_id"], [*columns, batch.column("msg_id")]
    return pa.RecordBatch.from_arrays(columns, names)


def _check_ids(ids: Any) -> None:
    """Raises RowError for an id that would be header lines of its own, or that a server takes for another one, as it
    takes the value of a header without blanks around it."""
    wrong = pc.match_substring_regex(ids, _NO_ID)
    if pc.any(wrong).as_py():
        shown = ids[pc.index(wrong, True).as_py()].as_py()
        raise RowError(f"msg_id {shown[:60]!r} has a line break, or a blank at an end")


def runs(rows: Rows) -> Iterator[Rows]:
    """Yields the rows in parts without a subject twice, so that none is stored before an earlier one of its subject
    when those that have no ack are sent again."""
    if pc.count_distinct(rows.subjects).as_py() == rows.count:
        yield rows
        return
    seen: set[bytes] = set()
    first = 0
    for at, subject in enumerate(rows.subjects.to_pylist()):
        if subject in seen:
            yield rows.part(first, at)
            seen, first = set(), at
        seen.add(subject)
    yield rows.part(first, rows.count)


def _binary(column: Any) -> Any:
    """Returns a column of text or bytes as bytes, b"" for null."""
    column = column.cast(pa.binary())
    return column.fill_null(b"") if column.null_count else column


def build(headers: Sequence[tuple[str, Any]]) -> bytes:
    """Returns the header block for the pairs of a map column: name and value, or values. Raises RowError."""
    pairs: list[tuple[bytes, bytes]] = []
    for name, values in headers:
        key = name.encode()
        if not key or any(c in b": \t\r\n" for c in key):
            raise RowError(f"{name!r} is no name of a header")
        for value in [values] if isinstance(values, str) else values or ():
            text = (value or "").encode()
            if b"\r" in text or b"\n" in text:
                raise RowError(f"header {name} has a line break in its value")
            pairs.append((key, text))
    return header_block.build(pairs) if pairs else b""
