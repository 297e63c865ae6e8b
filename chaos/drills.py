"""Faults that a running server plays on itself while a file exists (`JETCLUSTER_FAULTS`, docs/health/drills.md):
disks that hang or answer with errors."""

from __future__ import annotations

from pathlib import Path

from jetcluster import faults

ACTIONS = {"journal.write": "hang", "journal.synced": "eio", "store.write": "eio"}
"""Fault point -> what it does. A point has one action."""


def why_not(point: str) -> str:
    """Why it cannot be had; "" when it can."""
    return "" if point in faults.POINTS else f"this server has no fault point {point}"


class Drill:
    """A node's drills: the environment it is started with, and a switch per point."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        known = {point: action for point, action in ACTIONS.items() if not why_not(point)}
        self.env = {faults.VARIABLE: ";".join(f"{point}={does}@{self._file(point)}" for point, does in known.items())}

    def begin(self, point: str) -> None:
        self._file(point).touch()

    def end(self, point: str) -> None:
        self._file(point).unlink(missing_ok=True)

    def _file(self, point: str) -> Path:
        return self._folder / point
