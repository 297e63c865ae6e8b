"""A key-value bucket to tables with one row per key, for `jetcluster pipeline lakehouse`.

Of each key only the last message of a batch counts. A put replaces the row or adds it; a delete, a purge or a marker of
the server removes it, and so does a value that does not parse, which is a dead letter. Keys can go without a marker: by
`max_age`, by `nats kv purge` of markers, by an administrator. So after its first round, and from time to time after
others, the job removes the keys that the bucket does not have.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jetcluster import faults
from jetcluster.pipeline.arguments import server_options_of
from jetcluster.pipeline.lakehouse_job import LandingJob, format_of
from jetcluster.pipeline.snapshot import OPERATION, key_of
from jetcluster.pipeline.stop import Stop
from jetcluster.pipeline.tables.columns import grown, required
from jetcluster.pipeline.tables.files import DEAD, RAW, write_rows
from jetcluster.pipeline.tables.table import ConflictError, Span, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetcluster.client.connection import Connection
    from jetcluster.client.stream_state import StreamState

BATCH_SEQUENCES: Final = 100_000
BATCH_BYTES: Final = 256 << 20
"""The changes of a bucket are merged in the driver's memory, so that its batches are smaller: messages, and bytes."""
RECONCILE_SECONDS: Final = 600.0
"""A following job looks so often for keys that went without a marker, as limits and purges do it."""
RAW_KEYED: Final = pa.schema(
    [("key", pa.string()), ("value", pa.binary()), ("revision", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))]
)
"""The columns of a table of values as they are."""
OWN_KEYED: Final = pa.schema(
    [("_key", pa.string()), ("_revision", pa.int64()), ("_time", RAW_KEYED.field("time").type)]
)
"""The columns that a table of parsed values has before those of the values."""


class KeyedJob(LandingJob):
    """Tasks find the last message of each key, the driver parses these, and merges them."""

    def __init__(self, session: SparkSession, args: argparse.Namespace, state: StreamState) -> None:
        self._format = form = format_of(args, OWN_KEYED.names)
        declared = form.columns if form is not None else None
        self._columns: Any = None if form is None else declared or pa.struct([])
        super().__init__(session, args, state, RAW_KEYED if self._columns is None else OWN_KEYED, self._schema())
        self._looked: float | None = None
        self.removed = 0
        if form is not None:
            self._columns = required(self._landing.columns(OWN_KEYED, declared), declared)
            self._landing.grow(self._schema())

    def round(self, stop: Stop) -> None:
        super().round(stop)
        if not stop.wanted and (self._looked is None or time.monotonic() - self._looked >= RECONCILE_SECONDS):
            self._reconcile()
            self._looked = time.monotonic()

    def fields(self) -> dict[str, Any]:
        return super().fields() | {"removed_without_marker": self.removed}

    def _schema(self) -> Any:
        return (
            RAW_KEYED
            if self._columns is None
            else pa.schema([*OWN_KEYED, *(field.with_nullable(True) for field in self._columns)])
        )

    def _at_most(self, state: StreamState) -> int:
        mean = max(state.bytes // max(state.messages, 1), 1)
        return max(min(self._args.max_per_batch or BATCH_SEQUENCES, BATCH_BYTES // mean), 1)

    def _land(self, span: Span) -> tuple[int, int]:
        last = self._last(span)
        is_put = pa.compute.equal(last["op"], "PUT")
        put = last.filter(is_put)
        gone = last.filter(pa.compute.invert(is_put))["key"].to_pylist()
        rows, dead = (put.select(RAW_KEYED.names).cast(RAW_KEYED), None) if self._columns is None else self._parse(put)
        if dead is not None:
            gone += dead.pop("key")
        letters = pa.table(dead, schema=DEAD) if dead is not None else DEAD.empty_table()
        self._look()
        faults.point("lakehouse.written")

        def change(place: int, table: Table, part: Span) -> None:
            if place < len(self._landing.dead):
                new = letters.filter(pa.compute.greater_equal(letters["seq"], part.start))
                table.append(write_rows(table.folder, part, new), part)
            else:
                table.merge(rows, gone, part)

        self._landing.commit(span, change)
        return rows.num_rows, letters.num_rows

    def _last(self, span: Span) -> Any:
        """Returns a `pyarrow.Table` of the last message of each key: key, op, value, revision, time, and RAW."""
        from pyspark.sql import functions as F

        rows = self._read(span, lossy=True)  # a bucket removes what is replaced
        last = rows.groupBy("subject").agg(F.max_by(F.struct("seq", "time", "headers", "data"), "seq").alias("last"))
        return last.select("subject", "last.*").select(
            key_of(F.col("subject")).alias("key"), F.expr(OPERATION).alias("op"), F.col("data").alias("value"),
            F.col("seq").alias("revision"), *RAW.names,
        ).toArrow()  # fmt: skip

    def _parse(self, put: Any) -> tuple[Any, dict[str, Any]]:
        """Returns (rows, columns of the dead letters with their `key`) of parsed values; new fields become columns."""
        assert self._format is not None
        payloads = put["data"].to_pylist()
        while True:
            parsed = self._format.rows(self._columns, OWN_KEYED.names).parse(payloads)
            wider = grown(self._columns, parsed.found, OWN_KEYED.names)
            if wider == self._columns:
                break
            self._columns = wider
            self._landing.grow(self._schema())
        good, dead = put.take(pa.array(parsed.good, pa.int64())), put.take(pa.array(parsed.dead, pa.int64()))
        own = [good[name[1:]] for name in OWN_KEYED.names]
        rows = pa.table([*own, *parsed.columns], names=self._schema().names).cast(self._schema())
        letters = {name: dead[name].cast(RAW.field(name).type) for name in RAW.names}
        return rows, letters | {"why": parsed.why, "key": dead["key"].to_pylist()}

    def _reconcile(self) -> None:
        """Removes the rows of keys that the bucket has not. A key that is put again meanwhile has a later sequence
        than the tables have, so that a later batch adds it."""
        for table in self._landing.rows:
            gone = self._absent(table.keys()) if table.end else []
            if gone:
                self._look()
                try:
                    table.merge(table.columns.empty_table(), gone, Span(table.end, table.end))
                    self.removed += len(gone)
                except ConflictError:  # a compaction, perhaps: the next look removes them
                    table.reload()

    def _absent(self, keys: set[str]) -> list[str]:
        """Returns those of the keys that the bucket has not."""
        from functools import partial

        from jetcluster.arrow import listing
        from jetcluster.client.servers import ask
        from jetcluster.client.stream_state import leader_next

        filters = tuple(word.strip() for word in self._args.subjects.split(","))
        server = server_options_of(self._args)

        def unlisted(link: Connection) -> tuple[str, list[str]]:
            left, prefix = set(keys), f"$KV.{self._args.bucket}."
            for names in listing.names(partial(listing.page, link, self._stream), filters, self._end - 1):
                if names:  # a mirrored bucket has the subjects of its origin
                    prefix = names[0][: names[0].index(".", names[0].index(".") + 1) + 1]
                left.difference_update(name.removeprefix(prefix) for name in names)
            return prefix, sorted(left)

        prefix, missing = ask(server, unlisted)

        def question(link: Connection) -> list[str]:  # a list in pages may miss a subject while others go
            return [key for key in missing if leader_next(link, self._stream, 1, prefix + key) is None]

        return ask(server, question) if missing else []
