"""Completion of commands and options by the shell: `jetcluster completion bash` prints the script, which asks this
program for the words that may follow.

`serve` and `pipeline` read their words themselves. For the shell alone they are commands of typer here as well.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer
from typer.completion import get_completion_inspect_parameters

from jetcluster.cli.flags import NAMES
from jetcluster.pipeline.main import JOBS

PROGRAM: Final = "jetcluster"
VARIABLE: Final = "_JETCLUSTER_COMPLETE"
"""The variable by which a shell asks, as typer names it."""


def print_script(app: typer.Typer, shell: str) -> int:
    """Prints the script that defines the completion in `shell`, and returns the exit code."""
    os.environ[VARIABLE] = f"source_{shell}"
    return complete(app)


def complete(app: typer.Typer) -> int:
    """Answers the question of a shell, which stands in the environment, and returns the exit code."""
    get_completion_inspect_parameters()  # this registers typer's own classes for the shells
    app.command("serve", help="Run one server.")(_taking(_flags()))
    app.command("pipeline", help="Jobs on Spark.")(_taking([_argument("job", sorted(JOBS))]))
    try:
        app(args=[], prog_name=PROGRAM)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _taking(parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Returns a function that has these parameters and is never called."""

    def never(**_: Any) -> None:
        raise AssertionError("the command runs outside of typer")

    never.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    never.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return never


def _flags() -> list[inspect.Parameter]:
    """Returns an option for each flag of `serve`, without those that differ from another one only by their name."""
    found = []
    for dest in dict.fromkeys(dest for dest, _ in NAMES.values()):
        names = [f"--{name}" if len(name) > 2 else f"-{name}" for name, (other, _) in NAMES.items() if other == dest]
        kind = bool if NAMES[names[0].lstrip("-")][1] is bool else str
        found.append(_parameter(dest, Annotated[kind | None, typer.Option(*names)]))
    return found


def _argument(name: str, words: Sequence[str]) -> inspect.Parameter:
    def matching(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return _parameter(name, Annotated[str | None, typer.Argument(autocompletion=matching)])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
