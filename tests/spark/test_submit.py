"""`--print-submit` and a program of the user's own on a standalone master, whose Python has pyspark and what pyspark
needs, but no jetcluster: neither the driver's nor the workers'."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from jetcluster.client.connection import Connection
from jetcluster.pipeline import package
from testkit.harness import TOP
from tests.spark.stored import state
from tests.spark.streams import create, fill

pytestmark = pytest.mark.timeout(600)

PACKAGES = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "numpy.libs", "dateutil", "six.py", "tzdata", "pytz")
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


class Standalone(NamedTuple):
    master: str
    env: dict[str, str]
    folder: Path
    submit: str


def until(holds: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the master or the worker did not start"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and a worker of two cores."""
    folder = tmp_path_factory.mktemp("standalone")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    import pyspark

    found = Path(pyspark.__file__).parent.parent
    for name in PACKAGES:
        if (found / name).exists():
            (folder / "venv/lib" / version / "site-packages" / name).symlink_to(found / name)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" and not key.startswith("SPARK")}
    home = found / "pyspark"
    env |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    words = [python, "-c", "import pyspark, jetcluster"]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert "No module named 'jetcluster'" in done.stderr
    processes = []

    def start(kind: str, *words: str) -> Path:
        log = folder / f"{kind}.log"
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = [home / "bin/spark-class", name, "--host", "127.0.0.1", "--webui-port", "0", *words]
        with log.open("wb") as out:
            processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=folder))
        return log

    try:
        log = start("Master", "--port", "0")
        until(lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()), 120)
        [master] = re.findall(r"Starting Spark master at (spark://\S+)", log.read_text())
        work = str(folder / "work")
        log_of_worker = start("Worker", "--cores", "2", "--memory", "1g", "--work-dir", work, master)
        until(lambda: "Successfully registered with master" in log_of_worker.read_text(), 120)
        yield Standalone(master, env, folder, str(home / "bin/spark-submit"))
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
        shutil.rmtree(folder / "work", ignore_errors=True)


SMALL = ["spark.executor.memory=512m", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]


def test_a_job_by_the_line_that_is_printed(standalone: Standalone, connection: Connection, servers: str) -> None:
    create(connection, "SUBMITTED", subjects=["submitted"])
    fill(connection, [("submitted", b"%d" % n) for n in range(ROWS)])
    out = standalone.folder / "archive"
    words = [sys.executable, "-m", "jetcluster.pipeline", "archive", "--server", servers, "--stream", "SUBMITTED"]
    words += ["--out", str(out), "--master", standalone.master, "--print-submit"]
    words += [word for setting in SMALL for word in ("--conf", setting)]
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


def test_a_program_of_ones_own_that_registers_nothing(
    standalone: Standalone, connection: Connection, servers: str
) -> None:
    create(connection, "OWN")
    create(connection, "COPIED", allow_atomic=True)
    package.write(standalone.folder)
    program = standalone.folder / "program.py"
    program.write_text(PROGRAM)
    words = [standalone.submit, "--master", standalone.master, *package.options()]
    words += [word for setting in SMALL for word in ("--conf", setting)]
    words += [str(program), servers, str(standalone.folder / "checkpoint"), str(ROWS)]
    done = subprocess.run(words, env=standalone.env, cwd=standalone.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"counted {ROWS}" in done.stdout
    assert state(connection, "OWN")["messages"] == ROWS
