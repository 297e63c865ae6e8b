"""Named fault points, off unless armed.

A fault point is one call, `faults.point("journal.write")`, on a path that a test or an operator's drill breaks. It
costs one truth test of a dictionary while nothing is armed. Tests arm it with `armed(...)`; process tests and drills
use the environment variable `JETCLUSTER_FAULTS`, for example

    JETCLUSTER_FAULTS="journal.write=enospc@100+50;journal.synced=kill@7"

which fails hits 100-149 of `journal.write` with ENOSPC and kills the process (SIGKILL) at the 7th `journal.synced`.
A fault may also last as long as a file exists:

    JETCLUSTER_FAULTS="journal.write=hang@/run/drill/hang"

`jetcluster serve` arms the points of the variable, and logs that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Action = Callable[[], None]

POINTS = frozenset(
    {
        "journal.create",  # before a new segment file is made
        "journal.write",  # before a batch is written (and synced)
        "journal.synced",  # after a batch is durable, before any callback
        "journal.read",  # before an old entry is read back from its segment
        "store.write",  # before a batch goes to RocksDB, in memory and on the event loop: no real write hangs here
        "store.flush",  # after a memtable is durable, in a thread, before any callback
        "store.read",  # before records are read
        "raft.apply",  # before a committed command is applied
        "raft.flush",  # before AppendEntries leave
        "archive.written",  # after a batch's Parquet files, before its manifest
        "archive.committed",  # after the manifest
        "archive.guarded",  # after the retention guard went to the end of the batch
        "archive.compacted",  # after the files of a batch made of many, before its manifest
        "lakehouse.written",  # after a batch's data files, before any table's commit
        "lakehouse.committed",  # after each table's commit
    }
)
"""The names of all fault points; no other name can be armed."""

VARIABLE = "JETCLUSTER_FAULTS"
_POLL_SECONDS = 0.01
"""Interval at which a hanging point checks its file."""

active: dict[str, Action] = {}
"""The armed points. Hot paths check it before they call `point`."""


def point(name: str) -> None:
    """Run the action armed for `name`, which may raise, if any."""
    if active:
        action = active.get(name)
        if action is not None:
            action()


def arm(name: str, action: Action) -> None:
    if name not in POINTS:
        raise ValueError(f"no fault point named {name!r}")
    active[name] = action


def disarm(name: str | None = None) -> None:
    """Disarm one point, or all."""
    if name is None:
        active.clear()
    else:
        active.pop(name, None)


@contextlib.contextmanager
def armed(name: str, action: Action) -> Iterator[None]:
    arm(name, action)
    try:
        yield
    finally:
        disarm(name)


def fail(code: int) -> Action:
    """Return an action that raises `OSError(code)`."""

    def action() -> None:
        raise OSError(code, os.strerror(code))

    return action


def kill() -> None:
    """End this process as `kill -9` does: without flushing or closing anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def delay(seconds: float) -> Action:
    def action() -> None:
        time.sleep(seconds)

    return action


def hits(action: Action, first: int, count: int | None = None) -> Action:
    """`action` on hits `first`, `first`+1, ... (from 1); `count` of them, or all from there on."""
    seen = 0

    def counted() -> None:
        nonlocal seen
        seen += 1
        if seen >= first and (count is None or seen < first + count):
            action()

    return counted


def while_exists(path: Path, action: Action) -> Action:
    """Return an action that does `action` on each hit while file `path` exists."""

    def looked() -> None:
        if path.exists():
            action()

    return looked


def hang(path: Path) -> Action:
    """Return an action that blocks while file `path` exists."""

    def action() -> None:
        while path.exists():
            time.sleep(_POLL_SECONDS)

    return action


def from_environment(value: str | None) -> None:
    """Arm the points of `JETCLUSTER_FAULTS`: `point=action[@first[+count]]` or `point=action@/path` joined by `;`.

    Actions: enospc, eio, emfile, kill, delay:<seconds>, hang (with a path only). Raises ValueError for any other text.
    """
    for part in filter(None, (value or "").split(";")):
        name, equals, text = part.strip().partition("=")
        if not equals:
            raise ValueError(f"{VARIABLE}: expected point=action, got {part!r}")
        text, _, when = text.partition("@")
        if when.startswith("/"):
            path = Path(when)
            arm(name, hang(path) if text == "hang" else while_exists(path, _action(text)))
            continue
        action = _action(text)
        if when:
            first, _, count = when.partition("+")
            action = hits(action, int(first), int(count) if count else None)
        arm(name, action)


def _action(text: str) -> Action:
    kind, _, argument = text.partition(":")
    if kind == "enospc":
        return fail(errno.ENOSPC)
    if kind == "eio":
        return fail(errno.EIO)
    if kind == "emfile":
        return fail(errno.EMFILE)
    if kind == "kill":
        return kill
    if kind == "delay":
        return delay(float(argument))
    raise ValueError(f"{VARIABLE}: unknown action {text!r}")
