"""`Recorder`: the functions of `jetcluster` that run while it listens, in order, on all threads."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import jetcluster

ROOT: Final = str(Path(jetcluster.__file__).parent) + "/"
_PIECES: Final = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""Parts of the function that they stand in: not counted as calls of their own."""
_TWINS: Final = ("MemKv.", "InlineWriter.")
"""Stand in for the data store and the journal's thread: what they call of themselves is not the product's."""


class Call(NamedTuple):
    """One call: the file below `jetcluster/`, the function in it, how deep it is below the loop's own call."""

    file: str
    function: str
    depth: int


class Recorder:
    """To be installed before the threads that it is to hear of begin. `begin` and `end` may alternate."""

    def __init__(self) -> None:
        self._calls: list[tuple[CodeType, int]] = []
        self._listening = False
        self._stacks = threading.local()

    def install(self) -> None:
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def uninstall(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def begin(self) -> None:
        self._calls = []
        self._stacks = threading.local()
        self._listening = True

    def end(self) -> list[Call]:
        self._listening = False
        return [
            Call(code.co_filename[len(ROOT) :], code.co_qualname.replace(".<locals>", ""), depth)
            for code, depth in self._calls
        ]

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if not self._listening or not code.co_filename.startswith(ROOT) or code.co_name in _PIECES:
            return
        stack: list[CodeType] = self._stacks.__dict__.setdefault("codes", [])
        if event == "call":
            if not (stack and stack[-1].co_qualname.startswith(_TWINS)):
                self._calls.append((code, len(stack)))
            stack.append(code)
        elif event == "return" and stack:
            stack.pop()


def files(calls: list[Call]) -> list[str]:
    """The files they are in, in the order of the first call."""
    return list(dict.fromkeys(call.file for call in calls))
