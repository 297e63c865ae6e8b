"""Rows of an Arrow batch as messages: subject, header block, payload, and the id if a column has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal, matches
from jetcluster.spark.fence import MARKER
from jetcluster.spark.publish import Message
from jetcluster.spark.sink_options import SinkError, SinkOptions

MSG_ID: Final = b"Nats-Msg-Id"
RESERVED: Final = (b"Nats-Batch-", b"Nats-Expected-", b"Nats-Stream-Source", b"Nats-Required-Api-Level", MARKER)
"""Headers of the protocol: sent again they would mean something, or be refused. By prefix."""
_REMEMBERED_SUBJECTS: Final = 100_000


class RowError(SinkError):
    """A row that cannot be published."""


class Row(NamedTuple):
    message: Message
    msg_id: bytes
    """b"" when the row has none."""


class RowReader:
    """Turns batches of one task into rows."""

    def __init__(self, options: SinkOptions, patterns: Sequence[bytes]) -> None:
        """`patterns`: subjects that the stream takes."""
        self._stream = options.stream
        self._subject = options.subject.encode()
        self._drop = options.drop_reserved
        self._reserved = (*RESERVED, MSG_ID) if options.idempotence == "fence" else RESERVED
        self._needles = tuple(b"\n" + name for name in self._reserved)
        self._patterns = patterns
        self._good: set[bytes] = set()

    def rows(self, batch: Any) -> Iterator[Row]:
        """The rows of a `pyarrow.RecordBatch`. Raises RowError."""
        size = batch.num_rows
        names = batch.schema.names

        def column(name: str) -> list[Any]:
            return batch.column(names.index(name)).to_pylist() if name in names else [None] * size

        subjects = [self._subject] * size if self._subject else column("subject")
        if not self._subject and "subject_raw" in names:  # what `subject` cannot show: it is no UTF-8
            subjects = [raw or text for raw, text in zip(column("subject_raw"), subjects, strict=True)]
        columns = zip(subjects, column("data"), column("headers"), column("headers_raw"), column("msg_id"), strict=True)
        good = self._good
        for subject, data, headers, raw, msg_id in columns:
            if subject.__class__ is not bytes:
                subject = b"" if subject is None else subject.encode()
            if subject not in good:
                self._check_subject(subject)
            block = raw or (build(headers) if headers else b"")
            if block:
                block = self._checked(block, subject)
            payload = data if data.__class__ is bytes else b"" if data is None else data.encode()
            found = msg_id.encode() if msg_id else header_block.get(block, MSG_ID) or b"" if block else b""
            yield Row(Message(subject, block, payload), found)

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

    def _checked(self, block: bytes, subject: bytes) -> bytes:
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


def build(headers: Sequence[tuple[str, Any]]) -> bytes:
    """The block of a map column: name -> value, or values. Raises RowError."""
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
