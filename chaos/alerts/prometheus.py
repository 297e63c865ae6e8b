"""A Prometheus process of this machine, and its HTTP API."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testkit.forks import die_with_parent
from testkit.harness import HarnessError, eventually, free_port

READY_WITHIN = 30.0
Labels = Mapping[str, str]


def why_not() -> str:
    return "" if shutil.which("prometheus") else "needs prometheus (apt-get install prometheus)"


def version() -> str:
    """In words, for the record of a run."""
    done = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).split("(")[0].strip().replace(", version", "")


class Prometheus:
    """Use as an async context manager."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._log = folder / "prometheus.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Prometheus:
        self._process = self._spawn()
        await eventually(self._ready, READY_WITHIN, f"prometheus is not ready, see {self._log}", every=0.1)
        return self

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                ["prometheus", f"--config.file={self._config}", f"--storage.tsdb.path={self._folder / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{self._port}"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
            )  # fmt: skip

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    async def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise HarnessError(f"prometheus ended: {self._log.read_text()[-1000:]}")
        try:
            await asyncio.to_thread(self._get, "-/ready", {})
        except OSError:
            return False
        return True

    def _get(self, path: str, arguments: Mapping[str, str]) -> bytes:
        query = f"?{urllib.parse.urlencode(arguments)}" if arguments else ""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}{query}", timeout=20) as reply:
            return bytes(reply.read())

    async def ask(self, path: str, **arguments: str) -> Any:
        """`data` of an answer of /api/v1. Raises OSError (of HTTP too)."""
        return json.loads(await asyncio.to_thread(self._get, f"api/v1/{path}", arguments))["data"]

    async def firing(self) -> dict[str, list[Labels]]:
        """Labels of each alert that fires now, by name."""
        found: dict[str, list[Labels]] = {}
        for alert in (await self.ask("alerts"))["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    async def targets(self) -> dict[str, str]:
        """The health ("up", "down", "unknown") of each target, by its address."""
        active = (await self.ask("targets", state="active"))["activeTargets"]
        return {target["labels"]["instance"]: target["health"] for target in active}

    async def over(self, query: str, start: float, end: float, step: float = 1.0) -> int:
        """The number of series that a query gave between two Unix times. Raises OSError: the query is refused."""
        found = await self.ask("query_range", query=query, start=str(start), end=str(end), step=str(step))
        return len(found["result"])
