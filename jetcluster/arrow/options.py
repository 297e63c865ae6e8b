"""`SourceOptions`: what a read is about, how it is made, and the places in a stream that it names.

Spark's source parses them from strings (`spark.options`); `read_stream` makes them of its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from jetcluster.arrow.schema import default_columns, known_columns
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import CallerError
from jetcluster.protocol import subjects

EARLIEST: Final = -2
LATEST: Final = -1
"""Positions in a stream, as Spark's Kafka source writes them in JSON. `EARLIEST - N` is N before the latest."""

Place = int | dict[str, Any]
"""A position for all streams, or one per stream: a sequence, EARLIEST, LATEST or an offset of a checkpoint."""


class OptionError(CallerError, ValueError):
    """An option is unknown, missing or invalid."""


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
    bucket: str = ""
    """The key-value bucket whose columns are read, instead of those of its stream; "" for none."""
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
    archives: Mapping[str, str] = field(default_factory=dict)
    """Stream -> URL of its archive."""
    prefer_archive: bool = False
    """All that is archived is read there, and not only what is below the stream's first sequence."""
    newest: bool = False
    """With mode last: messages after the end count, too. Each subject that has a message at the end has one then."""
    metrics_url: str = ""
    """Where a task of Spark posts its counts."""
    time_unit: str = "us"
    """Unit of the column `time`; Spark knows microseconds."""

    @property
    def names(self) -> list[str]:
        """The columns of a query without a schema of its own."""
        return list(self.columns) or default_columns(kafka=self.kafka, bucket=bool(self.bucket), headers=self.headers)

    @property
    def types(self) -> dict[str, str]:
        """Column -> Spark's DDL type, of all columns that a query may name."""
        return known_columns(self.kafka, bucket=bool(self.bucket))


def check_servers(urls: Iterable[str]) -> None:
    """Raises OptionError for what is no server's URL, or holds a secret."""
    for url in urls:
        if "@" in url:
            raise OptionError(
                "servers holds a user or password: options end up in plans and logs. Use user with passwordEnv, "
                "tokenEnv or credsFile"
            )
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        if parts.scheme not in ("nats", "tls") or not parts.hostname:
            raise OptionError(f"servers: {url!r} is no URL like nats://host:4222 or tls://host:4222")


def checked_streams(names: Iterable[str]) -> tuple[str, ...]:
    """Returns each name once. Raises OptionError."""
    for name in names:
        if re.search(r"[.*>\s/\\]", name):
            raise OptionError(f"{name!r} is no stream's name")
    return tuple(dict.fromkeys(names))


def checked_subjects(found: Sequence[str]) -> tuple[str, ...]:
    """Returns the filters without those that another one includes. Raises OptionError."""
    for subject in found:
        if not subjects.is_valid(subject.encode()):
            raise OptionError(f"subjects: {subject!r} is no subject or filter")
    return tuple(
        one for one in dict.fromkeys(found)
        if not any(one != other and subjects.is_subset(one.encode(), other.encode()) for other in found)
    )  # fmt: skip


def preference_of(text: str) -> ReadPreference:
    """Raises OptionError."""
    kind, colon, name = text.partition(":")
    kind = kind.lower()
    if kind in ("any", "local", "leader") and not colon:
        return ReadPreference(kind)
    if kind in ("peer", "mirror") and name:
        return ReadPreference(kind, name)
    raise OptionError(f"readPreference is any, local, leader, peer:SERVER or mirror:STREAM, not {text!r}")


def named_place(text: str) -> int | None:
    """Returns the position that a word names; None for another text."""
    match = re.fullmatch(r"(earliest|latest)(?:-(\d{1,18}))?", text.lower())
    if match is None or (match[2] and match[1] == "earliest"):
        return None
    if match[2]:
        return EARLIEST - int(match[2]) if int(match[2]) else LATEST
    return EARLIEST if match[1] == "earliest" else LATEST
