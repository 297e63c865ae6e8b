# ruff: noqa: S603 - runs py-spy, with fixed arguments
"""Profiles of rows: py-spy on the node that does the work, while the load runs; the top functions by their own time."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.harness import HarnessError, Node

TOP_LINES = 12
RATE = 250
"""Samples per second."""
STARTED = 2
"""Seconds of a start that are profiled."""
_ATTACHED = 1.5
_LINE = re.compile(r":\d+\)$")
_ADDRESS = re.compile(r"^0x[0-9a-f]+ ")
_WAITS = re.compile(r"PyThread_acquire_lock_timed|(?:;|^)(?:epoll_p?wait|poll|select) \([^;]*$")
"""Stacks of threads that wait: py-spy takes some of them for busy when it reads native frames."""
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_HEAD = """# Profiles

For the reader of [benchmarks](../benchmarks.md): where does the time go in the rows below 1.2 times nats-server's
default? Written by `python -m bench page --profile`: py-spy on the leader (starts: on the node that starts) while the
row's load runs, native frames too; share of the samples of all threads that did not wait, by the function that ran.
"""


@dataclass(slots=True)
class Profile:
    """One row's: how many samples there were, and the functions with the most of them."""

    total: int
    functions: list[tuple[str, int]]

    @classmethod
    def parse(cls, raw: str) -> Profile:
        """Reads py-spy's raw format: a stack and its count a line."""
        found: Counter[str] = Counter()
        for line in raw.splitlines():
            stack, _, count = line.rpartition(" ")
            if stack and not _WAITS.search(stack):
                found[_ADDRESS.sub("", _LINE.sub(")", stack.rpartition(";")[2]))] += int(count)
        return cls(found.total(), found.most_common(TOP_LINES))

    def table(self) -> str:
        lines = [f"{self.total} samples.", "", "| share | function |", "|---:|---|"]
        lines += [f"| {100 * count / self.total:.1f} % | {_told(name)} |" for name, count in self.functions]
        return "\n".join(lines)


def _told(name: str) -> str:
    return "`" + name.replace("|", "\\|").replace("`", "'")[:120] + "`"


class Profiler:
    """Attached by a measurement to a node (`watch`), or told of a node whose start is the row (`watch_start`);
    `found` has a profile for each measurement, by its first row."""

    def __init__(self) -> None:
        self.found: dict[str, Profile] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="profile-")
        self._output = Path(self._folder.name) / "raw"
        self._node: Node | None = None

    def watch(self, node: Node) -> None:
        """Begins, unless it has; py-spy needs a second to find out what the process is."""
        if self._process is None:
            self._process = self._py_spy("--pid", str(node.pid))
            time.sleep(_ATTACHED)

    def watch_start(self, node: Node) -> None:
        self._node = node

    def drop(self) -> None:
        """Ends it without a profile: the measurement has failed."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = self._node = None
        self._output.unlink(missing_ok=True)

    async def finish(self, row: str) -> None:
        """Ends it; the profile is that of `row`. Raises HarnessError when py-spy has nothing to say."""
        if (node := self._node) is not None:
            await node.stop()
            # py-spy ends what it has started when the time is over.
            self._process = self._py_spy(
                "--duration", str(STARTED), "--", sys.executable, "-m", "jetcluster", "serve", *node.args
            )
        if (process := self._process) is None:
            return
        if node is None:
            process.send_signal(signal.SIGINT)
        self._process = self._node = None
        _, told = await asyncio.to_thread(process.communicate, timeout=60)
        if node is not None:
            await node.start()
        if not self._output.exists() or not (raw := self._output.read_text()):
            raise HarnessError(f"py-spy: {told.decode(errors='replace').strip()[-300:]}")
        self._output.unlink()
        self.found[row] = Profile.parse(raw)

    def _py_spy(self, *args: str) -> subprocess.Popen[bytes]:
        program = str(Path(sys.executable).with_name("py-spy"))
        command = [program, "record", "--rate", str(RATE), "--native", "--format", "raw",
                   "--output", str(self._output), *args]  # fmt: skip
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def anchor(row: str) -> str:
    """The anchor of a row's heading, as MkDocs makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", row.lower()).strip())


def profiled_rows(page: str) -> set[str]:
    """The rows that the page of profiles has."""
    return set(_HEADING.findall(page))


def merged(page: str, found: dict[str, Profile], commit: str, order: Sequence[str]) -> str:
    """The page of profiles with those that were `found`; the others stay. In the order of `order`."""
    sections = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in page.split("\n## ")[1:]}
    sections |= {row: f"At commit {commit}. {profile.table()}" for row, profile in found.items()}
    known = [row for row in order if row in sections]
    return _HEAD + "".join(f"\n## {row}\n\n{sections[row]}\n" for row in known)
