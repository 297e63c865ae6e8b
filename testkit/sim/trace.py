"""Events in order: every line goes into a digest, which tells whether two runs were the same."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from testkit.sim.loop import Scheduler


class Trace:
    """`lines` keeps them where `keep`; the digest covers them either way."""

    def __init__(self, scheduler: Scheduler, *, keep: bool) -> None:
        self.lines: list[str] = []
        self.count = 0
        self._scheduler = scheduler
        self._keep = keep
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, who: str, what: str) -> None:
        line = f"{self._scheduler.now:12.6f} {who:8} {what}"
        self.count += 1
        self._hash.update(line.encode(errors="backslashreplace"))
        if self._keep:
            self.lines.append(line)

    def show(self, who: str, what: str) -> None:
        """Writes into the lines only."""
        self.lines.append(f"{self._scheduler.now:12.6f} {who:8} {what}")

    def number(self, value: int) -> None:
        """Writes into the digest only."""
        self._hash.update(b"%d," % value)

    def digest(self) -> str:
        return self._hash.hexdigest()


REFUSED = "a command is refused by all replicas"
RECOVERED = "a command failed here alone and was carried out at the second try"
SWALLOWED = frozenset((
    "a background task failed", REFUSED, RECOVERED, "a consumer's owner failed", "a round of balance failed",
    "a subject cannot be listened to", "a subject table cannot be saved", "an assignment failed", "API request failed",
    "API requests cannot be loaded", "API requests could not be begun", "catch-up failed",
    "consumers of a deleted stream are not told of", "links of the stream fail", "request failed", "restore failed",
    "schedules cannot be read", "the load was not measured", "the object service failed", "tick failed",
    "what an API request began failed", "what follows from a command failed",
))  # fmt: skip
"""Log messages that come with an error that somebody caught so that the rest goes on."""
Caught = Callable[[str, BaseException | None], None]


def _nobody(event: str, error: BaseException | None) -> None:
    pass


class SimLog:
    """The logger of a node: `jetcluster.logs.Logger`. `caught` is called for errors that the node did not expect and
    goes on after."""

    is_trace = False

    def __init__(self, trace: Trace, who: str, caught: Caught = _nobody) -> None:
        self.caught = caught
        self._trace = trace
        self._who = who
        self.fatals: list[str] = []

    def bind(self, **context: object) -> SimLog:
        return self

    def _add(self, level: str, event: str, values: dict[str, Any]) -> None:
        said = " ".join(f"{key}={value}" for key, value in values.items())
        self._trace.add(self._who, f"[{level}] {event} {said}".rstrip())

    def trace(self, event: str, **values: object) -> None:
        pass

    def debug(self, event: str, **values: object) -> None:
        pass

    def info(self, event: str, **values: object) -> None:
        self._add("INF", event, values)

    def warning(self, event: str, **values: object) -> None:
        self._add("WRN", event, values)

    def error(self, event: str, **values: object) -> None:
        self._add("ERR", event, values)
        if event in SWALLOWED:
            self.caught(f"{event}: {values.get('error')}", None)

    def exception(self, event: str, **values: object) -> None:
        self._add("ERR", event, values)
        self.caught(event, sys.exc_info()[1])

    def fatal(self, event: str, **values: object) -> None:
        self.fatals.append(event)
        self._add("FTL", event, values)


class Bridge(logging.Handler):
    """Lines of modules that use `logging` go to the log of the process that runs."""

    def emit(self, record: logging.LogRecord) -> None:
        loop: Any = asyncio._get_running_loop()
        log = getattr(loop, "log", None)
        if log is not None:
            log._add(record.levelname[:3], record.getMessage(), {})
            if record.exc_info and record.exc_info[1] is not None:
                log.caught(record.getMessage(), record.exc_info[1])
