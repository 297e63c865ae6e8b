"""`jetcluster pipeline lakehouse` in a process of its own, which a test kills where it wants to: as `kill -9` does, and
at a moment that the tables themselves tell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from testkit.harness import TOP
from tests.spark.lake import Lake

SLOW = 250.0
"""Seconds that a job may take with its start on a busy machine."""
LOOK_SECONDS = 0.002
"""Time between two looks at the tables' folders. A MERGE of some megabytes takes a hundred times that."""
BEYOND_SECONDS = 1.0
"""Time between two looks at the catalog, for a moment that was missed."""


class State(NamedTuple):
    """Rows that the tables have, as their folders and the catalog tell."""

    delta_files: frozenset[str]
    delta_commits: int
    iceberg_files: frozenset[str]
    iceberg: str
    """The file that the catalog names."""


Moment = Callable[[Lake, State], bool]
"""True when the job is at the place where it is to die; the state is that of the tables before it began."""


def state_of(lake: Lake) -> State:
    return State(_delta_files(lake), _delta_commits(lake), _iceberg_files(lake), lake.iceberg_metadata_location())


def in_delta_merge(lake: Lake, was: State) -> bool:
    """Files of a commit are there, or a part of one, and no commit that names them."""
    return _delta_files(lake) != was.delta_files and _delta_commits(lake) == was.delta_commits


def in_iceberg_merge(lake: Lake, was: State) -> bool:
    """The same of Iceberg: data files or manifests, and the catalog names what it did."""
    return _iceberg_files(lake) != was.iceberg_files and lake.iceberg_metadata_location() == was.iceberg


def between_commits(lake: Lake, was: State) -> bool:
    """Delta has a commit that Iceberg has not, and nothing is there of Iceberg's."""
    return _delta_commits(lake) != was.delta_commits and _iceberg_files(lake) == was.iceberg_files


def between_growths(lake: Lake, was: State) -> bool:
    """Delta's columns are others, and Iceberg's are not."""
    names = sorted(_names(lake.delta / "_delta_log"))
    new = [name for name in names if name.endswith(".json") and int(name[:20]) >= was.delta_commits]
    grown = any('"metaData"' in (lake.delta / "_delta_log" / name).read_text() for name in new)
    return grown and lake.iceberg_metadata_location() == was.iceberg


def _names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()]


def _delta_files(lake: Lake) -> frozenset[str]:
    return frozenset(name for name in _names(lake.delta) if ".parquet" in name)


def _delta_commits(lake: Lake) -> int:
    return sum(name.endswith(".json") and name[:20].isdigit() for name in _names(lake.delta / "_delta_log"))


def _iceberg_files(lake: Lake) -> frozenset[str]:
    top = lake.folder / "iceberg" / "db" / "t"
    return frozenset(
        f"{part}/{name}"
        for part in ("data", "metadata")
        if (top / part).is_dir()
        for name in _names(top / part)
        if not name.endswith(".metadata.json")
    )


@contextlib.contextmanager
def driver(servers: str, log: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A job with all its processes in a group of their own. It is killed at the end, if it is there."""
    command = [sys.executable, "-m", "jetcluster.pipeline", "lakehouse", "--server", servers, *words, "--json"]
    command += ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]
    paths = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH", "")]))
    with log.open("w") as errors:
        job = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"PYTHONPATH": paths},
            start_new_session=True,
        )  # fmt: skip
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(30)
        assert job.stdout is not None
        job.stdout.close()


def landed(servers: str, log: Path, *words: str) -> dict[str, Any]:
    """The result of a job that nobody kills."""
    with driver(servers, log, *words) as job:
        out, _ = job.communicate(timeout=SLOW)
        assert job.returncode == 0, log.read_text()[-3000:]
    found: dict[str, Any] = json.loads(out)
    return found


def dies_at(moment: Moment, servers: str, lake: Lake, log: Path, *words: str) -> bool:
    """Kills a following job at a moment, or when both tables are beyond it; whether it really was there, as a kill
    comes a little later than the look before it."""
    was, deadline = state_of(lake), time.monotonic() + SLOW
    with driver(servers, log, *words, "--follow", "--every", "0.2") as job:
        beyond = time.monotonic() + BEYOND_SECONDS
        while not moment(lake, was):
            if time.monotonic() > beyond:
                assert job.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                if lake.iceberg_metadata_location() != was.iceberg:
                    break
                beyond = time.monotonic() + BEYOND_SECONDS
            time.sleep(LOOK_SECONDS)
        os.kill(job.pid, signal.SIGKILL)
        job.wait(30)
        return moment(lake, was)
