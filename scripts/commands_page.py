"""The tables of docs/commands.md, made from the commands themselves, as `--help` shows them.

`python -m scripts.commands_page --write` writes them; `make docs` fails when the page has others. What is made stands
between `<!-- command: object add -->` (or `<!-- connection -->`) and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from jetcluster.cli.commands import app
from jetcluster.cli.main import OVERVIEW
from jetcluster.cli.options import PANEL

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
ELSEWHERE = ("serve", "pipeline")
"""Commands that are not typer's: other pages have their flags and arguments."""
_PART = re.compile(r"(<!-- (command: [\w ]+|connection) -->\n\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def commands() -> dict[str, Any]:
    """Each command by its words, those of groups included."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if subcommands := getattr(command, "commands", None):
            found |= {f"{name} {word}": one for word, one in subcommands.items()}
        else:
            found[name] = command
    return found


def section(name: str) -> str:
    """Usage, description, exit codes and options of a command."""
    command = commands()[name]
    own = [param for param in command.params if _panel(param) != PANEL and not getattr(param, "hidden", False)]
    words = [f"jetcluster {name}", *(_argument(param) for param in own if _is_argument(param))]
    text = f"`{' '.join(words)} [options]`\n\n{_paragraphs(command.help)}\n\n"
    if any(_panel(param) == PANEL for param in command.params):
        text += "It connects: [the options of the connection](#the-connection) are for it, too.\n\n"
    rows = [row for param in own for row in _row(param)]
    return text + (f"| | default | |\n|---|---|---|\n{''.join(rows)}\n" if rows else "")


def connection() -> str:
    """The options that every command that asks a server has."""
    shown = [param for param in commands()["status"].params if _panel(param) == PANEL and not param.hidden]
    rows = [
        f"| {_names(param)} | {f'`{param.envvar}`' if param.envvar else ''} | {_default(param)} | {param.help} |\n"
        for param in shown
    ]
    return f"| option | variable | default | |\n|---|---|---|---|\n{''.join(rows)}\n"


def _paragraphs(text: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(paragraph.replace("<", "&lt;") for paragraph in paragraphs)


def _panel(param: Any) -> str:
    return getattr(param, "rich_help_panel", None) or ""


def _is_argument(param: Any) -> bool:
    return not param.opts[0].startswith("-")


def _argument(param: Any) -> str:
    name = argument_name(param)
    return name if param.required else f"[{name}]"


def argument_name(param: Any) -> str:
    """The name of an argument as `--help` shows it."""
    return str(param.metavar or param.name.upper())


def _row(param: Any) -> Iterator[str]:
    name = f"`{argument_name(param)}`".replace("|", "\\|") if _is_argument(param) else _names(param)
    yield f"| {name} | {_default(param)} | {param.help or ''} |\n"


def _names(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    return f"{names} {param.metavar}" if param.metavar else names


def _default(param: Any) -> str:
    return "" if param.default in (None, "", False, []) or param.required else f"{param.default}"


def rendered(page: str) -> str:
    """The page with its parts made anew. Raises KeyError for a mark of no command."""

    def part(found: re.Match[str]) -> str:
        kind, _, name = found[2].partition(": ")
        return found[1] + (connection() if kind == "connection" else section(name)) + found[4]

    return _PART.sub(part, page)


def problems(page: str) -> list[str]:
    """Differences of the page from the commands."""
    found = [] if rendered(page) == page else [f"{PAGE.name}: it is old: python -m scripts.commands_page --write"]
    for name, command in commands().items():
        if f"<!-- command: {name} -->" not in page:
            found.append(f"{PAGE.name}: nothing about `jetcluster {name}`")
        if "Exit codes: 0 " not in " ".join((command.help or "").split()):
            found.append(f"jetcluster {name} --help: no exit codes")
    listed = {line.split()[0] for line in OVERVIEW.splitlines() if line.startswith("    ")}
    return found + [
        f"{PAGE.name}: nothing about `jetcluster {name}`"
        for name in sorted(listed)
        if f"## jetcluster {name}" not in page
    ]


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(rendered(PAGE.read_text()))
    print("\n".join(problems(PAGE.read_text())) or f"{PAGE.name}: as the commands are")
