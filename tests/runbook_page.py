"""The runbooks (docs/runbooks.md): their commands are run as they stand there, and must show what stands below them.

A `console` block has commands after `$ ` and below each the lines that it must show; `…` stands for what differs.
Commands that only look are repeated until they do; others run once and must end with 0.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from jetcluster.records import NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "runbooks.md"
AGAIN = re.compile(r"jetcluster (health|status|streams|doctor)|curl|nats .*(stream info|META\.RESCUE)")
"""Commands that are repeated until they show what they must: they look only, or a refusal changes nothing."""
WITHIN = 60.0
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_BLOCK = re.compile(r"^( *)```console\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
Verb = Callable[[str], None]


class Step(NamedTuple):
    """A command, and the lines that it must show."""

    command: str
    shows: tuple[str, ...]


class RunbookError(AssertionError):
    """A step failed, or did not show what the page says."""


def sections() -> dict[str, str]:
    """Title -> text."""
    return dict(_SECTION.findall(PAGE.read_text()))


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    for indent, block in _BLOCK.findall(text):
        for line in block.splitlines():
            line = line.removeprefix(indent)
            if line.startswith("$ "):
                found.append(Step(line[2:], ()))
            elif line.strip():
                found[-1] = found[-1]._replace(shows=(*found[-1].shows, line.strip()))
    return found


class Shell:
    """Runs steps: `verbs` are the words of the page that stand for the operator's own (`start n1`), `names` what stands
    for hosts and folders."""

    def __init__(
        self, verbs: Mapping[str, Verb], names: Callable[[str], str], env: Mapping[str, str], folder: Path
    ) -> None:
        self._verbs, self._names, self._folder = verbs, names, folder
        tools = folder / "bin"
        tools.mkdir()
        command = tools / "jetcluster"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m jetcluster "$@"\n')
        command.chmod(0o755)
        self._env = {**os.environ, **env, "PATH": f"{tools}:{env.get('PATH', '')}:{os.environ['PATH']}"}

    def run(self, step: Step) -> None:
        """Raises RunbookError."""
        verb, _, what = step.command.partition(" ")
        if verb in self._verbs:
            self._verbs[verb](what)
            return
        deadline = time.monotonic() + (WITHIN if AGAIN.match(step.command) else 0.0)
        while problem := self._once(step):
            if time.monotonic() >= deadline:
                raise RunbookError(problem)
            time.sleep(0.3)

    def _once(self, step: Step) -> str:
        """Returns why the step is not done, or ""."""
        command = self._names(step.command)
        done = subprocess.run(
            ["bash", "-c", command], env=self._env, cwd=self._folder, capture_output=True, text=True, timeout=120
        )
        said = f"$ {command}\n{done.stdout}{done.stderr}(exit code {done.returncode})"
        missing = [line for line in step.shows if not matches(line, done.stdout + done.stderr)]
        if missing:
            return f"{said}\nis not shown: {missing[0]}"
        return said if done.returncode else ""


def matches(line: str, output: str) -> bool:
    """Blanks of any width are equal, as columns have widths of their own."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split("…")]
    return re.search(".*".join(parts), output) is not None
