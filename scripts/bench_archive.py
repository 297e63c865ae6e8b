"""The archive job's figure: a stream of a million messages to zstd Parquet with manifests, on the bench's own cluster
and session (scripts/bench_spark.py)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetcluster.pipeline.main import run_in
from testkit.harness import ProcessCluster


def archiving(session: Any, cluster: ProcessCluster, stream: str, folder: Path, messages: int) -> Callable[[], None]:
    """Archives all of the stream into an empty folder, in batches of half of it. Raises when a row is missing."""
    out = folder / "archive"

    def work() -> None:
        shutil.rmtree(out, ignore_errors=True)
        words = ["--server", ",".join(cluster.urls), "--stream", stream, "--out", str(out)]
        words += ["--max-per-batch", str(-(-messages // 2))]
        rows = run_in(session, "archive", *words).fields["rows"]
        if rows != messages:
            raise RuntimeError(f"{rows} rows were archived, {messages} are in the stream")

    return work
