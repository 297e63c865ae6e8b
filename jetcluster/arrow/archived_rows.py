"""Conversion of an archive's rows to a query's columns, equal to those that `Converter` makes of the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from jetcluster.arrow.convert import kafka_headers
from jetcluster.arrow.schema import arrow_schema


class ArchivedConverter:
    """Converts rows of the archive of `stream` to record batches with the columns `names`, in that order."""

    def __init__(self, names: Sequence[str], stream: str, *, kafka: bool = False, time_unit: str = "us") -> None:
        self._schema = arrow_schema(names, kafka=kafka, time_unit=time_unit)
        self._time = "time_ns" if time_unit == "ns" else "time"
        self._stream = stream
        self._kafka = kafka
        needed = [one for name in names for one in (_KAFKA_NEEDS[name] if kafka else (name,)) if one != "stream"]
        self.columns = list(dict.fromkeys(self._time if name == "time" else name for name in needed))
        """The columns of the archive that are needed."""

    def convert(self, batch: Any) -> Any:
        """`batch` has `columns`, and may have more."""
        return pa.RecordBatch.from_arrays([self._made(batch, field) for field in self._schema], schema=self._schema)

    def _made(self, batch: Any, field: Any) -> Any:
        if self._kafka:
            return _KAFKA[field.name](batch, self._stream).cast(field.type)
        if field.name == "stream":
            return pa.repeat(pa.scalar(self._stream, field.type), batch.num_rows)
        return batch[self._time if field.name == "time" else field.name].cast(field.type)


def _keys(batch: Any, stream: str) -> Any:
    pairs = zip(batch["subject"].to_pylist(), batch["subject_raw"].to_pylist(), strict=True)
    return pa.array([name.encode() if raw is None else raw for name, raw in pairs], pa.binary())


def _headers(batch: Any, stream: str) -> Any:
    return kafka_headers([block or b"" for block in batch["headers_raw"].to_pylist()])


def _constant(value: int) -> Callable[[Any, str], Any]:
    return lambda batch, stream: pa.repeat(pa.scalar(value, pa.int32()), batch.num_rows)


_KAFKA_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "key": ("subject", "subject_raw"),
    "value": ("data",),
    "topic": (),
    "partition": (),
    "offset": ("seq",),
    "timestamp": ("time",),
    "timestampType": (),
    "headers": ("headers_raw",),
}
_KAFKA: Final[dict[str, Callable[[Any, str], Any]]] = {
    "key": _keys,
    "value": lambda batch, stream: batch["data"],
    "topic": lambda batch, stream: pa.repeat(pa.scalar(stream, pa.string()), batch.num_rows),
    "partition": _constant(0),
    "offset": lambda batch, stream: batch["seq"],
    "timestamp": lambda batch, stream: batch["time"],
    "timestampType": _constant(1),
    "headers": _headers,
}
