"""Options of the sink: parsed and checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jetcluster.client.servers import ServerOptions
from jetcluster.errors import JetclusterError
from jetcluster.protocol.subjects import collide, is_subset, is_valid, is_valid_literal
from jetcluster.spark import fence
from jetcluster.spark.message import MAX_BATCH_MESSAGES
from jetcluster.spark.options import (
    BUCKET_STREAM,
    NO_OPTIONS,
    SERVER_OPTIONS,
    OptionError,
    OptionReader,
    bucket_of,
    server_options,
)

MAX_PARTS: Final = 256
"""Fences of a stream; each one of a task has a connection."""
_TEXT: Final = ("string",)
_BYTES: Final = ("binary", "string")
_HEADERS: Final = ("map<string,array<string>>", "map<string,string>")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "subject": _TEXT,
    "data": _BYTES,
    "headers": _HEADERS,
    "headers_raw": ("binary",),
    "subject_raw": ("binary",),
    "msg_id": _TEXT,
}
"""Columns that the sink reads; others are errors, so that a misspelt one is not silently lost."""
BUCKET_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "key": _TEXT,
    "value": _BYTES,
    "operation": _TEXT,
    "msg_id": _TEXT,
}
"""The same with `bucket=NAME`."""
BUCKET_IGNORED: Final = ("revision", "created")
IGNORED: Final = ("stream", "seq", "time", "time_ns", "digest")
"""Columns of the source that the target stream assigns itself."""


class SinkError(JetclusterError):
    """Options, columns or the stream do not fit together. Nothing is written."""


@dataclass(frozen=True)
class SinkOptions:
    """All options of a write. It is picklable and holds no secret."""

    server: ServerOptions
    stream: str
    bucket: str = ""
    """The key-value bucket whose stream that is, when rows have keys; "" otherwise."""
    subject: str = ""
    """The subject of every row; empty: the column `subject` has it."""
    idempotence: str = "msgid"
    fence_subjects: tuple[str, ...] = ()
    """Filters of which each has a fence of its own; empty: one fence for all."""
    batch_id: int | None = None
    """Number of the batch, for a writer outside a streaming query that writes several."""
    job_id: str = ""
    """Empty: Spark's ids name the job."""
    atomic_batch: int = MAX_BATCH_MESSAGES
    publish_window: int = 10_000
    retry_horizon: float = 120.0
    """Seconds within which a restart may write a row again (msgid)."""
    retry_timeout: float = 60.0
    """Seconds without any success after which a task fails."""
    start_after: int | None = None
    drop_reserved: bool = False
    """Drop reserved headers instead of raising RowError."""
    purge: bool = False
    """mode("overwrite") purges the stream."""


SINK_OPTIONS: Final = SERVER_OPTIONS | {
    name.lower(): name
    for name in (
        "stream", "subject", "idempotence", "jobId", "atomicBatch", "publishWindow", "retryHorizon", "retryTimeout",
        "startAfter", "fenceSubjects", "bucket", "batchId", "reservedHeaders", "overwriteMode", "checkpointLocation",
        "queryName",
    )
}  # fmt: skip
"""Lower case -> as written. The last two are Spark's own options, which Spark passes on."""


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Raises OptionError."""
    reader = OptionReader(given, SINK_OPTIONS)
    bucket = bucket_of(reader)
    stream, subject, job_id = reader.text("stream"), reader.text("subject"), reader.text("jobId")
    if not reader.given:
        raise OptionError(NO_OPTIONS)
    stream = f"{BUCKET_STREAM}{bucket}" if bucket else stream
    if not stream:
        raise OptionError("stream is missing: the name of the stream to write to, or bucket")
    if subject and not is_valid_literal(subject.encode()):
        raise OptionError(f"subject {subject!r} is not one that can be published to")
    try:
        job_id = job_id and fence.check_job(job_id)
    except ValueError as error:
        raise OptionError(str(error)) from None
    idempotence = reader.one_of("idempotence", "msgid", "fence", "none")
    return SinkOptions(
        server=server_options(reader),
        stream=stream,
        bucket=bucket,
        subject=subject,
        idempotence=idempotence,
        fence_subjects=_parts(reader.text("fenceSubjects"), idempotence),
        batch_id=reader.number("batchId", 0, 0) if reader.has("batchId") else None,
        job_id=job_id,
        atomic_batch=_at_most(reader, "atomicBatch", SinkOptions.atomic_batch, MAX_BATCH_MESSAGES),
        publish_window=_at_most(reader, "publishWindow", SinkOptions.publish_window, 100_000),
        retry_horizon=reader.seconds("retryHorizon", SinkOptions.retry_horizon),
        retry_timeout=reader.seconds("retryTimeout", SinkOptions.retry_timeout),
        start_after=reader.number("startAfter", 0, 0) if reader.has("startAfter") else None,
        drop_reserved=reader.one_of("reservedHeaders", "refuse", "drop") == "drop",
        purge=reader.one_of("overwriteMode", "refuse", "purge") == "purge",
    )


def _parts(text: str, idempotence: str) -> tuple[str, ...]:
    """Returns the filters of `fenceSubjects`. Raises OptionError."""
    found = tuple(word for one in text.split(",") if (word := one.strip()))
    if not found:
        return ()
    if idempotence != "fence":
        raise OptionError("fenceSubjects are for idempotence=fence")
    if len(found) > MAX_PARTS:
        raise OptionError(f"fenceSubjects are at most {MAX_PARTS}, not {len(found)}")
    for at, one in enumerate(found):
        if not is_valid(one.encode()):
            raise OptionError(f"fenceSubjects: {one!r} is no filter of subjects")
        for other in found[:at]:
            if collide(one.encode(), other.encode()):
                raise OptionError(f"fenceSubjects: a subject may be of {other} and of {one}; each is of one part")
    return found


def _at_most(reader: OptionReader, name: str, default: int, most: int) -> int:
    value = reader.number(name, default)
    if value > most:
        raise OptionError(f"{name} is at most {most}, not {value}")
    return value


def check_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """Checks `types`: column -> Spark's name of its type. Raises SinkError."""
    known, ignored = (BUCKET_COLUMNS, BUCKET_IGNORED) if options.bucket else (COLUMNS, IGNORED)
    for name, kind in types.items():
        if name in ignored:
            continue
        if name not in known:
            raise SinkError(
                f"column {name!r} is not known to the sink: select {', '.join(known)} (or alias yours to one of them)"
            )
        if kind not in known[name]:
            raise SinkError(f"column {name} is {kind}; {' or '.join(known[name])} is needed")
    if options.bucket:
        if missing := {"key", "value"} - types.keys():
            raise SinkError(f"there is no column {min(missing)}, which a bucket needs")
    elif "data" not in types:
        raise SinkError("there is no column data: the payload")
    elif not options.subject and "subject" not in types:
        raise SinkError("there is no column subject, and no option subject")
    if options.idempotence == "fence" and "msg_id" in types:
        raise SinkError(
            "column msg_id has no meaning with idempotence=fence: the place in the stream says what is there"
        )


def check_stream(info: Mapping[str, Any], options: SinkOptions) -> list[bytes]:
    """Checks a STREAM.INFO answer against the options and returns the stream's subjects. Raises SinkError."""
    config: Mapping[str, Any] = info["config"]
    name = options.stream
    if config.get("mirror"):
        raise SinkError(f"{name} is a mirror: nothing can be published to it")
    if config.get("sealed"):
        raise SinkError(f"{name} is sealed")
    if config.get("no_ack"):
        raise SinkError(f"{name} has no_ack: what is not acknowledged cannot be counted as written")
    patterns = [str(one).encode() for one in config.get("subjects") or [name]]
    if options.subject and not any(is_subset(options.subject.encode(), one) for one in patterns):
        raise SinkError(f"{name} does not take subject {options.subject}: it has {b', '.join(patterns).decode()}")
    if options.idempotence == "msgid":
        _check_window(name, config, options)
    if options.idempotence == "fence":
        _check_fence(name, config, options)
    return patterns


def _check_window(name: str, config: Mapping[str, Any], options: SinkOptions) -> None:
    window = int(config.get("duplicate_window") or 0) / 1e9
    if window < options.retry_horizon:
        raise SinkError(
            f"{name} remembers message ids for {window:g} s (duplicate_window), but a row may be written again after "
            f"{options.retry_horizon:g} s (retryHorizon). Widen the one, lower the other, or use idempotence=fence"
        )


def _check_fence(name: str, config: Mapping[str, Any], options: SinkOptions) -> None:
    if options.atomic_batch > 1 and not config.get("allow_atomic"):
        raise SinkError(
            f"{name} does not take atomic batches: set allow_atomic in its configuration, or atomicBatch=1 (slow)"
        )
    if config.get("retention", "limits") != "limits":
        raise SinkError(f"{name} has retention {config['retention']}: its last message may go, and the fence with it")
