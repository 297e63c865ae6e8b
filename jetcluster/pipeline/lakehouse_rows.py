"""A stream to tables with one row per message, for `jetcluster pipeline lakehouse`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from jetcluster import faults
from jetcluster.pipeline.lakehouse_job import LandingJob, format_of
from jetcluster.pipeline.tables.columns import grown, required
from jetcluster.pipeline.tables.files import OWN, RAW, RESULT, WriteTask, remove, results_of, table_schema
from jetcluster.pipeline.tables.table import DataFile, Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetcluster.client.stream_state import StreamState

BATCH_SEQUENCES: Final = 1_000_000


class RowsJob(LandingJob):
    """Tasks read their part of a batch, parse it, and write files for all tables; the driver commits them."""

    def __init__(self, session: SparkSession, args: argparse.Namespace, state: StreamState) -> None:
        self._format = form = format_of(args, OWN.names)
        declared = form.columns if form is not None else None
        own = RAW if form is None else OWN
        super().__init__(session, args, state, own, own if declared is None else table_schema(declared))
        self._columns: Any = None
        if form is not None:
            self._columns = required(self._landing.columns(OWN, declared), declared)
            self._landing.grow(table_schema(self._columns))

    def _at_most(self, state: StreamState) -> int:
        return int(self._args.max_per_batch or BATCH_SEQUENCES)

    def _land(self, span: Span) -> tuple[int, int]:
        files = self._write(span)
        self._look()
        faults.point("lakehouse.written")
        self._landing.commit(
            span, lambda place, table, part: table.append([one for one in files if one.table == place], part)
        )
        counts = [sum(one.rows for one in files if one.table == place) for place in range(len(self._landing.tables))]
        first = len(self._landing.dead)
        return max(counts[first:]), max(counts[:first], default=0)

    def _write(self, span: Span) -> list[DataFile]:
        """Writes the files of a batch, and sees that they are there. New fields become columns first, and then it is
        written again with them."""
        rows = self._read(span, lossy=self._args.allow_loss)
        while True:
            parts = self._landing.parts()
            task = WriteTask(span, parts, self._columns, self._format)
            files, found = results_of(rows.mapInArrow(task, RESULT).collect())
            self._landing.check_written(files)
            wider = grown(self._columns, found, OWN.names) if found is not None else self._columns
            if wider == self._columns:
                return files
            for place, part in enumerate(parts):
                remove(part.folder, [one.name for one in files if one.table == place])
            self._landing.grow(table_schema(wider))
            self._columns = wider
