"""`--print-submit` and a program of the user's own on a standalone master, whose Python has pyspark and what pyspark
needs, but no jetcluster: neither the driver's nor the workers'."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import TOP
from tests.spark.standalone import SMALL, Events, Standalone
from tests.spark.stored import state
from tests.spark.streams import create, fill

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

ROWS = 3000
PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("own").getOrCreate()
where = {"servers": sys.argv[1]}
rows = spark.range(0, int(sys.argv[3]), 1, 2)
rows = rows.selectExpr("concat('own.', id % 5) AS subject", "cast(id AS string) AS data")
rows.write.format("jetstream").mode("append").options(stream="OWN", **where).save()
read = spark.readStream.format("jetstream").options(stream="OWN", **where).load()
query = (
    read.selectExpr("concat('copied.', seq) AS subject", "data").writeStream.format("jetstream")
    .option("checkpointLocation", sys.argv[2]).options(stream="COPIED", **where).trigger(availableNow=True).start()
)
query.awaitTermination()
print("counted", spark.read.format("jetstream").options(stream="COPIED", **where).load().count())
"""


@pytest.fixture(scope="module")
def standalone(spark_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and a worker of two cores."""
    found = Standalone(tmp_path_factory.mktemp("standalone"))
    try:
        found.start_master()
        found.start_worker("worker", 2)
        yield found
    finally:
        found.close()


def test_a_job_by_the_line_that_is_printed(standalone: Standalone, connection: Connection, servers: str) -> None:
    create(connection, "SUBMITTED", subjects=["submitted"])
    fill(connection, [("submitted", b"%d" % n) for n in range(ROWS)])
    out = standalone.folder / "archive"
    words = [sys.executable, "-m", "jetcluster.pipeline", "archive", "--server", servers, "--stream", "SUBMITTED"]
    words += ["--out", str(out), "--master", standalone.master, "--print-submit"]
    events = Events(standalone.folder / "events")
    words += [word for setting in (*SMALL, *events.conf) for word in ("--conf", setting)]
    env = os.environ | {"PYSPARK_PYTHON": standalone.env["PYSPARK_PYTHON"], "PYTHONPATH": str(TOP)}
    line = subprocess.run(words, env=env, cwd=standalone.folder, capture_output=True, text=True, check=True).stdout
    path = f"{Path(standalone.submit).parent}:{standalone.env['PATH']}"
    env = standalone.env | {"PATH": path}
    done = subprocess.run(
        ["bash", "-c", line], env=env, cwd=standalone.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f'"rows": {ROWS}' in done.stdout
    assert list(out.rglob("*.parquet"))
    assert f"archive of SUBMITTED: sequences 1 to {ROWS}" in events.job_names()


def test_a_program_of_ones_own_that_registers_nothing(
    standalone: Standalone, connection: Connection, servers: str
) -> None:
    create(connection, "OWN")
    create(connection, "COPIED", allow_atomic=True)
    events = Events(standalone.folder / "own-events")
    words = (servers, str(standalone.folder / "checkpoint"), str(ROWS))
    printed = standalone.run(PROGRAM, *words, conf=events.conf)
    assert f"counted {ROWS}" in printed
    assert "BatchScan jetstream" in events.plan_nodes(), events.plan_nodes()
    with Connection(servers.split(",")) as late:  # the first one was silent for minutes
        assert state(late, "OWN")["messages"] == ROWS
