"""Rules for the console's scripts that need no JavaScript engine (`make lint`): prints what breaks one.

| rule | breaks it |
|---|---|
| imports | a file, or a name in it, that is not there; a name that is imported and not used, or used and not imported |
| exports | a name that no other file imports, and no test of tests/console names |
| titles | a chip without a title, which names the field that it shows |
| text | `innerHTML` and other ways from a text to a script; the address of another host |
| lines | more lines above 140 characters than `long_js_lines` of `[tool.house]`, which may only fall |

`vendor` is not ours: of it only the names that it exports are read. `python -m scripts.check_js --lower` takes the
number of long lines down. Syntax is checked by the browser's tests.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Final

TOP: Final = Path(__file__).resolve().parents[1]
WEB: Final = TOP / "jetcluster" / "console" / "web"
TESTS: Final = TOP / "tests" / "console"
BUDGET: Final = "long_js_lines"
LONGEST: Final = 140
_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "([^"]+)";', re.MULTILINE)
_BARE_IMPORT: Final = re.compile(r'^import "([^"]+)";', re.MULTILINE)
_OTHER_IMPORT: Final = re.compile(r'^import (?!\{|").*', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
_VENDOR_EXPORTS: Final = re.compile(r"export\s*\{([^}]*)\}")
_COMMENT: Final = re.compile(r"(?m)^\s*(?://|/\*\*|\*).*$|\s// .*$")
_TO_SCRIPT: Final = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\b|setAttribute\(\"on"
)
_OTHER_HOST: Final = re.compile(r"""["'`(](?:https?:)?//(?!www\.w3\.org/2000/svg)[\w$]""")
_BARE_CHIP: Final = re.compile(r"<\$\{Chip\}(?![^\n]*? title=)")
_DECLARED: Final = (
    r"\b(?:function\*?|class|const|let)\s+NAME\b|[{(,\[]\s*NAME\s*(?=[,})\]=])|\bNAME =>|(?m:^ +(?:async )?NAME\(.*\{$)"
)
"""A function, variable, parameter or method NAME."""


class Scripts:
    """The files below `web` by their path in it, and the text of the tests about them."""

    def __init__(self, web: Path = WEB, tests: Path = TESTS) -> None:
        files = sorted(file for file in web.rglob("*") if file.suffix in (".js", ".css", ".html"))
        texts = {file.relative_to(web).as_posix(): file.read_text() for file in files}
        self.ours = {path: text for path, text in texts.items() if not path.startswith("vendor/")}
        self.code = {path: _COMMENT.sub("", text) for path, text in self.ours.items() if path.endswith(".js")}
        self.exports = {
            path: set(_EXPORT.findall(text)) if path in self.ours else _vendor_exports(text)
            for path, text in texts.items()
            if path.endswith(".js")
        }
        self.tests = "\n".join(file.read_text() for file in sorted(tests.glob("*.py")))

    def imports(self, path: str) -> Iterator[tuple[str, str, str]]:
        """Yields (file, name there, name here) of each imported name; both names are "" for a file alone."""
        for names, place in _IMPORT.findall(self.code[path]):
            for name in filter(None, (one.strip() for one in names.split(","))):
                there, _, here = name.partition(" as ")
                yield normpath(join(dirname(path), place)), there, here or there
        for place in _BARE_IMPORT.findall(self.code[path]):
            yield normpath(join(dirname(path), place)), "", ""

    def long_lines(self) -> int:
        return sum(len(line) > LONGEST for text in self.ours.values() for line in text.splitlines())

    def faults(self) -> Iterator[str]:
        used: set[tuple[str, str]] = set()
        for path, code in self.code.items():
            for line in _OTHER_IMPORT.findall(code):
                yield f"{path}: imports are of names, so that they can be checked: {line}"
            body = _BARE_IMPORT.sub("", _IMPORT.sub("", code))
            here: set[str] = set()
            for file, name, own in self.imports(path):
                used.add((file, name))
                here.add(own)
                if file not in self.exports:
                    yield f"{path}: imports {file}, which is not there"
                elif name and name not in self.exports[file]:
                    yield f"{path}: imports {name} from {file}, which has none"
                if own and not re.search(rf"\b{re.escape(own)}\b", body):
                    yield f"{path}: imports {own} and does not use it"
            yield from self._missing(path, body, here)
        for path in self.code:
            for name in sorted(self.exports[path]):
                if (path, name) not in used and not re.search(rf"\b{name}\b", self.tests):
                    yield f"{path}: exports {name}, which nobody imports"
        for path, text in self.ours.items():
            for number, line in enumerate(text.splitlines(), 1):
                if found := _TO_SCRIPT.search(line):
                    yield f"{path}:{number}: {found[0]} makes scripts of texts"
                if _BARE_CHIP.search(line):
                    yield f"{path}:{number}: a chip without a title"
                if found := _OTHER_HOST.search(line):
                    yield f"{path}:{number}: {found[0]}: the console loads nothing from other hosts"

    def _missing(self, path: str, body: str, imported: set[str]) -> Iterator[str]:
        """Components and functions of other files that are used here, and neither imported nor declared."""
        known = set().union(*(names for file, names in self.exports.items() if file != path)) - imported
        called = {*re.findall(r"<\$\{(\w+)\}", body), *re.findall(r"(?<![.\w$])([A-Za-z_]\w{3,})\(", body)}
        for name in sorted(called & known):
            if not re.search(_DECLARED.replace("NAME", name), body):
                yield f"{path}: uses {name} and does not import it"


def _vendor_exports(text: str) -> set[str]:
    names = (name.strip() for group in _VENDOR_EXPORTS.findall(text) for name in group.split(","))
    return {name.rpartition(" as ")[2] for name in names if name}


def problems(scripts: Scripts, allowed: Mapping[str, int]) -> list[str]:
    told, long = list(scripts.faults()), scripts.long_lines()
    if long > allowed[BUDGET]:
        told.append(f"{long} lines have more than {LONGEST} characters, and {BUDGET} is {allowed[BUDGET]}")
    elif long < allowed[BUDGET]:
        told.append(f"{long} long lines, and {BUDGET} is still {allowed[BUDGET]}: python -m scripts.check_js --lower")
    return told


def main(arguments: list[str]) -> int:
    scripts, file = Scripts(), TOP / "pyproject.toml"
    text = file.read_text()
    allowed = tomllib.loads(text)["tool"]["house"]
    if "--lower" in arguments:
        least = min(scripts.long_lines(), allowed[BUDGET])
        file.write_text(re.sub(rf"(?m)^{BUDGET} = \d+", f"{BUDGET} = {least}", text))
        allowed = {**allowed, BUDGET: least}
    told = problems(scripts, allowed)
    sys.stdout.write("".join(f"{line}\n" for line in told) or "console's scripts: every rule is kept\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
