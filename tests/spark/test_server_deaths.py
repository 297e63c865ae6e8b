"""A server is killed, or stands still, while `lakehouse` and `archive` run and the stream is written to: no job fails,
and each sequence is in both tables and in the archive once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

from jetcluster.client.connection import Connection
from jetcluster.errors import JetclusterError
from testkit.harness import Node, ProcessCluster, frozen
from tests.spark import archives
from tests.spark.jobs import run
from tests.spark.lake import Lake
from tests.spark.stored import contents
from tests.spark.streams import create, fill, numbered, until

pytestmark = [
    pytest.mark.thorough(shared=False),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(600),  # the first one starts Spark
]

FROZEN_SECONDS = 20.0
DEAD_SECONDS = 5.0
SLOW = 200.0


class Publisher:
    """Writes to a stream without a pause, also while a server does not answer: what is stored is what counts."""

    def __init__(self, cluster: ProcessCluster, stream: str) -> None:
        self._cluster, self._stream = cluster, stream
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        first = 1
        while not self._stop.wait(0.05):
            with suppress(JetclusterError, OSError), Connection(self._cluster.urls) as connection:
                while not self._stop.wait(0.05):
                    for row in numbered(self._stream, 40, first):
                        connection.publish_acked(*row)
                    first += 40
                    connection.acks()

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def again_and_again(job: Callable[[], Any], stop: threading.Event) -> list[dict[str, Any]]:
    """Runs a job until it is to stop, and once more; the fields of the results."""
    found = []
    while not stop.wait(0.1):
        found.append(job().fields)
    return [*found, job().fields]


def leader_of(cluster: ProcessCluster, connection: Connection, stream: str) -> Node:
    return cluster.node(connection.api(f"STREAM.INFO.{stream}")["cluster"]["leader"])


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("what", ["killed", "frozen"])
def test_a_server_dies_while_jobs_run(
    spark: Any, cluster: ProcessCluster, servers: str, tmp_path: Path, what: str, who: str
) -> None:
    name = f"OUTLIVED{what}{who}".upper()
    lake, out, stop = Lake(tmp_path / "lake"), tmp_path / "archive", threading.Event()
    with Connection(cluster.urls) as connection:
        create(connection, name)
        fill(connection, numbered(name, 500))
        leader = leader_of(cluster, connection, name)
    node = leader if who == "leader" else next(one for one in cluster.nodes if one is not leader)
    words = {
        "lakehouse": ["--stream", name, *lake.words, "--max-per-batch", "200"],
        "archive": ["--stream", name, "--out", str(out), "--max-per-batch", "200", "--no-compact"],
    }

    def ends() -> tuple[int, int]:
        """Rows that the tables have, and messages that the archive has."""
        last = [one["txn"]["version"] for one in lake.delta_log() if "txn" in one] if lake.delta.exists() else []
        return max(last, default=0), archives.ends(str(out)) - 1

    with ThreadPoolExecutor(2) as pool, Publisher(cluster, name):
        try:
            jobs = [pool.submit(again_and_again, partial(run, spark, servers, job, *words[job]), stop) for job in words]
            until(lambda: min(ends()) >= 600 or any(job.done() for job in jobs), SLOW, "the jobs' beginning")
            if what == "killed":
                node.kill9()
                time.sleep(DEAD_SECONDS)
                asyncio.run(node.start())
            else:
                with frozen([node]):
                    before = ends()
                    time.sleep(FROZEN_SECONDS)
                    during = ends()
            after = ends()
            until(lambda: min(ends()) > max(after) or any(job.done() for job in jobs), SLOW, "the jobs' going on")
        finally:
            stop.set()
        done = [job.result(SLOW) for job in jobs]
    if what == "frozen":
        assert all(late > early for early, late in zip(before, during, strict=True)), "a job waited for the frozen one"
    with Connection(cluster.urls) as late:
        asyncio.run(cluster.wait_meta())
        messages = contents(late, name)
        late.api(f"STREAM.DELETE.{name}")
    assert [m.seq for m in messages] == list(range(1, len(messages) + 1))
    landed = [(m.seq, m.subject.decode(), m.data) for m in messages if m.seq < done[0][-1]["end"]]
    assert lake.rows("seq", "subject", "data") == landed
    assert lake.by_libraries("seq", "subject", "data") == landed
    archived = [(m.seq, m.subject, m.block, m.data) for m in messages if m.seq < done[1][-1]["end"]]
    assert archives.rows(str(out)) == archived
