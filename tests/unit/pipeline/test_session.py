"""The configuration of the session, without starting one."""

from __future__ import annotations

import sys

import pytest

from jetcluster.pipeline import session
from jetcluster.pipeline.result import UsageError


def test_local_stays_on_loopback() -> None:
    found = session.settings("local[3]")
    assert found["spark.driver.bindAddress"] == found["spark.driver.host"] == "127.0.0.1"
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert "log4j2.properties" in found["spark.driver.extraJavaOptions"]
    assert session.LOG4J.is_file()


def test_a_cluster_and_spark_submit_keep_their_own() -> None:
    for found in (session.settings("yarn"), session.settings("local[2]", submitted=True)):
        assert not [key for key in found if key.startswith("spark.driver")]
        assert "spark.sql.shuffle.partitions" not in found


def test_short_jobs_get_the_quick_jvm_only() -> None:
    assert "UseSerialGC" in session.settings("local[2]", quick=True)["spark.driver.extraJavaOptions"]
    assert "UseSerialGC" not in session.settings("local[2]")["spark.driver.extraJavaOptions"]


def test_conf_wins_but_java_options_add_up() -> None:
    found = session.settings("local", ["spark.ui.enabled=true", "spark.driver.extraJavaOptions=-Xss4m", "a=b=c"])
    assert found["spark.ui.enabled"] == "true"
    assert found["a"] == "b=c"
    assert found["spark.driver.extraJavaOptions"].endswith(" -Xss4m")
    assert "log4j2" in found["spark.driver.extraJavaOptions"]
    with pytest.raises(UsageError, match="expected key=value"):
        session.settings("local", ["nonsense"])


@pytest.mark.parametrize(
    ("master", "count"), [("local", 1), ("local[4]", 4), ("local[*]", 7), ("local[2, 4]", 2), ("local[*,4]", 7)]
)
def test_cores(master: str, count: int) -> None:
    assert session.cores(master, machine=7) == count


def test_workers_run_this_python_and_find_this_package() -> None:
    env = {"PYTHONPATH": "/else"}
    session.prepare(env, local=True)
    session.prepare(env, local=True)
    assert env["PYSPARK_PYTHON"] == sys.executable
    assert env["PYTHONPATH"].count(":") == 1
    kept = {"PYSPARK_PYTHON": "/other/python"}
    session.prepare(kept, local=False)
    assert kept["PYSPARK_PYTHON"] == "/other/python"
    assert "SPARK_LOCAL_IP" not in kept


def test_submit_line() -> None:
    line = session.submit_line("local[2]", ["a=b c"], ["doctor", "--json"], "/x/python")
    assert line.startswith("PYSPARK_PYTHON=/x/python spark-submit --master 'local[2]' --conf 'a=b c' ")
    assert line.endswith("jetcluster/pipeline/__main__.py doctor --json")
    assert "--py-files" not in line
    there = session.submit_line("yarn", [], ["doctor"], "python3")
    assert "--py-files jetcluster-" in there and "--archives 'jetcluster-" in there
