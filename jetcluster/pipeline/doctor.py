"""`jetcluster pipeline doctor`: tries each prerequisite of Spark jobs and reports a remedy for the first one
missing."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

from jetcluster.pipeline import environment
from jetcluster.pipeline.arguments import add_server, server_options_of
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.result import ENVIRONMENT, OK, EnvironmentProblem, Result, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.set_defaults(server=None)


class _Examination:
    """The checks that ran, and their results."""

    def __init__(self, *, quiet: bool) -> None:
        self.checks: list[dict[str, Any]] = []
        self.failed = False
        self._quiet = quiet

    def look(self, name: str, check: Callable[[], Any]) -> None:
        """Runs one check unless an earlier one failed: later checks would fail for the same reason."""
        if self.failed:
            return
        start = time.monotonic()
        try:
            found, ok = check(), True
        except Exception as error:  # noqa: BLE001 - reported as the result of this check
            found, ok = explain(error)[0], False
        self.failed = not ok
        self.checks.append({"check": name, "ok": ok, "found": found, "seconds": round(time.monotonic() - start, 2)})
        if not self._quiet:
            progress(f"{'ok     ' if ok else 'MISSING'} {name}: {found}")


def run(session: SparkSession, args: argparse.Namespace) -> Result:
    """Runs the checks in a session that is there."""
    return examine(args, session)


def examine(args: argparse.Namespace, session: SparkSession | None = None) -> Result:
    """Runs all checks, the server last and only with `--server`. The exit code is 3 when something is missing. Without
    a session it starts one, and stops it."""
    at = _Examination(quiet=args.json)
    at.look("python", lambda: f"{platform.python_version()} ({sys.executable})")
    for package in environment.PACKAGES:
        at.look(package, functools.partial(_package, package))
    if session is None and not environment.is_submitted():
        at.look("java", lambda: f"{environment.java_version(os.environ)} ({environment.find_java(os.environ)})")
    if not at.failed:
        _examine_spark(at, args, session)
    if args.server:
        at.look("server", lambda: _server(args))
    return Result("doctor", {"checks": at.checks}, ENVIRONMENT if at.failed else OK)


def _examine_spark(at: _Examination, args: argparse.Namespace, session: SparkSession | None) -> None:
    from jetcluster.pipeline.session import open_session

    sessions = [] if session is None else [session]

    def start() -> str:
        if not sessions:
            sessions.append(open_session(args.master, args.conf, name="jetcluster doctor", quick=True))
        return f"Spark {sessions[0].version}, {sessions[0].conf.get('spark.master')}"

    at.look("session", start)
    at.look("one-row job", lambda: f"{sessions[0].range(1).count()} row")
    at.look("worker python", lambda: _worker(sessions[0]))
    if sessions and session is None and not environment.is_submitted():
        sessions[0].stop()


def _package(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentProblem(f"not installed: {environment.INSTALL_EXTRA}") from None


def _worker(session: SparkSession) -> str:
    """Runs code in a worker and compares its Python version with ours, as data sources travel as pickles."""
    told = session.range(1).mapInArrow(_described, "version string, arrow string").collect()[0]
    version, arrow = told.version, told.arrow
    if version != platform.python_version():
        raise EnvironmentProblem(
            f"workers run Python {version}, this is {platform.python_version()}: set PYSPARK_PYTHON"
        )
    return f"{version}, pyarrow {arrow}"


def _described(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow

    for _ in batches:
        told = {"version": platform.python_version(), "arrow": str(pyarrow.__version__)}
        yield pyarrow.RecordBatch.from_pylist([told])


def _server(args: argparse.Namespace) -> str:
    with server_options_of(args).connect() as connection:
        info = connection.api("INFO")
        return f"{connection.server_name or connection.url} answers; the account has {info['streams']} streams"
