"""House rules that no other tool checks (`make lint`): run from the top of the repository, prints what breaks one.

| rule | breaks it |
|---|---|
| names | a class name that two files of jetcluster use, unless `[tool.house.names]` says why |
| sizes | a file of more than 600 lines |
| openings | a docstring, also beside the package, that begins with Of, What, Who, How or Whether instead of the thing |
| tables | a table of a docstring whose rows stand in one paragraph |
| budget | a number above that of `[tool.house]` in pyproject.toml |

The budget counts source files with a function and without a test file of their own name, the lines of each room, its
loops over what clients can make many of (`scripts.long_loops`), public classes without a docstring, and private
reaches of tests.

The numbers of the budget may only go down: one that is larger than what is there is an error as well, and
`python -m scripts.check_house --lower` takes it down. References that lead nowhere are found by `scripts.check_docs`;
circles between files by import-linter; private reaches in the package by ruff.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scripts.long_loops import ROOMS, long_loops

TOP: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "jetcluster"
MAX_FILE_LINES: Final = 600
BESIDE: Final = ("bench", "chaos", "scripts", "testkit", "tests")
"""Folders beside the package whose docstrings are read as well."""
SLACK_LINES: Final = 100
"""Lines by which a room may be below its budget before that has to follow: not every change should touch it."""
COUNTS: Final = ("untested_files", "private_reaches")
OPENING: Final = re.compile(r"(Of|What|Who|How|Whether|Whatever|Whoever)\b")
JOINED_TABLE: Final = re.compile(r"(?m)^ *\S.*[^-|: \n].*\|-{3,}\|")


class House:
    """The source files below `top`, parsed once."""

    def __init__(self, top: Path = TOP) -> None:
        self.top = top
        self.texts = {file: file.read_text() for file in sorted((top / PACKAGE).rglob("*.py"))}
        self.trees = {file: ast.parse(text) for file, text in self.texts.items()}

    def name(self, file: Path) -> str:
        return file.relative_to(self.top).as_posix()

    def room(self, file: Path) -> str:
        parts = file.relative_to(self.top / PACKAGE).parts
        return parts[0] if len(parts) > 1 else "top"

    def sizes(self) -> dict[str, int]:
        """Lines by file."""
        return {self.name(file): text.count("\n") for file, text in self.texts.items()}

    def lines(self) -> dict[str, int]:
        """Lines by room, with those of compiled loops."""
        found: Counter[str] = Counter()
        for file, text in self.texts.items():
            found[self.room(file)] += text.count("\n")
        for file in (self.top / PACKAGE).rglob("*.pyx"):
            found[self.room(file)] += file.read_text().count("\n")
        return dict(sorted(found.items()))

    def untested(self) -> list[str]:
        """Files with a function, and no test file of their name."""
        tests = {file.stem.removeprefix("test_") for file in (self.top / "tests").rglob("test_*.py")}
        return [
            self.name(file)
            for file, tree in self.trees.items()
            if (file.parent.name if file.stem == "__init__" else file.stem) not in tests
            and any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
        ]

    def loops(self) -> dict[str, int]:
        """Long loops by room."""
        found: Counter[str] = Counter()
        for file, tree in self.trees.items():
            if (room := self.room(file)) in ROOMS:
                found[room] += len(long_loops(tree))
        return {room: count for room, count in sorted(found.items()) if count}

    def class_names(self) -> dict[str, list[str]]:
        """Files by the name of a public class at the top of a file."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for file, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(self.name(file))
        return found

    def docstring_faults(self) -> Iterator[str]:
        """Docstrings that begin with a question's word, or have a table whose rows were joined into a paragraph."""
        beside = [file for folder in BESIDE for file in sorted((self.top / folder).rglob("*.py"))]
        trees = {**self.trees, **{file: ast.parse(file.read_text()) for file in beside}}
        for file, tree in trees.items():
            for text, line in docstrings(tree):
                if OPENING.match(text):
                    yield f"{self.name(file)}:{line}: the docstring begins with a question's word"
                if JOINED_TABLE.search(text):
                    yield f"{self.name(file)}:{line}: the rows of the docstring's table are one paragraph"


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Text and line of all docstrings, those behind attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield text.strip(), statement.lineno


def ruff_count(rule: str, *folders: str) -> int:
    """Places in these folders that break the rule of ruff."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", rule, "--output-format", "concise"]
    run = subprocess.run([*command, *folders], cwd=TOP, capture_output=True, text=True, check=False)  # noqa: S603 -- ruff of this environment
    if run.returncode not in (0, 1):
        raise SystemExit(f"house: ruff does not run: {run.stderr}")
    return len(re.findall(rf" {rule} ", run.stdout))


def measured(house: House) -> dict[str, Any]:
    return {
        "untested_files": len(house.untested()),
        "private_reaches": ruff_count("SLF001", "tests", *BESIDE),
        "loops": house.loops(),
        "lines": house.lines(),
    }


def problems(house: House, allowed: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    told = [f"{name}: {lines} lines" for name, lines in house.sizes().items() if lines > MAX_FILE_LINES]
    told += house.docstring_faults()
    names = {name: files for name, files in house.class_names().items() if len(files) > 1}
    unlisted = {name: files for name, files in names.items() if name not in allowed["names"]}
    told += [f"class {name} is in {' and '.join(files)}" for name, files in unlisted.items()]
    told += [f"class {name} is in one file now" for name in allowed["names"] if name not in names]
    for key in COUNTS:
        told += _over(key, found[key], allowed[key], 0)
    for key, slack in (("loops", 0), ("lines", SLACK_LINES)):
        for room in sorted(found[key].keys() | allowed[key].keys()):
            told += _over(f"{key} of {room}", found[key].get(room, 0), allowed[key].get(room, 0), slack)
    return told


def _over(what: str, found: int, allowed: int, slack: int) -> Iterator[str]:
    if found > allowed:
        yield f"{what}: {found}, and the budget in pyproject.toml is {allowed}"
    elif found < allowed - slack:
        yield f"{what}: {found}, and the budget is still {allowed}: python -m scripts.check_house --lower"


def lowered(text: str, allowed: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """pyproject.toml with each number of the budget that is too large taken down."""
    head, section, rest = text.partition("[tool.house]\n")
    rest, more, tail = rest.partition("\n[tool.house.names]")
    for key in COUNTS:
        rest = re.sub(rf"(?m)^{key} = \d+", f"{key} = {min(found[key], allowed[key])}", rest)
    for key in ("loops", "lines"):
        row = ", ".join(f"{room} = {min(n, allowed[key].get(room, n))}" for room, n in found[key].items())
        rest = re.sub(rf"(?m)^{key} = .*", f"{key} = {{ {row} }}", rest)
    return head + section + rest + more + tail


def main(arguments: list[str]) -> int:
    house = House()
    file = TOP / "pyproject.toml"
    allowed, found = tomllib.loads(file.read_text())["tool"]["house"], measured(house)
    if "--lower" in arguments:
        file.write_text(lowered(file.read_text(), allowed, found))
        allowed = tomllib.loads(file.read_text())["tool"]["house"]
    told = problems(house, allowed, found)
    sys.stdout.write("".join(f"{line}\n" for line in told) or "house: every rule is kept\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
