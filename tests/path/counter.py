"""`Recorder`: the functions of `jetcluster` that run while it listens, in order, on all threads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jetcluster

ROOT = str(Path(jetcluster.__file__).parent) + "/"
_RESUMED = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""Pieces of the function that they stand in."""


class Call(NamedTuple):
    """One call: the file below `jetcluster/`, the function in it, how deep it is below the loop's own call."""

    file: str
    function: str
    depth: int


class Recorder:
    """Made before the threads that it is to hear of. `begin` and `end` may alternate."""

    def __init__(self) -> None:
        self._calls: list[tuple[CodeType, int]] = []
        self._listening = False
        self._depth = threading.local()

    def install(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def uninstall(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def begin(self) -> None:
        self._calls.clear()
        self._depth = threading.local()
        self._listening = True

    def end(self) -> list[Call]:
        self._listening = False
        return [
            Call(code.co_filename[len(ROOT) :], code.co_qualname.replace(".<locals>", ""), depth)
            for code, depth in self._calls
        ]

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        if not self._listening:
            return
        code = frame.f_code
        if not code.co_filename.startswith(ROOT) or code.co_name in _RESUMED:
            return
        if event == "call":
            depth = getattr(self._depth, "now", 0)
            self._calls.append((code, depth))
            self._depth.now = depth + 1
        elif event == "return":
            self._depth.now = max(0, getattr(self._depth, "now", 0) - 1)


def files(calls: list[Call]) -> int:
    """How many files they are in."""
    return len({call.file for call in calls})
