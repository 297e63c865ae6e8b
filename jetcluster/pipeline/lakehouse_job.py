"""A job that keeps tables in step with a stream, batch by batch: what its two kinds share."""

from __future__ import annotations

import argparse
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jetcluster.client.servers import ask
from jetcluster.client.stream_state import stream_state
from jetcluster.pipeline.arguments import server_options_of, source_options
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.lakehouse_payloads import payload_format
from jetcluster.pipeline.naming import named
from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.pipeline.stop import Stop
from jetcluster.pipeline.tables import delta, iceberg
from jetcluster.pipeline.tables.columns import plain_field
from jetcluster.pipeline.tables.files import DEAD
from jetcluster.pipeline.tables.landing import Landing, check_own, dead_letters_of
from jetcluster.pipeline.tables.payload import check_columns
from jetcluster.pipeline.tables.table import Span, Table, TableIdentity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetcluster.client.stream_state import StreamState
    from jetcluster.pipeline.tables.payload import PayloadFormat

_VARIANT: Final = re.compile(r'"(?:type|elementType|keyType|valueType)":"variant"')
"""A type of Spark's that would be a struct of two binary columns here."""


class LandingJob(ABC):
    """The stream, the open tables, and rounds of batches, as both kinds of jobs have them."""

    def __init__(
        self, session: SparkSession, args: argparse.Namespace, state: StreamState, own: Any, columns: Any
    ) -> None:
        """`own`: `pyarrow.Schema` of the columns that any table of this job begins with; `columns`: of a new table.
        Raises UsageError, DataLoss."""
        self._session = session
        self._args = args
        self._created = state.created
        self._stream = state.name
        self._landing: Landing = open_landing(args, state, own, columns)
        self._first = self._end = self._landing.begin(max(state.first, 1))
        self.batches = self.rows = self.dead = 0

    def round(self, stop: Stop) -> None:
        """Lands what is stored now, in batches, unless an end is wanted. What comes meanwhile is for the next round: so
        a round ends, however busy the stream is. Raises DataLoss, and what reading a stream raises."""
        until = self._look().last + 1
        while not stop.wanted and self._step(until):
            pass

    def _step(self, until: int) -> bool:
        """Lands one batch of what is before sequence `until`. Returns False if there is nothing."""
        state = self._look()
        self._check_not_set_back(state)
        start = self._landing.begin(max(state.first, 1))
        end = min(until, start + self._at_most(state))
        if end <= start:
            return False
        span = Span(start, end)
        with named(self._session, f"{self._stream} to tables: sequences {start} to {end - 1}"):
            rows, dead = self._land(span)
        self.batches += 1
        self.rows += rows
        self.dead += dead
        self._end = end
        if not self._args.json:
            letters = f", {dead} dead letters" if dead else ""
            progress(f"batch {self.batches}: {rows} rows of sequences {start} to {end - 1}{letters}")
        return True

    def _check_not_set_back(self, state: StreamState) -> None:
        """Raises DataLoss if a table has more than the stream ever had, by a leader that proves that it leads."""
        end = max(table.end for table in self._landing.tables)
        if end > state.last + 1 and end > (last := self._look(proven=True).last) + 1:
            raise DataLoss(
                f"{self._stream} ends at {last}, and a table of it at {end - 1}: the stream was set back, and its next "
                "messages would count as landed; choose another table"
            )

    def _look(self, *, proven: bool = False) -> StreamState:
        """Returns the stream's state. Raises DataLoss if it is another one than that of the tables. A batch looks
        once more between its reading and its commits: a read that may lack messages does not tell the two apart."""
        question = partial(stream_state, stream=self._stream, linearizable=proven)
        state = ask(server_options_of(self._args), question)
        if state.created != self._created:
            raise DataLoss(
                f"{self._stream} was created anew at {state.created}; the tables follow the one of {self._created}"
            )
        return state

    @abstractmethod
    def _at_most(self, state: StreamState) -> int:
        """Returns the number of sequences that one batch may have."""

    @abstractmethod
    def _land(self, span: Span) -> tuple[int, int]:
        """Returns the numbers of rows and dead letters of a batch that is in all tables now. Looks between reading and
        committing."""

    def _read(self, span: Span, *, lossy: bool) -> DataFrame:
        place = {"created": self._created}
        options = source_options(self._args) | {
            "stream": self._stream,
            "subjects": self._args.subjects,
            "columns": "seq,subject,time,headers,data",
            "startingOffsets": json.dumps({self._stream: place | {"seq": span.start}}),
            "endingOffsets": json.dumps({self._stream: place | {"seq": span.end}}),
            "readPreference": self._args.read_preference,
            "failOnDataLoss": str(not lossy).lower(),
            "reachTimeout": "30s",
        }
        return self._session.read.format("jetstream").options(**options).load()

    def fields(self) -> dict[str, Any]:
        """Returns the fields of the result."""
        tables = [{"name": one.name, "end": one.end, "columns": len(one.columns)} for one in self._landing.tables]
        return {
            "stream": self._stream, "batches": self.batches, "rows": self.rows, "dead_letters": self.dead,
            "start": self._first, "end": self._end, "tables": tables,
        }  # fmt: skip


def open_landing(args: argparse.Namespace, state: StreamState, own: Any, columns: Any) -> Landing:
    """Opens the tables that the arguments name, or makes them. Raises UsageError, DataLoss."""
    rows = identity_of(args, state)
    wanted = [("rows", rows, own, columns)]
    if args.format != "raw":
        wanted.append(("dead", rows._replace(format="dead-letters"), DEAD, DEAD))
    found: dict[str, list[Table]] = {"rows": [], "dead": []}
    catalog = (
        iceberg.open_catalog(args.catalog_name, dict(word.split("=", 1) for word in args.catalog))
        if args.iceberg
        else None
    )
    for kind, identity, first, schema in wanted:
        if args.delta:
            url = args.delta if "://" in args.delta else str(Path(args.delta).absolute())
            found[kind].append(delta.open_table(url if kind == "rows" else dead_letters_of(url), identity, schema))
        if catalog is not None:
            name = args.iceberg if kind == "rows" else dead_letters_of(args.iceberg)
            found[kind].append(iceberg.open_table(catalog, name, identity, schema))
        for table in found[kind]:
            check_own(table, first)
    return Landing(found["rows"], found["dead"])


def identity_of(args: argparse.Namespace, state: StreamState) -> TableIdentity:
    """Returns what the tables of rows are made of."""
    subjects = sorted({word.strip() for word in args.subjects.split(",")})
    return TableIdentity(
        state.name, state.created, "bucket" if args.bucket else "stream", args.format, ",".join(subjects)
    )


def format_of(args: argparse.Namespace, own: Sequence[str]) -> PayloadFormat | None:
    """Returns the form of payloads; None: they are kept as they are. `own`: the table's own columns. Raises UsageError
    before a table is made, which would keep columns that nothing can be parsed to."""
    if not args.schema:
        return payload_format(args, None)
    try:
        declared = declared_columns(args.schema)
        check_columns(declared, own)
        form = payload_format(args, declared)
        assert form is not None, "a schema is for payloads that are parsed"
        form.rows(declared, own)
    except (PySparkException, UsageError) as error:
        raise UsageError(f"--schema: {error}") from None
    return form


def declared_columns(ddl: str) -> Any:
    """Returns a struct of the columns that DDL names. Raises UsageError, PySparkException."""
    schema: Any = StructType.fromDDL(ddl)
    if _VARIANT.search(schema.json()):
        raise UsageError("JSON is not parsed to columns of variant")
    return pa.struct([plain_field(field) for field in to_arrow_schema(schema, timezone="UTC")])
