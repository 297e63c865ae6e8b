"""Jobs on the session of the tests, with the arguments of the command line."""

from __future__ import annotations

import importlib
from typing import Any

from jetcluster.pipeline import main
from jetcluster.pipeline.result import Result, explain


def run(spark: Any, servers: str, name: str, *words: object) -> Result:
    """Does what `jetcluster pipeline NAME ...` does between starting Spark and stopping it. Raises what the job
    raises."""
    job: Any = importlib.import_module(f"jetcluster.pipeline.{name}")
    args = main.parser_of(name, job).parse_args(["--server", servers, "--json", *map(str, words)])
    if hasattr(job, "check"):
        job.check(args)
    result: Result = job.run(spark, args)
    return result


def fails(spark: Any, servers: str, name: str, *words: object) -> tuple[str, int]:
    """(the one line that is printed, exit code) of a job that must not succeed."""
    try:
        found = run(spark, servers, name, *words)
    except Exception as error:
        return explain(error)
    raise AssertionError(f"{name} succeeded: {found.fields}")
