"""Checks of references: `make docs` fails when a page, a docstring or a comment points at something that is not there.

Checked are, in Markdown pages: relative links and their anchors, `make` targets, paths and file names in backticks, and
names right behind a file's (`stream/fields.py` `parse_ttl`), which it must define. In docstrings and comments of Python
files: paths and file names, modules as `room.module`, sections of pages (`docs/limits.md, "Floods"`), and rows of
docs/reference/pysyncobj.md (D1 and the like). Notes that do not ship may not be named anywhere. The tables of
docs/configuration.md must be those of the keys (`scripts.config_page`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts import commands_page, config_page

TOP = Path(__file__).resolve().parents[1]
CODE = ("jetcluster/", "testkit/", "tests/", "scripts/", "chaos/", "bench/")
SKIPPED = {".venv", ".tools", ".git", "build", "dist", "node_modules", "__pycache__", ".bench", ".chaos", ".demo"}

_LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_MAKE = re.compile(r"`make ([a-z]+)")
_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"^(?:[\w.-]+/)*[\w-]+\.(?:py|md|sh|go|c|svg)$")
_PLACE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)` `(?![^`]*\.py`)(?:\w+\.)*(\w+)`")
_MODULE = re.compile(r"^([a-z_]+)\.([a-z_0-9]+)(?:\.(\w+)[\w.]*)?$")
_SECTION = re.compile(r'(docs/[\w/-]+\.md)(?:#([\w-]+)|, "([^"]+)")?')
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*#*$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([\w-]+)">')
_FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#\s+(.*)")
_ROW = re.compile(r"\bD\d+[a-z]?\b")
_NOTES = [
    (re.compile(r"\bshared/(?:reference|design|findings)\b"), "notes that do not ship"),
    (re.compile(r"\braft-engine\.md\b"), "notes that do not ship"),
    (
        re.compile(r"\b(?:fact|data|reference) sheet\b|\bsheet (?:core|streams)\b", re.IGNORECASE),
        "notes that do not ship",
    ),
    (
        re.compile(
            r"(?<!\w)(?<!\d )\((?:ADR-\d+, )?\d{1,2}\.\d{1,2}(?=[),;])"
            r"|\b(?:of|by|where) \d{1,2}\.\d{1,2}(?=[.,;:)](?!\d)| says\b|$)"
            r"|^\d{1,2}\.\d{1,2}(?=: )",
            re.MULTILINE,
        ),
        "a section of notes that do not ship (or say of which RFC, version or section)",
    ),
    (re.compile(r"\bR(?:[1-9]\d)\b|\bQ\d+\b"), "a number of notes that do not ship"),
]
DEVIATIONS = "docs/reference/pysyncobj.md"
NO_MODULES = {"node.json", "node.key", "stream.commit", "stream.last", "spark.sql.python.filterPushdown.enabled"}
"""Names of files, of requests between nodes and of settings that look like modules."""


class Tree:
    """The repository's files, and the headings of its pages."""

    def __init__(self, top: Path = TOP) -> None:
        self.top = top
        self.files = {
            path.relative_to(top).as_posix()
            for path in top.rglob("*")
            if not SKIPPED.intersection(path.relative_to(top).parts) and path.is_file()
        }
        self.names = {name.rpartition("/")[2] for name in self.files}
        makefile = top / "Makefile"
        text = makefile.read_text() if makefile.exists() else ""
        self.targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE))
        self.rooms = {path.parent.name for path in (top / "jetcluster").glob("*/__init__.py")}
        self._anchors: dict[str, set[str]] = {}

    def has_path(self, path: str) -> bool:
        """A path from the top, from the package, from the tests, or a file's name alone."""
        if "/" not in path:
            return path in self.names
        return path in self.files or any(name.endswith("/" + path) for name in self.files)

    def has_name(self, room: str, module: str, name: str | None = None) -> bool:
        """`room.module`, or a name that the module has."""
        folder = self.top / "jetcluster" / room
        path = folder / f"{module}.py"
        if not path.exists():
            return (folder / module).is_dir()
        return name is None or re.search(rf"\b{name}\b", path.read_text()) is not None

    def defines(self, path: str, name: str) -> bool:
        """A file that `path` may mean has a function, class, constant or attribute called `name`."""
        definition = re.compile(
            rf"^\s*(?:(?:async )?def {name}\(|class {name}\b|(?:self\.)?{name} *(?::|=[^=]))", re.MULTILINE
        )
        found = [file for file in self.files if file == path or file.endswith("/" + path)]
        return any(definition.search((self.top / file).read_text()) for file in found)

    def anchors(self, page: str) -> set[str]:
        """The anchors that GitHub and MkDocs make of a page's headings, and those that it has itself."""
        if page not in self._anchors:
            text = _FENCE.sub("", (self.top / page).read_text())
            self._anchors[page] = {anchor_of(heading) for heading in _HEADING.findall(text)} | {*_ANCHOR.findall(text)}
        return self._anchors[page]

    def rows(self) -> set[str]:
        page = self.top / DEVIATIONS
        return set(re.findall(r"^### (D\w+)\. ", page.read_text(), re.MULTILINE)) if page.exists() else set()


def anchor_of(heading: str) -> str:
    heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def page_problems(page: str, tree: Tree) -> Iterator[str]:
    """The mistakes in a Markdown page, each as `page: what is wrong`."""
    text = (tree.top / page).read_text()
    folder = (tree.top / page).parent
    for link, anchor in _LINK.findall(_FENCE.sub("", text)):
        target = (folder / link).resolve() if link else tree.top / page
        if not target.exists():
            yield f"{page}: no file {link}"
        elif anchor and target.suffix == ".md":
            name = target.relative_to(tree.top.resolve()).as_posix()
            if anchor not in tree.anchors(name):
                yield f"{page}: no heading #{anchor} in {name}"
    for target in _MAKE.findall(text):
        if target not in tree.targets:
            yield f"{page}: no target make {target}"
    for name in _QUOTED.findall(_FENCE.sub("", text)):
        if _PATH.match(name) and not tree.has_path(name):
            yield f"{page}: no file {name}"
    for path, name in _PLACE.findall(text):
        if tree.has_path(path) and not tree.defines(path, name):
            yield f"{page}: no {name} in {path}"
    yield from _notes(page, text)


def code_problems(path: str, tree: Tree) -> Iterator[str]:
    """The mistakes in docstrings and comments of a Python file, each as `path: what is wrong`."""
    source = (tree.top / path).read_text()
    told = "\n".join(_docstrings(source)) + "\n" + "\n".join(_COMMENT.findall(source))
    for name in _QUOTED.findall(told):
        module = _MODULE.match(name)
        if _PATH.match(name):
            if not tree.has_path(name):
                yield f"{path}: no file {name}"
        elif module and name not in NO_MODULES and module[1] in tree.rooms and not tree.has_name(*module.groups()):
            yield f"{path}: no module {name}"
    for page, anchor, heading in _SECTION.findall(told):
        if page not in tree.files:
            yield f"{path}: no page {page}"
        elif (anchor or heading) and (anchor or anchor_of(heading)) not in tree.anchors(page):
            yield f"{path}: no section {anchor or heading!r} in {page}"
    numbers = set(_ROW.findall(told))
    if numbers and DEVIATIONS not in told:
        yield f"{path}: {', '.join(sorted(numbers))} without {DEVIATIONS}"
    elif numbers - tree.rows():
        yield f"{path}: {', '.join(sorted(numbers - tree.rows()))} is no row of {DEVIATIONS}"
    yield from _notes(path, told)


def _docstrings(source: str) -> Iterator[str]:
    """Strings that stand alone: docstrings, and those behind an attribute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            # A line break within a reference is a blank.
            yield re.sub(r"\s*\n\s*", " ", node.value.value)


def _notes(place: str, text: str) -> Iterator[str]:
    for pattern, why in _NOTES:
        for found in sorted(set(pattern.findall(text))):
            yield f"{place}: {found} is {why}"


def problems(tree: Tree) -> list[str]:
    pages = sorted(name for name in tree.files if name.endswith(".md") and name.startswith(("docs/", "deploy/")))
    pages += sorted(name for name in tree.files if name.endswith(".md") and "/" not in name)
    code = sorted(name for name in tree.files if name.endswith(".py") and name.startswith(CODE))
    found = [problem for page in pages for problem in page_problems(page, tree)]
    return found + [problem for path in code for problem in code_problems(path, tree)]


if __name__ == "__main__":
    lines = problems(Tree()) + config_page.problems(config_page.PAGE.read_text(), config_page.ALL_KEYS.read_text())
    lines += commands_page.problems(commands_page.PAGE.read_text())
    print("\n".join(lines) or "docs: every reference leads somewhere")
    sys.exit(bool(lines))
