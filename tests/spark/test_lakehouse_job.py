"""A following job that is killed as by `kill -9`, and its end in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

from jetcluster.client.connection import Connection
from testkit.harness import TOP
from tests.spark.jobs import run
from tests.spark.lake import Lake
from tests.spark.streams import create, fill, until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(1000),  # it starts Spark three times
]

SLOW = 250.0
"""Seconds that a start of Spark may take on a busy machine."""


def started(servers: str, log: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jetcluster.pipeline", "lakehouse", "--server", servers, *words, "--json"]
    command += ["--master", "local[2]", "--follow", "--every", "0.2", "--conf", "spark.driver.memory=1g"]
    paths = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH", "")]))
    with log.open("w") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"PYTHONPATH": paths}
        )


def goes_on(job: subprocess.Popen[str], lake: Lake, log: Path, before: int) -> None:
    """Waits until the job has committed thrice."""

    def has_committed() -> bool:
        assert job.poll() is None, log.read_text()
        return commits(lake) >= before + 3

    until(has_committed, SLOW, "a commit")


def commits(lake: Lake) -> int:
    return len(list((lake.delta / "_delta_log").glob("*.json")))


def test_a_kill_and_an_end_in_order_at_any_moment(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "LAKEKILL")
    lake, rng, stop = Lake(tmp_path / "lake"), random.Random(7), threading.Event()
    words = ["--stream", "LAKEKILL", *lake.words, "--format", "json", "--max-per-batch", "30"]
    published: list[bytes] = []
    log = tmp_path / "log"

    def publish() -> None:
        while not stop.is_set():
            rows = [b"%d" % n if n % 10 == 0 else b'{"id": %d}' % n for n in range(len(published), len(published) + 20)]
            fill(connection, [("lakekill.1", row) for row in rows])
            published.extend(rows)
            stop.wait(1)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for number in (signal.SIGKILL, signal.SIGTERM):
            before, job = commits(lake), started(servers, log, *words)
            goes_on(job, lake, log, before)
            time.sleep(rng.random())
            job.send_signal(number)
            out, _ = job.communicate(timeout=SLOW)
        assert (job.returncode, json.loads(out)["ok"]) == (0, True)
    finally:
        stop.set()
        publisher.join()
        if job.poll() is None:
            job.kill()
            job.communicate()
    run(spark, servers, "lakehouse", *words[:-2])
    good = [(at + 1, at) for at in range(len(published)) if at % 10]
    assert lake.rows("_seq", "id") == good
    assert lake.rows("seq", "data", dead=True) == [(at + 1, b"%d" % at) for at in range(0, len(published), 10)]
