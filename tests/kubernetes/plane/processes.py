"""The processes of the control plane: started with a log each, ended by their ids."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


class Processes:
    """The processes that were started, in this order; it ends in the other one."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *command: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def until(self, name: str, ready: Callable[[], bool], within: float = 120.0) -> None:
        """Waits for a process that was started. Raises RuntimeError with its last words."""
        end = time.monotonic() + within
        while not ready():
            code = self._running[name].poll()
            if code is not None or time.monotonic() > end:
                said = (self._logs / f"{name}.log").read_text(errors="replace")[-2000:]
                state = f"ended with {code}" if code is not None else f"is not ready after {within:.0f} s"
                raise RuntimeError(f"{name} {state}:\n{said}")
            time.sleep(0.3)

    def end(self, name: str, within: float = 20.0) -> None:
        process = self._running.pop(name)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within)
        if process.poll() is None:
            process.kill()
            process.wait()

    def end_all(self) -> None:
        for name in reversed(list(self._running)):
            self.end(name)
