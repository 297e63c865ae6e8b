"""A stream with tight limits and a retention guard that the archive job moves: no hole between archive and stream."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jetcluster import faults
from jetcluster.client.connection import Connection
from testkit.harness import TOP, ProcessCluster
from tests.spark import archives
from tests.spark.archives import ends
from tests.spark.jobs import fails, run
from tests.spark.stored import contents, state
from tests.spark.streams import create, fill, until
from tests.spark.test_archive_s3 import bucket
from tests.unit.backup.conftest import _s3_server, s3_endpoint

__all__ = ["_s3_server", "bucket", "s3_endpoint"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(1000),  # one of them starts Spark four times
]

SLOW = 250.0
"""Seconds that a start of Spark may take on a busy machine."""
GUARD = {"consumer": "archive", "max_bytes": 1 << 30}


def archived(url: str) -> dict[int, bytes]:
    return {seq: data for seq, _, _, data in archives.rows(url)}


def together(connection: Connection, name: str, url: str) -> list[tuple[int, bytes]]:
    """The archive and what the stream has above it: one table."""
    found = archived(url)
    return sorted({**{m.seq: m.data for m in contents(connection, name)}, **found}.items())


def rows(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


@pytest.mark.parametrize("point", ["archive.written", "archive.committed", "archive.guarded"])
def test_a_crash_at_any_step_leaves_no_hole(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, point: str
) -> None:
    name = point.replace("archive.", "GUARD").upper()
    create(connection, name, max_msgs=50, retention_guard=GUARD)
    fill(connection, [(f"{name.lower()}.{n % 7}", row) for n, row in enumerate(rows(1, 900))])
    wanted = list(enumerate(rows(1, 900), 1))
    assert state(connection, name)["messages"] == 900, "the guard need not exist to hold them"
    out = tmp_path / "archive"
    words = ["--stream", name, "--out", out, "--max-per-batch", "300", "--guard", "archive"]
    with faults.armed(point, faults.hits(faults.fail(errno.EIO), 2, 1)):
        text, code = fails(spark, servers, "archive", *words)
    assert ("Input/output error" in text, code) == (True, 1)
    first = state(connection, name)["first_seq"]
    assert (ends(str(out)), first) == {
        "archive.written": (301, 301), "archive.committed": (601, 301), "archive.guarded": (601, 601)
    }[point]  # fmt: skip
    assert together(connection, name, str(out)) == wanted
    done = run(spark, servers, "archive", *words).fields
    assert (done["end"], done["guard_floor"]) == (901, 900)
    until(lambda: state(connection, name)["messages"] == 50, 30, "the limit holds")
    assert sorted(archived(str(out)).items()) == wanted
    assert [m.seq for m in contents(connection, name)] == [*range(851, 901)]


def test_a_job_of_another_guard_is_refused(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "GUARDELSE", retention_guard=GUARD)
    text, code = fails(spark, servers, "archive", "--stream", "GUARDELSE", "--out", tmp_path, "--guard", "other")
    assert (code, "has the guard archive" in text) == (2, True), text


def started(servers: str, log: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jetcluster.pipeline", "archive", "--server", servers, *words, "--json"]
    command += ["--master", "local[2]", "--follow", "--every", "200ms", "--conf", "spark.driver.memory=1g"]
    paths = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH", "")]))
    with log.open("a") as errors:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, text=True, env=os.environ | {"PYTHONPATH": paths}
        )


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_the_job_is_killed_at_any_moment_while_limits_are_tight(
    spark: Any,
    cluster: ProcessCluster,
    connection: Connection,
    servers: str,
    tmp_path: Path,
    place: str,
    request: pytest.FixtureRequest,
) -> None:
    out = str(tmp_path / "archive") if place == "folder" else request.getfixturevalue("bucket")
    name, log, rng, stop = f"GUARDKILL{place}".upper(), tmp_path / "log", random.Random(7), threading.Event()
    create(connection, name, max_msgs=20, max_msgs_per_subject=10, retention_guard=GUARD)
    published: list[bytes] = []
    problems: list[str] = []

    def publish() -> None:
        with Connection(cluster.urls) as writer:
            while not stop.is_set():
                more = rows(len(published) + 1, 20)
                fill(writer, [(f"{name.lower()}.{n % 3}", row) for n, row in enumerate(more)])
                published.extend(more)
                stop.wait(0.3)

    def watch() -> None:
        with Connection(cluster.urls) as reader:
            while not stop.wait(0.05):
                first = state(reader, name)["first_seq"]  # before the manifests, which only grow
                if first > (end := ends(out)):
                    problems.append(f"the stream begins at {first}, the archive ends at {end}")

    threads = [threading.Thread(target=publish), threading.Thread(target=watch)]
    for thread in threads:
        thread.start()
    words = ["--stream", name, "--out", out, "--max-per-batch", "500", "--guard", "archive"]
    job = None
    try:
        for _ in range(3):
            before, job = ends(out), started(servers, log, *words)

            def has_gone_on(job: subprocess.Popen[str] = job, before: int = before) -> bool:
                assert job.poll() is None, log.read_text()
                return ends(out) > before

            until(has_gone_on, SLOW, "a batch")
            time.sleep(rng.uniform(0, 3))
            job.kill()
            job.communicate()
            assert not problems, problems
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if job is not None and job.poll() is None:
            job.kill()
            job.communicate()
    assert not problems, problems
    wanted = list(enumerate(published, 1))
    with Connection(cluster.urls) as reader:  # the other one was silent for too long
        assert together(reader, name, out) == wanted
        run(spark, servers, "archive", *words)
    assert sorted(archived(out).items()) == wanted
    with Connection(cluster.urls) as reader:
        until(lambda: state(reader, name)["messages"] <= 20, 30, "the limits hold")
