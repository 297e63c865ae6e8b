"""`read_stream`: streams as a `pyarrow.RecordBatchReader`, read in bulk from several replicas at once.

What is read is decided when it is called: the first and the last sequence of every stream. The ranges are cut into
parts, which threads ask for from different servers (`parallel`). Each part is complete, by the proofs of `fetch`, or an
error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pyarrow as pa

from jetcluster.arrow.arguments import Place, source_options
from jetcluster.arrow.link import told
from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.parallel import ParallelRead
from jetcluster.arrow.resolve import Extent, check_loss, extents_of, tasks_of
from jetcluster.arrow.schema import arrow_schema
from jetcluster.client.connection import Connection
from jetcluster.client.servers import ServerOptions, ask

PART_ROWS: Final = 100_000
PART_BYTES: Final = 16 << 20
"""Sequences of one part at most, and about so many bytes, by the mean message of its stream."""
PART_SUBJECTS: Final = 10_240
"""Keys of one part."""
MAX_CONNECTIONS: Final = 4
BUFFER_BYTES: Final = 64 << 20


def read_stream(
    servers: str | Sequence[str] | ServerOptions,
    stream: str | Sequence[str],
    start: Place = None,
    end: Place = None,
    filter: str | Sequence[str] = ">",
    *,
    columns: Sequence[str] | None = None,
    consistent: bool = False,
    min_last: int | Mapping[str, int] = 0,
    max_staleness: float | timedelta | None = None,
    fail_on_data_loss: bool = True,
    prefer: str = "any",
    connections: int | None = None,
    batch_rows: int = 10_000,
    buffer_bytes: int = BUFFER_BYTES,
    **more: Any,
) -> pa.RecordBatchReader:
    """Returns a reader of all messages of `stream` with `start` <= sequence < `end` whose subject matches a filter, by
    stream and sequence. Nothing is read before the first batch is taken, and `buffer_bytes` at most ahead of it.

    `start` and `end` are sequences, times, or `earliest`, `latest`, `latest-100`; with several streams also a mapping
    by stream. Without `end`, the end is what the leaders say at the call, or fresher: `consistent` is one moment for
    all streams, `min_last` a sequence that must be there, `max_staleness` an age in seconds. `connections` is by
    default one per replica, 4 at most. `more` are fields of `ServerOptions` and those in `arguments.TUNABLE`.

    Raises OptionError and SchemaError for wrong arguments, StreamError, DataLossError, CutError, ConnectionLostError
    after 5 seconds (`reach_timeout`) without a server, and what `client.servers.ask` raises. The reader raises
    DataLossError, ReplicaLagError and the like when a part cannot be read whole."""
    given = more | {
        "columns": columns, "consistent": consistent, "min_last": min_last, "max_staleness": max_staleness,
        "fail_on_data_loss": fail_on_data_loss, "prefer": prefer,
    }  # fmt: skip
    streams = [stream] if isinstance(stream, str) else list(stream)
    options = replace(source_options(servers, streams, start, end, filter, given), arrow_rows=batch_rows)
    extents, options = resolved(options)
    check_loss(extents)
    batches = iter(read_extents(extents, options, connections, buffer_bytes))
    return pa.RecordBatchReader.from_batches(arrow_schema(options.names, time_unit=options.time_unit), batches)


def resolved(options: SourceOptions) -> tuple[list[Extent], SourceOptions]:
    """Returns what is to be read, and the options with servers that the one that answered tells of, where fewer are
    named than the streams have replicas. Raises as `resolve.batch_extents`."""
    server = options.server
    question = partial(_extents_and_servers, options=options)
    extents, others = ask(server, question, options.retry_timeout, reach=server.reach_timeout)
    more = max((len(extent.target.peers) for extent in extents), default=1) - len(server.servers)
    found = tuple(url for url in others if url not in server.servers)[: max(more, 0)]
    return extents, replace(options, server=replace(server, servers=server.servers + found))


def _extents_and_servers(link: Connection, options: SourceOptions) -> tuple[list[Extent], list[str]]:
    return extents_of(link, options), [url for url in told(link, options.server) if url != link.url]


def read_extents(
    extents: Sequence[Extent], options: SourceOptions, connections: int | None, buffer_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of the ranges, with the columns of `options`."""
    if connections is None:
        connections = min(max((len(extent.target.peers) for extent in extents), default=1), MAX_CONNECTIONS)
    threads = max(connections, 1)
    tasks = tasks_of(extents, cut_into_parts(extents, options, threads))
    yield from ParallelRead(tasks, options, options.names, threads=threads, buffer_bytes=buffer_bytes)


def cut_into_parts(extents: Sequence[Extent], options: SourceOptions, threads: int) -> SourceOptions:
    """Returns the options with which `tasks_of` makes parts of the ranges."""
    if options.mode == "last":
        parts = max((-(-len(extent.subjects.names) // PART_SUBJECTS) for extent in extents), default=1)
        return replace(options, min_partitions=max(threads, parts))
    largest = max((extent.mean_bytes for extent in extents), default=0.0)
    return replace(options, max_records=max(min(PART_ROWS, int(PART_BYTES / max(largest, 1.0))), 1))
