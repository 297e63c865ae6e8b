"""`jetcluster pipeline verify`: histories of the chaos suite against what is stored, judged by Spark.

A history (chaos/history.py) says what clients were told; what is stored is in it too, or is read from the cluster or
from an archive. The rules are those of `chaos/checkers`, in `rules/`. A broken promise is exit code 1.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jetcluster.pipeline.arguments import add_server, source_options
from jetcluster.pipeline.result import CHECK_FAILED, OK, Result, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SHOWN: Final = 20
"""Findings that the result names; all of them are in `--out`."""
SMALL: Final = 64 << 20
"""Bytes of histories below which planning anew after each step costs more than it saves."""
PARTITION: Final = 4 << 20
"""Bytes of histories that are worth a task of their own in each of the hundred steps."""
_SETTINGS: Final = ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")


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
    parser.add_argument("--out", metavar="DIR", help="new folder for the findings as Parquet")


def check(args: argparse.Namespace) -> None:
    """Before Spark is started. Raises UsageError."""
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
    if args.out and Path(args.out).exists() and any(Path(args.out).iterdir()):
        raise UsageError(f"--out {args.out} is not empty")


def histories(path: Path) -> list[Path]:
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Raises UsageError for lines that are no events."""
    files = histories(args.history)
    size = sum(file.stat().st_size for file in files)
    before = {name: str(session.conf.get(name)) for name in _SETTINGS}
    partitions = min(max(size // PARTITION, 1), int(before["spark.sql.shuffle.partitions"]))
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    if size < SMALL:
        session.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        return _judge(session, args, files, partitions)
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def _judge(session: SparkSession, args: argparse.Namespace, files: Sequence[Path], partitions: int) -> Result:
    from jetcluster.pipeline.rules import history, judge, profile

    try:
        operations = history.load(session, files, partitions)
    except history.BrokenHistory as error:
        raise UsageError(str(error)) from None
    if args.server or args.archive:
        operations = with_stored(operations, *stored(session, args))
    known = profile.profile_of(operations).localCheckpoint()
    rows = known.collect()
    found = judge.findings(operations, known, rows).persist()
    counts = Counter(
        {(row.history, row.kind): row["count"] for row in found.groupBy("history", "kind").count().collect()}
    )
    first = found.orderBy("history", "t", "kind", "seq").limit(SHOWN).collect()
    if args.out:
        found.write.mode("append").parquet(args.out)
    found.unpersist()
    return verdict(rows, profile.figures(operations), counts, [row.asDict() for row in first], args.out)


def stored(session: SparkSession, args: argparse.Namespace) -> tuple[DataFrame, str, str]:
    """(seq, subject, data of what is stored; the workload it is of; what to call the copy)."""
    if args.server:
        options = source_options(args) | {"stream": args.stream, "columns": "seq,subject,data"}
        rows = session.read.format("jetstream").options(**options).load()
        return rows, args.workload or args.stream.lower(), f"stream {args.stream}"
    from jetcluster.pipeline import manifest
    from jetcluster.pipeline.folder import open_folder

    folder = open_folder(session, args.archive)
    manifests = manifest.load(folder)
    if not manifests:
        raise UsageError(f"--archive {args.archive}: no archive there")
    places = [f"{folder.url}/{one.directory}" for one in manifests if one.rows]
    empty = session.createDataFrame([], "seq bigint, subject string, data binary")
    rows = session.read.parquet(*places).select("seq", "subject", "data") if places else empty
    return rows, args.workload or manifests[0].stream.lower(), f"archive of {manifests[0].stream}"


def with_stored(operations: DataFrame, rows: DataFrame, workload: str, name: str) -> DataFrame:
    """`operations` of one history, with `rows` as the one copy that was read of this workload's stream."""
    from pyspark.sql import functions as F

    session = operations.sparkSession
    (history,) = [row.history for row in operations.select("history").distinct().collect()]
    read = rows.select("seq", "subject", F.decode("data", "UTF-8").alias("msg_id"))
    read = read.unionByName(session.createDataFrame([(0, "", "")], read.schema))
    fixed: dict[str, Any] = {
        "history": history, "workload": workload, "f": "stored", "type": "ok", "replica": name, "client": "",
        "expect": -1, "count": 0, "t0": 0.0, "t1": 0.0,
    }  # fmt: skip
    copy = read.withColumns({key: F.lit(value) for key, value in fixed.items()} | {"op": F.col("seq")})
    others = operations.where(~((F.col("workload") == workload) & (F.col("f") == "stored")))
    return others.unionByName(copy.select(*others.columns)).localCheckpoint()


def verdict(
    profile: Sequence[Row], figures: dict[str, int], counts: Counter[tuple[str, str]], first: list[dict[str, Any]],
    out: str | None,
) -> Result:  # fmt: skip
    """`counts`: of findings, by history and kind."""
    kinds: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for (history, kind), count in counts.items():
        kinds[kind] += count
        broken[history] += count
    checked: Counter[str] = Counter()
    for row in profile:
        checked[row.workload] += row.checked
    fields: dict[str, Any] = {
        "histories": len({row.history for row in profile}),
        "checked": {name: count for name, count in sorted(checked.items()) if count},
        **figures,
        "violations": sum(broken.values()),
        "kinds": dict(sorted(kinds.items())),
        "broken": dict(sorted(broken.items())),
        "unread": sorted({f"{row.history}: {row.workload}" for row in profile if row.copies and not row.replicas}),
        "first": first,
    }
    if out:
        fields["out"] = out
    return Result("verify", fields, CHECK_FAILED if broken else OK)
