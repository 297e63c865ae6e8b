"""A part of a core for each server: by the processor quota of a control group, on a core that they share."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""A server may use its share of each such time, and stands still for the rest: whoever waits for its answer waits for
that, too. No shorter: a quota has 1 ms at least, and the kernel looks at what was used every few milliseconds. What a
process took too much it lacks in the next period."""
_TRIES, _WAIT = 50, 0.02


class ShareError(Exception):
    """This machine cannot give a process a share of a core; the text says why."""


class Shares:
    """Groups with a quota, version 1 or 2 of control groups. `close` lets all processes go."""

    def __init__(self, root: Path = CGROUPS) -> None:
        """Raises ShareError."""
        self._groups: list[Path] = []
        self._one = (root / "cpu" / "cgroup.procs").exists()
        self._parent = root / "cpu" if self._one else root
        if not self._one:
            try:
                if "cpu" not in (root / "cgroup.controllers").read_text().split():
                    raise ShareError(f"{root} has no controller of processors")
                (root / "cgroup.subtree_control").write_text("+cpu")
            except OSError as error:
                raise ShareError(f"control groups of processors cannot be used: {error}") from None

    def hold(self, pid: int, share: float) -> None:
        """Gives a process and its threads `share` of a core. Raises ShareError."""
        group = self._parent / f"jetcluster-bench-{os.getpid()}-{len(self._groups)}"
        quota = round(share * PERIOD_US)
        try:
            group.mkdir()
            self._groups.append(group)
            if self._one:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise ShareError(f"no share of a core for process {pid} (it takes root): {error}") from None

    def close(self) -> None:
        """Processes that still run go back to the group above."""
        for group in self._groups:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # it has ended
                    (self._parent / "cgroup.procs").write_text(pid)
            for _ in range(_TRIES):  # one that ends counts for a moment
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(_WAIT)
        self._groups.clear()


@contextlib.contextmanager
def shares(pids: Iterable[int], share: float, root: Path = CGROUPS) -> Iterator[None]:
    """Each process has so much of a core meanwhile. Raises ShareError."""
    held = Shares(root)
    try:
        for pid in pids:
            held.hold(pid, share)
        yield
    finally:
        held.close()


def cores() -> tuple[int, int] | None:
    """A core for the servers and one for the client; None where this process has only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[-1]) if len(allowed) > 1 else None


def pin(pid: int, core: int) -> None:
    """Puts all threads of a process on a core; later ones follow those that start them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})


@contextlib.contextmanager
def apart(pids: Iterable[int]) -> Iterator[None]:
    """The servers are on one core and this process is on another one, from here on and meanwhile; where there is only
    one, all stay where they are."""
    before, found = os.sched_getaffinity(0), cores()
    if found is None:
        yield
        return
    for pid in pids:
        pin(pid, found[0])
    pin(os.getpid(), found[1])
    try:
        yield
    finally:
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), before)
