"""`jetcluster pipeline JOB ...` = `python -m jetcluster.pipeline JOB ...` = the same under spark-submit.

A job is one module with

    add_arguments(parser)            its own arguments; no pyspark is imported for it
    check(args)                      optional: all checks that need no Spark, which takes seconds to start
    run(session, args) -> Result

and a line in `JOBS`. It raises `result.JobError`, or an exception of Spark's.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, cast

from jetcluster.pipeline import arguments, environment, result
from jetcluster.pipeline.environment import progress
from jetcluster.pipeline.naming import named
from jetcluster.pipeline.result import Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM: Final = "jetcluster pipeline"
JOBS: Final[dict[str, str]] = {
    "archive": "Write a stream to Parquet, with a manifest per batch; --follow goes on with what comes",
    "restore": "Put an archive back into a stream: byte for byte as a new one, or published to one in use",
    "snapshot": "A key-value bucket as of a sequence or a time, to Parquet or JSON lines",
    "lakehouse": "Keep Delta Lake and Iceberg tables in step with a stream or a bucket, each message once",
    "audit": "Compare all replicas and mirrors of a stream, or two streams, byte for byte",
    "verify": "Judge histories of the chaos suite: lost, duplicated, out of order, stale, broken batches",
    "doctor": "Check Java, pyspark and what it needs, worker Python and, with --server, the server",
}
"""Name of the job, which is also its module's, -> one line of help."""


class JobModule(Protocol):
    """The functions that a job's module must have."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, session: SparkSession, args: argparse.Namespace) -> Result: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one job and returns the exit code: 0 ok, 1 check failed, 2 usage, 3 environment, 4 data loss or fence."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        progress(overview().rstrip())
        return result.USAGE
    if words[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return result.OK
    if words[0] not in JOBS:
        return _fail(f"unknown job {words[0]!r}; there are {', '.join(JOBS)}", result.USAGE)
    job = cast(JobModule, importlib.import_module(f"jetcluster.pipeline.{words[0]}"))
    try:
        args = parser_of(words[0], job).parse_args(words[1:])
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else result.USAGE
    if args.print_submit:
        return print_submit(args, words)
    try:
        done = run(words[0], job, args)
    except (Exception, KeyboardInterrupt) as error:
        if "JETCLUSTER_PIPELINE_TRACEBACK" in os.environ:
            raise
        text, code = result.explain(error)
        return _fail(text, code)
    print(done.render(one_line=args.json), flush=True)
    return done.code


def run(name: str, job: JobModule, args: argparse.Namespace) -> Result:
    """Checks the environment and the arguments, opens the session, runs the job, and stops Spark again."""
    if name == "doctor":  # it checks the environment itself
        from jetcluster.pipeline import doctor

        return doctor.examine(args)
    environment.check()
    check = getattr(job, "check", None)
    if check is not None:
        check(args)
    from jetcluster.pipeline import session

    if not args.json and not environment.is_submitted():
        progress(f"{PROGRAM} {name}: starting Spark ({args.master})")
    spark = session.open_session(args.master, args.conf, name=f"jetcluster {name}", quick=not _is_long(args))
    try:
        with named(spark, _title(name, args)):
            return job.run(spark, args)
    finally:
        if not environment.is_submitted():
            spark.stop()


def run_in(session: SparkSession, name: str, *words: str) -> Result:
    """Runs the job in a notebook's session. Raises what the job raises, and SystemExit for unknown arguments."""
    job = cast(JobModule, importlib.import_module(f"jetcluster.pipeline.{name}"))
    args = parser_of(name, job).parse_args([*words, "--json"])
    check = getattr(job, "check", None)
    if check is not None:
        check(args)
    with named(session, _title(name, args)):
        return job.run(session, args)


def _title(name: str, args: argparse.Namespace) -> str:
    """Spark's UI calls the work of a job so, where the job does not name it more exactly itself."""
    given = vars(args)
    of = next((str(given[key]) for key in ("stream", "bucket", "source", "archive", "workload") if given.get(key)), "")
    return f"{name} of {of}" if of else name


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints one line, without the usage, and exits."""
        progress(f"{self.prog}: {message} (see --help)")
        self.exit(result.USAGE)


def parser_of(name: str, job: JobModule) -> argparse.ArgumentParser:
    parser = _Parser(prog=f"{PROGRAM} {name}", description=JOBS[name], allow_abbrev=False)
    job.add_arguments(parser)
    arguments.add_common(parser)
    return parser


def overview() -> str:
    lines = [f"Usage: {PROGRAM} JOB [options]     ({PROGRAM} JOB --help)", "", "Jobs on Spark around a stream:"]
    lines += [f"    {name:<10}{text}" for name, text in JOBS.items()]
    lines += ["", "Result: one JSON object on stdout. Exit codes: 0 ok, 1 check failed, 2 usage, 3 environment,"]
    lines += ["4 data loss or another writer"]
    return "\n".join(lines) + "\n"


def print_submit(args: argparse.Namespace, words: Sequence[str]) -> int:
    from jetcluster.pipeline import package, session

    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    print(session.submit_line(args.master, args.conf, job_words(words), python))
    if not session.is_local(args.master):
        try:
            package.write(Path.cwd())
        except OSError as error:
            return _fail(f"{package.file_name()} cannot be written here: {error}", result.ENVIRONMENT)
        progress(
            f"wrote {package.file_name()} and {package.SHIM}; on all machines {python} needs "
            f"{', '.join(packages_of(args))}{'; here also deltalake, pyiceberg' if words[0] == 'lakehouse' else ''}"
        )
    return result.OK


def packages_of(args: argparse.Namespace) -> list[str]:
    """Returns the packages that the Python of all machines needs for a job."""
    from jetcluster.archive.storage import OBJECT_STORES

    given = vars(args)
    urls = [str(given.get(name) or "") for name in ("out", "source", "archive")]
    found = [*environment.PACKAGES]
    if any(url.partition("://")[0] in OBJECT_STORES for url in urls):
        found.append("obstore")
    return found + [{"avro": "fastavro", "protobuf": "protobuf"}[form] for form in ("avro", "protobuf")
                    if given.get("format") == form]  # fmt: skip


def job_words(words: Sequence[str]) -> list[str]:
    """Returns the command line without the options that go to spark-submit itself."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--master", "--conf"):
            skip = True
        elif word != "--print-submit" and not word.startswith(("--master=", "--conf=")):
            kept.append(word)
    return kept


def _is_long(args: argparse.Namespace) -> bool:
    """True for jobs that may run long enough for the optimizing compiler and a parallel collector to pay off."""
    return bool(getattr(args, "follow", False) or getattr(args, "long", False))


def _fail(text: str, code: int) -> int:
    progress(f"{PROGRAM}: {text}")
    return code
