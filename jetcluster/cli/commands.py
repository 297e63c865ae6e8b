"""Commands other than `serve`, through typer: they are run by people, who do not mind 0.1 s of imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="jetcluster", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """A clustered JetStream server that stock NATS clients use unchanged."""
    # Without a callback typer would make the only command the root, and `jetcluster up` would not parse.


@app.command()
def up(
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=9, help="Number of nodes.")] = 3,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the data here (default: a temporary directory, removed at the end)."),
    ] = None,
    port: Annotated[int, typer.Option(help="Client port of the first node; 0 takes free ports.")] = 4222,
) -> None:
    """Start a local cluster in one command, print how to connect, and show a live status until Ctrl-C."""
    from jetcluster.cli.up import run_up

    raise typer.Exit(run_up(nodes, directory, port))


def run_command(words: Sequence[str]) -> int:
    """Runs a command line that does not start with `serve`; returns the exit code."""
    if words[:1] == ["bench"]:
        from jetcluster.cli.bench import app as bench

        return _exit_code(bench, words[1:], "jetcluster bench")
    return _exit_code(app, words, "jetcluster")


def _exit_code(command: typer.Typer, words: Sequence[str], name: str) -> int:
    try:
        result = command(args=list(words), prog_name=name, standalone_mode=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return result if isinstance(result, int) else 0
