"""`LockOwner`: the process that holds a lock, told so that another process may know that it is gone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
_START_FIELD: Final = 19
"""A field of /proc/<pid>/stat, counted behind the name: when the process started (proc_pid_stat(5), field 22)."""


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A process. Process numbers mean something within a start of a machine and a namespace alone."""

    host: str
    pid: int
    started: str
    """Ticks from the start of the machine to the start of the process; "" where the system does not tell."""
    boot: str
    """The start of the machine, a random name; "" where the system does not tell."""
    space: str
    """The namespace of process numbers: containers have their own."""

    @classmethod
    def here(cls) -> LockOwner:
        """This process."""
        return cls(os.uname().nodename, os.getpid(), _started(os.getpid()), _boot(), _space())

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> LockOwner | None:
        """None for the lock of a version that does not tell its process."""
        try:
            return cls(
                str(found["host"]), int(found["pid"]), str(found["started"]), str(found["boot"]), str(found["space"])
            )
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_gone(self) -> bool:
        """True if the process has ended for certain: it was one of this machine's, and its number is free or another
        process's now. False where that cannot be known."""
        if not (self.boot and self.space and self.started) or (self.boot, self.space) != (_boot(), _space()):
            return False
        return _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _started(pid: int) -> str:
    """ "" for a process that is not there, or has ended and was not waited for."""
    text = _text(PROC / str(pid) / "stat").rpartition(")")[2].split()
    return text[_START_FIELD] if len(text) > _START_FIELD and text[0] not in "ZX" else ""


def _boot() -> str:
    return _text(PROC / "sys/kernel/random/boot_id").strip()


def _space() -> str:
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
