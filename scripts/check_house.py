"""House rules that no other tool checks (`make lint`): run from the top of the repository, prints what breaks one.
References that lead nowhere are found by `scripts.check_docs`.

| rule | breaks it |
|---|---|
| circles | files of jetcluster that import each other, also over others, and for types alone |
| names | a class name that two files of jetcluster use |
| sizes | a file of more than 600 lines |
| openings | a docstring, also beside the package, that begins with Of, What, Who, How or Whether instead of the thing |
| classes | a public class without a docstring; one of nothing but `pass` may have none |
| loops | a loop over what clients can make many of, without a bound and not in steps (`scripts.long_loops`) |
| tests | a source file with a function in it, without a test file of its own name |
| private | a test that reaches into a private attribute of something that its own file does not define |

`scripts/house.toml` lists what may remain, each with the reason; of openings none may. A file that is tested through
the test of another is in a group there that says why; that test has to import it, or the whole that imports it. The
list may only shrink: an entry that nothing needs any more is an error as well, and `python -m scripts.check_house
--shrink` takes those away.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from scripts.long_loops import ROOMS, long_loops

TOP: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "jetcluster"
MOST_LINES: Final = 600
BESIDE: Final = ("bench", "chaos", "scripts", "testkit")
"""Folders beside the package whose docstrings are read as well."""
PRIVATE: Final = re.compile(r"_[^_]")
PUBLIC: Final = frozenset(
    ("_asdict", "_fields", "_make", "_replace", "_exit", "_get_running_loop", "_set_running_loop")
)
"""Documented names of the standard library that look private: of `namedtuple`, `os` and `asyncio`."""
OPENING: Final = re.compile(r"(Of|What|Who|How|Whether|Whatever|Whoever)\b")


class House:
    """The source files below `top`, parsed once, and the rules over them."""

    def __init__(self, top: Path = TOP) -> None:
        self.top = top
        self.files = sorted((top / PACKAGE).rglob("*.py"))
        self.texts = {file: file.read_text() for file in self.files}
        self.trees = {file: ast.parse(text) for file, text in self.texts.items()}
        self.modules = {self.module_of(file): file for file in self.files}

    def name(self, file: Path) -> str:
        return file.relative_to(self.top).as_posix()

    def module_of(self, file: Path) -> str:
        parts = file.relative_to(self.top).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    # -- rules: each gives (key of the exception, what is wrong) --------------------------------------------------

    def circles(self) -> list[list[str]]:
        """Groups of modules, sorted, each of which leads back to each of the others."""
        imports = {module: set(self._imports(file)) for module, file in self.modules.items()}
        return sorted(sorted(circle) for circle in components(imports) if len(circle) > 1)

    def _imports(self, file: Path) -> Iterator[str]:
        for module, name in imported(self.trees[file]):
            found = f"{module}.{name}"
            yield found if found in self.modules else module

    def repeated_names(self) -> dict[str, list[str]]:
        """Class name -> the files that define one, where they are several. One with an underscore is its file's own."""
        places: dict[str, set[str]] = defaultdict(set)
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(self.name(file))
        return {name: sorted(files) for name, files in places.items() if len(files) > 1}

    def long_files(self) -> dict[str, int]:
        counts = {self.name(file): text.count("\n") for file, text in self.texts.items()}
        return {name: count for name, count in counts.items() if count > MOST_LINES}

    def openings(self) -> dict[str, list[int]]:
        """File -> lines of docstrings that do not begin with what the thing is."""
        found: dict[str, list[int]] = defaultdict(list)
        beside = {file: ast.parse(file.read_text()) for folder in BESIDE for file in (self.top / folder).rglob("*.py")}
        for file, tree in sorted((self.trees | beside).items()):
            for text, line in docstrings(tree):
                if OPENING.match(text.lstrip()):
                    found[self.name(file)].append(line)
        return dict(found)

    def bare_classes(self) -> dict[str, int]:
        """File -> how many of its public classes have no docstring."""
        found: dict[str, int] = defaultdict(int)
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                    found[self.name(file)] += not all(isinstance(one, ast.Pass) for one in node.body)
        return {name: count for name, count in found.items() if count}

    def long_loops(self) -> dict[str, int]:
        """File of a room that works for clients -> how many of its loops may be long."""
        found = {}
        for file, tree in self.trees.items():
            room = file.relative_to(self.top / PACKAGE).parts[0]
            if room in ROOMS and (lines := long_loops(tree)):
                found[self.name(file)] = len(lines)
        return found

    def untested(self) -> list[str]:
        """Source files without `tests/unit/.../test_<name>.py`. Records, ports and constants need none: where no
        function does anything there is nothing to test."""
        missing = []
        for file in self.files:
            if file.name in ("__init__.py", "__main__.py") or not any(map(_acts, ast.walk(self.trees[file]))):
                continue
            parts = file.relative_to(self.top / PACKAGE).parts
            wanted = self.top.joinpath("tests", "unit", *parts[:-1], f"test_{file.name}")
            if not wanted.exists():
                missing.append(self.name(file))
        return missing

    def reached(self, test: str) -> set[str]:
        """Modules of jetcluster that a test imports, itself or by its helpers in `tests`, and those that these import:
        the parts of the whole it is about."""
        direct: set[str] = set()
        seen: set[Path] = set()
        waiting = [self.top / test, *(folder / "conftest.py" for folder in (self.top / test).parents)]
        while waiting:
            file = waiting.pop()
            if file in seen or not file.is_file():
                continue
            seen.add(file)
            for module, name in imported(ast.parse(file.read_text())):
                if module.split(".")[0] == PACKAGE:
                    direct.add(self._origin(module, name))
                else:
                    path = self.top.joinpath(*module.split("."))
                    waiting += [path.with_suffix(".py"), path / f"{name}.py"]
        files = [self.modules[module] for module in direct if module in self.modules]
        return direct | {self._origin(*pair) for file in files for pair in imported(self.trees[file])}

    def _origin(self, module: str, name: str) -> str:
        """The module that `from module import name` leads to, also over the package that offers it."""
        if f"{module}.{name}" in self.modules:
            return f"{module}.{name}"
        file = self.modules.get(module)
        if file is not None and file.name == "__init__.py":
            for source, offered in imported(self.trees[file]):
                if offered == name and source != module:
                    return self._origin(source, name)
        return module

    def private_reaches(self) -> dict[str, int]:
        """File of tests -> how many times it names a private attribute of what other files define."""
        found = {}
        for file in sorted((self.top / "tests").rglob("*.py")):
            if count := sum(1 for _ in reaches(ast.parse(file.read_text()))):
                found[self.name(file)] = count
        return found


def _acts(node: ast.AST) -> bool:
    """A function that does something: more than a docstring, `...` or `pass`."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        not isinstance(statement, ast.Pass)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in node.body
    )


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of each name that a module takes from another, ("m", "") of `import m`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def reaches(tree: ast.Module) -> Iterator[str]:
    """Private names that a module takes from others: `thing._name`, `from m import _name`, `setattr(thing, "_name", 1)`
    and so on. A name that the module defines itself, as a function, a class, a variable or a field, is its own."""
    own = {name for node in ast.walk(tree) for name in _defined(node)}
    for node in ast.walk(tree):
        for name in _named(node):
            if PRIVATE.match(name) and name not in PUBLIC and name not in own:
                yield name


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
        yield node.attr


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and not _is_self(node.value):
        yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        function, name = node.func, node.args[1]
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called in ("getattr", "setattr", "hasattr", "delattr", "attrgetter") and isinstance(name, ast.Constant):
            yield str(name.value)


def _is_self(node: ast.expr) -> bool:
    """Also true of `super()`: what a subclass uses is its parent's offer to it."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


HEADED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Docstrings of modules, classes, functions and fields, each with the line it begins in."""
    for node in ast.walk(tree):
        for before, statement in zip([None, *_body(node)], _body(node), strict=False):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if not isinstance(statement.value.value, str):
                continue
            heads = before is None and isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            )
            if heads or isinstance(before, ast.Assign | ast.AnnAssign):
                yield statement.value.value, statement.lineno


def _body(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def components(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of a graph (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in graph:
                continue
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


# -- what may remain ----------------------------------------------------------------------------------------------


def problems(house: House, allowed: Mapping[str, Any]) -> list[str]:
    """Lines that say what breaks a rule, and which exceptions are not needed any more."""
    return [
        *_circles(house.circles(), allowed.get("circles", {})),
        *_listed("class name", house.repeated_names(), allowed.get("names", {})),
        *_counted("lines", house.long_files(), allowed.get("sizes", {})),
        *_openings(house.openings()),
        *_counted("public classes without a docstring", house.bare_classes(), allowed.get("classes", {})),
        *_counted("loops over what may be many", house.long_loops(), allowed.get("loops", {})),
        *_untested(house, allowed.get("tests", {})),
        *_counted("reaches into private attributes", house.private_reaches(), allowed.get("private", {})),
    ]


def _circles(found: list[list[str]], allowed: Mapping[str, Any]) -> Iterator[str]:
    """An entry names the modules of one circle and the reason. A circle may have fewer than its entry, never more."""
    left = {name: set(entry["modules"]) for name, entry in allowed.items()}
    for circle in found:
        entry = next((modules for modules in left.values() if modules >= set(circle)), None)
        if entry is None:
            yield f"circle of imports: {' '.join(circle)}"
            continue
        if extra := entry - {module for other in found for module in other if other}:
            yield f"house.toml: no circle has these any more: {' '.join(sorted(extra))}"
    for name, modules in left.items():
        if not any(modules >= set(circle) for circle in found):
            yield f"house.toml: there is no circle {name} any more"


def _listed(what: str, found: Mapping[str, list[str]], allowed: Mapping[str, str]) -> Iterator[str]:
    for name, places in found.items():
        if name not in allowed:
            yield f"{what} {name}: {', '.join(places)}"
    for name in allowed:
        if name not in found:
            yield f"house.toml: {what} {name} is not repeated any more"


def _counted(what: str, found: Mapping[str, int], allowed: Mapping[str, int]) -> Iterator[str]:
    for name, count in found.items():
        most = allowed.get(name, 0)
        if count > most:
            yield f"{name}: {count} {what}, {most} may be"
        elif count < most:
            yield f"house.toml: {name} has {count} {what}, not {most}"
    for name in allowed:
        if name not in found:
            yield f"house.toml: {name} has no {what} to be excused"


def _openings(found: Mapping[str, list[int]]) -> Iterator[str]:
    for name, lines in found.items():
        yield f"{name}: docstrings that do not say first what the thing is, in lines {', '.join(map(str, lines))}"


def _untested(house: House, allowed: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A group has the reason (`why`) and its entries: the file, and the test that covers it. That one has to import
    the file's module, or the whole that it is a part of."""
    missing = set(house.untested())
    entries = {name: test for group in allowed.values() for name, test in group.items() if name != "why"}
    for name in sorted(missing - entries.keys()):
        yield f"{name}: no test file of its own name"
    for title, group in allowed.items():
        if not group.get("why"):
            yield f"house.toml: tests.{title} gives no reason"
    for name, test in entries.items():
        if name not in missing:
            yield f"house.toml: {name} has a test file of its own, needs none, or is gone"
        elif not (house.top / test).is_file():
            yield f"house.toml: {name} is said to be tested by {test}, which is not there"
        elif house.module_of(house.top / name) not in house.reached(test):
            yield f"house.toml: {name} is said to be tested by {test}, which imports neither it nor what it is part of"


def shrunk(text: str, house: House) -> str:
    """`house.toml` without what nothing needs any more; entries stand on one line each, and nothing is added."""
    counts = {"sizes": house.long_files(), "private": house.private_reaches(), "classes": house.bare_classes()}
    counts["loops"] = house.long_loops()
    kept = {"names": set(house.repeated_names()), "tests": {"why", *house.untested()}}
    in_circles = {module for circle in house.circles() for module in circle}
    lines, table = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]").split(".")[0]
        elif " = " in line and not line.startswith("#"):
            key, value = line.split(" = ", 1)
            name = key.strip('"')
            if table in counts:
                if name not in counts[table]:
                    continue
                line = f"{key} = {min(int(value), counts[table][name])}"
            elif table == "circles":
                entry = tomllib.loads(line)[name]
                modules = [module for module in entry["modules"] if module in in_circles]
                if not modules:
                    continue
                line = f"{key} = {{ reason = {json.dumps(entry['reason'])}, modules = {json.dumps(modules)} }}"
            elif name not in kept.get(table, {name}):
                continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    sys.setrecursionlimit(10_000)
    house, file = House(), TOP / "scripts" / "house.toml"
    if "--shrink" in arguments:
        file.write_text(shrunk(file.read_text(), house))
    found = problems(house, tomllib.loads(file.read_text()))
    print("\n".join(found) or "house: every rule is kept, but for what house.toml lists")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
