"""Rules of the console's scripts, each on a small tree (scripts/check_js.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_js import BUDGET, Scripts, main, problems

UI = "const a=1;export{a as html,b as useState};"
GOOD = {
    "vendor/ui.js": UI,
    "app.js": 'import { html } from "./vendor/ui.js";\nimport { ago as at } from "./format.js";\nhtml`${at(1)}`;\n',
    "format.js": "// See https://example.com\nexport function ago(at) {\n  return at;\n}\n",
}


def told(tmp_path: Path, files: dict[str, str], tests: str = "", long_lines: int = 0) -> list[str]:
    for name, text in {**GOOD, **files}.items():
        file = tmp_path / "web" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "test_page.py").write_text(tests)
    return problems(Scripts(tmp_path / "web", tmp_path), {BUDGET: long_lines})


def test_scripts_that_keep_every_rule(tmp_path: Path) -> None:
    assert told(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('import { html } from "./vendor/ui.js";\n', "a.js: imports html and does not use it"),
        ('import { bold } from "./vendor/ui.js";\nbold();\n', "a.js: imports bold from vendor/ui.js, which has none"),
        ('import { x } from "./gone.js";\nx();\n', "a.js: imports gone.js, which is not there"),
        ('import * as all from "./format.js";\n', "a.js: imports are of names"),
        ("export const lonely = 1;\n", "a.js: exports lonely, which nobody imports"),
        ("const of = useState(0);\n", "a.js: uses useState and does not import it"),
        ("html`<${Chip}>sealed<//>`;\n", "a.js:1: a chip without a title"),
        ("box.innerHTML = text;\n", "a.js:1: innerHTML makes scripts of texts"),
        ('const at = "https://example.com/x";\n', "a.js:1: "),
        ('const at = "//example.com/x";\n', "a.js:1: "),
        (f"const x = 1; // {'x' * 140}\n", "1 lines have more than 140 characters, and long_js_lines is 0"),
    ],
)
def test_what_breaks_a_rule_is_told(tmp_path: Path, text: str, fault: str) -> None:
    (found,) = told(tmp_path, {"a.js": text})
    assert found.startswith(fault)


def test_a_name_that_is_declared_here_or_named_by_a_test_is_no_fault(tmp_path: Path) -> None:
    declared = "class A {\n  useState({ a }) {\n    return a;\n  }\n}\nnew A().useState({});\n"
    own = "const f = ({ useState }) => useState(1);\n"
    tested = "export const lonely = 1;\n"
    assert told(tmp_path, {"a.js": declared, "b.js": own, "c.js": tested}, tests="import('./c.js').lonely") == []


def test_the_number_of_long_lines_only_falls(tmp_path: Path) -> None:
    assert told(tmp_path, {}, long_lines=3) == [
        "0 long lines, and long_js_lines is still 3: python -m scripts.check_js --lower"
    ]


def test_the_console_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out
