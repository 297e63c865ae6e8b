"""One SparkSession and one cluster for all Spark tests of a run.

Without Java 17 or pyspark the tests are skipped and say why; JETCLUSTER_REQUIRE_SPARK=1 makes that a failure. Tests
share the cluster, so each uses stream names that are its own in its file, and whoever kills or pauses a node starts it
again. The streams of a file are deleted behind it: which files run before another one differs from run to run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jetcluster.client.connection import Connection
from testkit.harness import ProcessCluster
from tests.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
CLUSTERS: list[ProcessCluster] = []
"""The one that runs, if any test has asked for it."""


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
    """Everything in this folder is marked `spark`, and has time to start Spark and a cluster: any may be first."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session", autouse=True)
def spark_there() -> None:
    if reason := why_no_spark():
        if os.environ.get("JETCLUSTER_REQUIRE_SPARK") == "1":
            pytest.fail(f"JETCLUSTER_REQUIRE_SPARK=1, but {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def spark(spark_there: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2]: a task that fails is not tried again (tests/spark/test_task_retry.py does that)."""
    session = open_session(tmp_path_factory.mktemp("spark"), "local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    """Three nodes, with monitoring. Kept on disk when a test failed."""
    nodes = ProcessCluster(3, monitor=True)
    failures = request.session.testsfailed
    asyncio.run(nodes.__aenter__())
    CLUSTERS.append(nodes)
    yield nodes
    CLUSTERS.clear()
    nodes.failed = request.session.testsfailed > failures
    asyncio.run(nodes.__aexit__(None))


@pytest.fixture(scope="module", autouse=True)
def streams_deleted() -> Iterator[None]:
    """First of a file's fixtures, so that its end comes behind that of all others."""
    yield
    if CLUSTERS:
        with Connection(CLUSTERS[0].urls) as one:
            while names := one.api("STREAM.NAMES").get("streams"):
                for name in names:
                    one.api(f"STREAM.DELETE.{name}")


@pytest.fixture(scope="session")
def servers(cluster: ProcessCluster) -> str:
    return ",".join(cluster.urls)


@pytest.fixture
def connection(cluster: ProcessCluster) -> Iterator[Connection]:
    with Connection(cluster.urls) as one:
        yield one
