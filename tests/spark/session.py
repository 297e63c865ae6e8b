"""The SparkSession of tests: settings for a quick start, workers with this tree's code, nothing but 127.0.0.1."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testkit.harness import TOP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A third less CPU for a start than the defaults."""


def open_session(folder: Path, master: str) -> SparkSession:
    """`master`: local[N,F] for N tasks at a time, which may fail F-1 times; local[N]: none may fail."""
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
        "spark.local.dir": str(folder),
    }
    builder: Any = SparkSession.builder.master(master).appName("jetcluster tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
