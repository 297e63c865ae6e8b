"""`MemoryWatch`: watches whether memory is left for this process.

The kernel kills a process at the limit of its control group (a container's) or of the machine. It reports both in
files (cgroup v2: Documentation/admin-guide/cgroup-v2.rst, v1: cgroup-v1/memory.rst; /proc/self/cgroup: cgroups(7);
/proc/meminfo: proc(5)).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jetcluster.clock import Clock

LOOK_SECONDS: Final = 1.0
"""Seconds between two measurements."""
MAX_GROUP_SHARE: Final = 0.92
"""Share of the control group's limit that the process may use."""
MIN_MACHINE_SHARE: Final = 0.02
"""Share of the machine's memory that must be available."""


class MemoryWatch:
    """`trouble` is a `node_health.Check`."""

    def __init__(self, clock: Clock, root: Path = Path("/")) -> None:
        """`root` is the root of the file system; tests give another directory."""
        self._clock = clock
        self._root = root
        self._next = 0.0
        self._found = ""
        self._limit = memory_limit(root)
        self._page = os.sysconf("SC_PAGE_SIZE")

    def trouble(self) -> str:
        """Return which limit is near; "" while none is, or where the kernel does not report it."""
        now = self._clock.monotonic()
        if now >= self._next:
            self._next = now + LOOK_SECONDS
            self._found = self._group() or self._machine()
        return self._found

    def _group(self) -> str:
        if self._limit is None:
            return ""
        used = _resident(self._root / "proc/self/statm") * self._page
        if used <= MAX_GROUP_SHARE * self._limit:
            return ""
        return f"{used >> 20} MiB are used of the {self._limit >> 20} MiB that the control group allows"

    def _machine(self) -> str:
        total = available = 0
        try:
            with (self._root / "proc/meminfo").open() as file:
                for line in file:
                    name, _, rest = line.partition(":")
                    if name == "MemTotal":
                        total = int(rest.split()[0])
                    elif name == "MemAvailable":
                        available = int(rest.split()[0])
                        break
        except (OSError, ValueError, IndexError):
            return ""
        if available >= MIN_MACHINE_SHARE * total:
            return ""
        return f"{available >> 10} MiB are available of the machine's {total >> 10} MiB"


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the smallest limit in bytes of the process's control group and of the groups above it; None without one. A
    systemd unit has its own group, and each parent may have a limit. In a container, the path from the kernel may exist
    only outside of it: then the top group is the container's."""
    found = [_number(file) for file in _limit_files(root)]
    return min((limit for limit in found if limit is not None), default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    mounted = root / "sys/fs/cgroup"
    yield mounted / "memory.max"
    yield mounted / "memory/memory.limit_in_bytes"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:  # "0::/system.slice/jetcluster.service" (v2), "4:memory:/docker/..." (v1)
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue
        if not controllers:
            tops, name = [mounted, mounted / "unified"], "memory.max"
        elif "memory" in controllers.split(","):
            tops, name = [mounted / "memory"], "memory.limit_in_bytes"
        else:
            continue
        for top in tops:
            for depth in range(1, len(parts) + 1):
                yield top.joinpath(*parts[:depth], name)


def _number(path: Path) -> int | None:
    """Return the number in a file; None without such a file, or for another text ("max")."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _resident(statm: Path) -> int:
    """Return the resident pages; 0 when the kernel does not report them."""
    try:
        return int(statm.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
