"""Restores an archive with tasks or executors that are killed, and tried again.

Runs as a program of its own, because a session of the tests tries no task again, and has no executors:

    python -m tests.spark.restoring SERVERS ARCHIVE FOLDER MODE STREAM tasks|executors

Prints the result's fields with `killed`, how often something was killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jetcluster.client.connection import Connection
from jetcluster.pipeline import restore_parts
from jetcluster.pipeline.main import run_in
from tests.spark.session import open_session
from tests.spark.streams import stored

KILLS = 2
MASTERS = {"tasks": "local[2,8]", "executors": "local-cluster[2,1,1024]"}
"""The process that is killed -> the session's master, with which they run as processes of their own."""


def tasks() -> list[int]:
    """The Python processes of tasks, which are children of Spark's daemon."""
    return [
        pid for parent, pid in _below(os.getpid()) if _runs(pid, b"pyspark.daemon") and _runs(parent, b"pyspark.daemon")
    ]


def executors() -> list[int]:
    return [pid for _, pid in _below(os.getpid()) if _runs(pid, b"CoarseGrainedExecutorBackend")][:1]


def _runs(pid: int, word: bytes) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _below(pid: int) -> Iterator[tuple[int, int]]:
    """Pairs of parent and child, of all processes below one."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in map(int, children):
            yield pid, child
            yield from _below(child)


class Killer:
    """Kills the victims whenever `progress()` has passed the next one of some marks."""

    def __init__(self, victims: Callable[[], list[int]], progress: Callable[[], int], marks: list[int]) -> None:
        self.killed = 0
        self._victims = victims
        self._progress = progress
        self._marks = marks
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while self._marks and not self._over.wait(0.02):
            if self._progress() >= self._marks[0] and (found := self._victims()):
                for pid in found:
                    os.kill(pid, signal.SIGKILL)
                self.killed += 1
                self._marks.pop(0)


def run(servers: str, archive: str, folder: Path, mode: str, stream: str, what: str) -> dict[str, Any]:
    session: Any = open_session(folder, MASTERS[what])
    victims = tasks if what == "tasks" else executors
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    made = [0]
    ahead = restore_parts.ahead

    def counted(parts: Any, call: Any, width: int) -> Iterator[Any]:
        for result in ahead(parts, call, width):
            made[0] += 1
            time.sleep(0.1)  # so that the killer comes in time
            yield result

    restore_parts.ahead = counted
    with Connection(servers.split(",")) as connection:
        if mode == "exact":
            killer = Killer(victims, lambda: made[0], [2, 5])
        else:
            killer = Killer(victims, lambda: stored(connection, stream), [300, 1500])
        with killer:
            words = ["--server", servers, "--from", archive, "--stream", stream, "--mode", mode]
            words += [] if mode == "exact" else ["--create", "--source-seq"]
            fields = run_in(session, "restore", *words).fields
    session.stop()
    return fields | {"killed": killer.killed}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:7])))
