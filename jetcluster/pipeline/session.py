"""The SparkSession that jobs run in: settings that make their results the same on every machine."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.pipeline import package
from jetcluster.pipeline.environment import is_submitted
from jetcluster.pipeline.result import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG4J: Final = Path(__file__).with_name("log4j2.properties")
SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.python.filterPushdown.enabled": "true",
}
"""Settings of every job, wherever it runs."""
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Saves a third of the CPU of a job of seconds; a long job needs the optimizing compiler."""


def settings(master: str, conf: Iterable[str] = (), *, quick: bool = False, submitted: bool = False) -> dict[str, str]:
    """Returns the configuration with the user's `key=value` on top. `submitted`: spark-submit sets the other options.
    Raises UsageError for a `conf` without "="."""
    found = dict(SETTINGS)
    if is_local(master) and not submitted:
        found |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": _java_options(quick),
            "spark.sql.shuffle.partitions": str(cores(master)),
        }
    for setting in conf:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--conf {setting}: expected key=value")
        if key == "spark.driver.extraJavaOptions":
            value = f"{found.get(key, '')} {value}".strip()
        found[key] = value
    return found


def open_session(
    master: str = "local[*]", conf: Iterable[str] = (), *, name: str = "jetcluster", quick: bool = False
) -> SparkSession:
    """Starts Spark, or joins the session of spark-submit, and registers `format("jetstream")`. Call `environment.check`
    first. `quick`: a local job of seconds. Raises UsageError."""
    submitted = is_submitted()
    wanted = settings(master, conf, quick=quick, submitted=submitted)
    if not submitted:
        prepare(os.environ, local=is_local(master))
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)  # it repeats every error as JSON
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # no pandas is used here
    from pyspark.sql import SparkSession

    from jetcluster.spark.datasource import register

    builder = SparkSession.builder.appName(name)
    if not submitted:
        builder = builder.master(master)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def prepare(env: MutableMapping[str, str], *, local: bool) -> None:
    """Sets the workers' Python to this one, and in local mode Spark's address to the loopback."""
    env.setdefault("PYSPARK_PYTHON", sys.executable)
    env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        env.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Workers of a local session must find jetcluster, even if it is not installed.
        top = str(Path(__file__).resolve().parents[2])
        known = env.get("PYTHONPATH", "").split(os.pathsep)
        if top not in known:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [top, *known]))


def is_local(master: str) -> bool:
    return master.startswith("local")


def cores(master: str, machine: int | None = None) -> int:
    """Returns the number of tasks that a local master runs at once: local, local[N], local[N,F], local[*]."""
    machine = machine or os.cpu_count() or 1
    count = master.partition("[")[2].rstrip("]").partition(",")[0].strip()
    return machine if count == "*" else int(count) if count.isdecimal() and int(count) else 1


def submit_line(master: str, conf: Iterable[str], words: Iterable[str], python: str) -> str:
    """Returns the shell command for the same job under spark-submit, in a folder with what `package.write` writes.
    The job applies SETTINGS itself."""
    found = ["spark-submit", "--master", master]
    for setting in conf:
        found += ["--conf", setting]
    if is_local(master):
        found += ["--driver-java-options", _java_options(quick=False)]
    else:
        found += package.options()
    found += [str(Path(__file__).with_name("__main__.py")), *words]
    return f"PYSPARK_PYTHON={shlex.quote(python)} {shlex.join(found)}"


def _java_options(quick: bool) -> str:
    return f"-Dlog4j2.configurationFile={LOG4J.as_uri()}" + (f" {_QUICK_JVM}" if quick else "")
