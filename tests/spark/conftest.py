"""One SparkSession and one cluster for all Spark tests of a run.

Without Java 17 or pyspark the tests are skipped and say why; JETCLUSTER_REQUIRE_SPARK=1 makes that a failure. Tests
share the cluster, so each uses stream names of its own, and whoever kills or pauses a node starts it again.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetcluster.spark.connection import Connection
from tests.cluster.harness import TOP, ProcessCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A third less CPU for a start than the defaults."""


def why_no_spark() -> str:
    """Empty when the tests can run."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install 'jetcluster[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin/java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return "no Java runtime (JAVA_HOME, PATH): apt install openjdk-17-jre-headless"
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < 17:
        return f"Java 17 or newer is needed, {java} is {shown.splitlines()[0] if shown else 'silent'}"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is marked `spark`."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session", autouse=True)
def spark_there() -> None:
    if reason := why_no_spark():
        if os.environ.get("JETCLUSTER_REQUIRE_SPARK") == "1":
            pytest.fail(f"JETCLUSTER_REQUIRE_SPARK=1, but {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def spark(spark_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], worker processes with this tree's code, nothing but 127.0.0.1."""
    folder = tmp_path_factory.mktemp("spark")
    paths = [str(TOP), str(TOP / "jetcluster/spark/shim"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas and pyspark of one another, at import only
        from pyspark.sql import SparkSession
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{JVM_FLAGS} -Dderby.system.home={folder}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.task.maxFailures": "1",
        "spark.local.dir": str(folder),
    }
    builder: Any = SparkSession.builder.master("local[2]").appName("jetcluster tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    """Three nodes, with monitoring. Kept on disk when a test failed."""
    nodes = ProcessCluster(3)
    failures = request.session.testsfailed
    asyncio.run(nodes.__aenter__())
    yield nodes
    nodes.failed = request.session.testsfailed > failures
    asyncio.run(nodes.__aexit__(None))


@pytest.fixture
def connection(cluster: ProcessCluster) -> Iterator[Connection]:
    with Connection(cluster.urls) as one:
        yield one
