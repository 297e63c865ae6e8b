"""`jetcluster pipeline verify`: checks histories of the chaos suite against the stored messages, one Spark task each.

A history (checkers/event.py) records the answers that clients got; it includes the stored messages, unless they are
read from the cluster or an archive. A violation is exit code 1. A task receives its history's lines as Arrow batches
and holds them in memory, about 1 KB per event, as the run that wrote it did.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jetcluster.pipeline import checkers, row_files
from jetcluster.pipeline.arguments import add_server, source_options
from jetcluster.pipeline.checkers.event import Event, Finding, load, operations
from jetcluster.pipeline.result import CHECK_FAILED, OK, Result, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PACKED_BYTES: Final = 4 << 20
"""Bytes of a history's lines that are sent together."""
FINDING: Final = (
    "history string, workload string, kind string, msg_id string, seq bigint, replica string, t double, text string"
)
FIGURES: Final = "_figures"
"""The kind of the row with the history's figures as JSON."""
BROKEN: Final = "_broken"
"""The kind of the only row of a history with an invalid line, which is its text."""


def judge(copy: tuple[str, str] | None) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `mapInArrow` from (history, value), in any order but with all of a history in one task, to
    FINDING. `copy` is a workload and the only replica of it that counts."""

    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        types = {"seq": pyarrow.int64(), "t": pyarrow.float64()}
        names = [field.split()[0] for field in FINDING.split(", ")]
        schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in names])
        lines: dict[str, list[str]] = defaultdict(list)
        for batch in batches:
            for history, line in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                lines[history].append(line)
        for history, of_history in lines.items():
            rows = [asdict(one) | {"history": history} for one in findings(of_history, copy)]
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)

    return judged


def findings(lines: Iterable[str], copy: tuple[str, str] | None) -> list[Finding]:
    """Returns the findings of one history, after a row with its figures; only a BROKEN row for an invalid line."""
    events = []
    for line in filter(None, lines):
        try:
            events += load([line])
        except ValueError:
            return [Finding(BROKEN, "", line[:200])]
    events.sort(key=lambda event: event.type != "invoke")
    done = sorted(operations(events), key=lambda op: (op.t0, op.op))
    if copy is not None:
        done = [op for op in done if op.f != "stored" or op.workload != copy[0] or op.replica == copy[1]]
    acked, unknown, checked = checkers.figures(done)
    told = {"acked": acked, "unknown": unknown, "checked": checked, "unread": _unread(done)}
    return [Finding(FIGURES, "", json.dumps(told)), *checkers.check(done)]


def _unread(ops: list[Event]) -> list[str]:
    """Returns the workloads of which no copy was read."""
    written = {op.workload for op in ops if op.f in ("publish", "cas", "batch", "mirror")}
    return sorted(written - {op.workload for op in ops if op.f == "stored"})


FINDINGS_SHOWN: Final = 20
"""Findings in the result; `--out` has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--history",
        required=True,
        type=Path,
        metavar="PATH",
        help="a history of `python -m chaos`, or a folder of them",
    )
    add_server(parser)
    parser.set_defaults(server=None)
    parser.add_argument("--stream", help="with --server: what this stream holds counts, not what the history noted")
    parser.add_argument("--archive", metavar="DIR", help="the same from an archive (`jetcluster pipeline archive`)")
    parser.add_argument("--workload", help="whose stream that is (default: the stream's name in lower case)")
    parser.add_argument("--out", metavar="URL", help="the findings as Parquet: a new folder, s3://bucket/path, ...")


def check(args: argparse.Namespace) -> None:
    """Checks the arguments before Spark starts. Raises UsageError."""
    if not histories(args.history):
        raise UsageError(f"--history {args.history}: no history (*.jsonl) there")
    if (args.server is None) != (args.stream is None):
        raise UsageError("--server and --stream go together")
    if args.server and args.archive:
        raise UsageError("--server or --archive: what is stored comes from one of them")
    if args.workload and not (args.server or args.archive):
        raise UsageError("--workload goes with --server or --archive")
    if (args.server or args.archive) and len(histories(args.history)) > 1:
        raise UsageError(f"--history {args.history}: one stream is what one run stored, and these are several")
    if args.out:
        row_files.check_new(args.out)


def histories(path: Path) -> list[Path]:
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Judges the histories. Raises UsageError for an invalid line."""
    files = histories(args.history)
    events, copy = lines_of(session, files), None
    if args.server or args.archive:
        rows, workload, name = stored(session, args)
        copy = (workload, name)
        events = events.unionByName(lines_of_copy(rows, files[0].stem, workload, name))
    judged = events.repartition(len(files), "history").mapInArrow(judge(copy), FINDING).persist()
    try:
        return _result(judged, args.out, files)
    finally:
        judged.unpersist()


def _result(judged: DataFrame, out: str | None, files: Sequence[Path]) -> Result:
    figures = {}
    for row in judged.where(f"kind IN ('{FIGURES}', '{BROKEN}')").collect():
        if row.kind == BROKEN:
            raise UsageError(f"{row.history}: no event: {row.text}")
        figures[row.history] = json.loads(row.text)
    if not figures:
        raise UsageError(f"no events in {', '.join(map(str, files))}")
    found = judged.where(f"kind <> '{FIGURES}'")
    counts = {(row.history, row.kind): row["count"] for row in found.groupBy("history", "kind").count().collect()}
    first = found.orderBy("history", "t", "kind", "seq").limit(FINDINGS_SHOWN).collect()
    if out:
        row_files.write(found, out)
    return verdict(figures, counts, [row.asDict() for row in first], out)


def lines_of(session: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Returns (history, value) rows: each file is one history, named by its stem. The driver reads the files, which
    workers need not see, and sends them compressed."""
    import pyarrow as pa

    packed = [(file.stem, part) for file in files for part in packed_lines(file)]
    columns = [pa.array(column) for column in zip(*packed, strict=True)] if packed else [[], []]
    table: Any = pa.table(columns, schema=pa.schema([("history", pa.string()), ("packed", pa.binary())]))
    return session.createDataFrame(table).mapInArrow(unpacked, "history string, value string")


def packed_lines(file: Path) -> Iterator[bytes]:
    """Yields the lines of a file, about PACKED_BYTES together, compressed."""
    with file.open("rb") as lines:
        while part := lines.readlines(PACKED_BYTES):
            yield zlib.compress(b"".join(part), 1)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`, from (history, packed) to (history, value)."""
    import pyarrow

    for batch in batches:
        for history, part in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            lines = zlib.decompress(part).decode(errors="replace").splitlines()
            names = pyarrow.repeat(pyarrow.scalar(history), len(lines))
            yield pyarrow.RecordBatch.from_arrays([names, pyarrow.array(lines, pyarrow.string())], ["history", "value"])


def stored(session: SparkSession, args: argparse.Namespace) -> tuple[DataFrame, str, str]:
    """Returns (seq, subject and data of the stored messages; their workload; a name for the copy)."""
    if args.server:
        options = source_options(args) | {"stream": args.stream, "columns": "seq,subject,data"}
        rows = session.read.format("jetstream").options(**options).load()
        return rows, args.workload or args.stream.lower(), f"stream {args.stream}"
    from jetcluster.archive import manifest
    from jetcluster.archive.storage import open_archive
    from jetcluster.pipeline import archive_tasks

    storage = open_archive(args.archive)
    manifests = manifest.load(storage)
    if not manifests:
        raise UsageError(f"--archive {args.archive}: no archive there")
    parts = [archive_tasks.FilePart((file,)) for one in manifests for file in one.files]
    rows = archive_tasks.frame(session, storage.url, parts, ("seq", "subject", "data"))
    return rows, args.workload or manifests[0].stream.lower(), f"archive of {manifests[0].stream}"


def lines_of_copy(rows: DataFrame, history: str, workload: str, name: str) -> DataFrame:
    """Returns `rows` as events of the workload's stream, (history, value), with one event that marks it as read."""
    from pyspark.sql import functions as F

    read = rows.select("seq", "subject", F.decode("data", "UTF-8").alias("msg_id"))
    read = read.unionByName(rows.sparkSession.createDataFrame([(0, "", "")], read.schema))
    fixed = {"type": "ok", "workload": workload, "f": "stored", "replica": name}
    event = F.struct(
        F.col("seq").alias("op"), *(F.lit(value).alias(key) for key, value in fixed.items()),
        F.lit(0.0).alias("t0"), F.lit(0.0).alias("t1"), *read.columns,
    )  # fmt: skip
    return read.select(F.lit(history).alias("history"), F.to_json(event).alias("value"))


def verdict(
    figures: Mapping[str, dict[str, Any]], counts: Mapping[tuple[str, str], int], first: list[dict[str, Any]],
    out: str | None,
) -> Result:  # fmt: skip
    """Returns the job's result, from the figures by history and the numbers of findings by history and kind."""
    kinds: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for (history, kind), count in counts.items():
        kinds[kind] += count
        broken[history] += count
    checked: Counter[str] = Counter()
    for one in figures.values():
        checked.update(one["checked"])
    fields: dict[str, Any] = {
        "histories": len(figures),
        "checked": dict(sorted(checked.items())),
        "acked": sum(one["acked"] for one in figures.values()),
        "unknown": sum(one["unknown"] for one in figures.values()),
        "violations": sum(broken.values()),
        "kinds": dict(sorted(kinds.items())),
        "broken": dict(sorted(broken.items())),
        "unread": sorted(f"{history}: {workload}" for history, one in figures.items() for workload in one["unread"]),
        "first": first,
    }
    if out:
        fields["out"] = out
    return Result("verify", fields, CHECK_FAILED if broken else OK)
