"""`SourceOptions`: what a read is about, how it is made, and the places in a stream that it names.

Spark's source parses them from strings (`spark.options`); `read_stream` makes them of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jetcluster.arrow.schema import default_columns
from jetcluster.client.servers import ServerOptions

EARLIEST: Final = -2
LATEST: Final = -1
"""Positions in a stream, as Spark's Kafka source writes them in JSON. `EARLIEST - N` is N before the latest."""

Place = int | dict[str, Any]
"""A position for all streams, or one per stream: a sequence, EARLIEST, LATEST or an offset of a checkpoint."""


@dataclass(frozen=True)
class ReadPreference:
    """The replicas to read: `kind` is any, local, leader, peer (`name` is a server) or mirror (`name` is a stream)."""

    kind: str = "any"
    name: str = ""


@dataclass(frozen=True)
class SourceOptions:
    """All options of a read. It is picklable and holds no secret."""

    server: ServerOptions
    streams: tuple[str, ...]
    """Empty: those that `pattern` matches when they are asked for."""
    subjects: tuple[str, ...] = (">",)
    starting: Place = EARLIEST
    ending: Place = LATEST
    starting_time: int | None = None
    ending_time: int | None = None
    pattern: str = ""
    starting_times: Mapping[str, int] = field(default_factory=dict)
    ending_times: Mapping[str, int] = field(default_factory=dict)
    """Stream -> Unix nanoseconds."""
    max_rows: int = 0
    min_rows: int = 0
    max_delay: float = 900.0
    """Seconds for which fewer sequences than `min_rows` may wait."""
    max_bytes: int = 0
    min_partitions: int = 0
    max_records: int = 100_000
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    kafka: bool = False
    headers: bool = True
    preference: ReadPreference = ReadPreference()
    replica_wait: float = 5.0
    request_timeout: float = 5.0
    retry_timeout: float = 30.0
    fetch_batch: int = 10_000
    fetch_bytes: int = 4 << 20
    prefetch: bool = True
    arrow_rows: int = 10_000
    mode: str = "scan"
    as_of_seq: int = 0
    as_of_time: int | None = None
    min_last: Mapping[str, int] = field(default_factory=dict)
    """Stream -> the last sequence that it must have reached."""
    max_staleness: int | None = None
    """Nanoseconds for which newer messages may be missing; None: any."""
    consistent: bool = False
    """The ends of the streams are of one moment."""
    cut_timeout: float = 10.0
    pushdown: bool = False

    @property
    def names(self) -> list[str]:
        """The columns of a query without a schema of its own."""
        return list(self.columns) or default_columns(kafka=self.kafka, headers=self.headers)
