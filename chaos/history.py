"""`History`: writes what clients did and saw, in the format of `jetcluster/pipeline/checkers/event.py`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from jetcluster.pipeline.checkers.event import TYPES, Event

FLUSH_EVERY = 1000


class History:
    """Events in memory and, if `path` is given, on disk as they come."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.events: list[Event] = []
        self.path = path
        self._clock = clock
        self._start = clock()
        self._file: TextIO | None = path.open("w") if path else None
        self._ops = 0

    def now(self) -> float:
        return round(self._clock() - self._start, 6)

    def invoke(self, workload: str, f: str, client: str, **more: Any) -> Event:
        self._ops += 1
        return self._add(Event("invoke", self._ops, workload, f, client, t0=self.now(), **more))

    def end(self, invoked: Event, kind: str, **more: Any) -> Event:
        """Completes an operation with `ok`, `fail` or `info`."""
        assert kind in TYPES and kind != "invoke", kind
        return self._add(dataclasses.replace(invoked, type=kind, t1=self.now(), **more))

    def note(self, workload: str, f: str, client: str = "", *, since: float | None = None, **more: Any) -> Event:
        """Something that has no duration, or began at `since`."""
        self._ops += 1
        now = self.now()
        return self._add(
            Event("ok", self._ops, workload, f, client, t0=now if since is None else since, t1=now, **more)
        )

    def change(self, events: list[Event]) -> None:
        """Has these instead of all that was written down so far."""
        self.events = events
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.writelines(event.to_json() + "\n" for event in events)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, event: Event) -> Event:
        self.events.append(event)
        if self._file is not None:
            self._file.write(event.to_json() + "\n")
            if len(self.events) % FLUSH_EVERY == 0:
                self._file.flush()
        return event
