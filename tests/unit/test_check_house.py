"""The house rules on small trees, and the budget, whose numbers may only go down (scripts/check_house.py)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from scripts.check_house import COUNTS, House, lowered, problems

BUDGET: dict[str, Any] = {
    "untested_files": 4,
    "private_reaches": 2,
    "loops": {"api": 1},
    "lines": {"api": 500},
}
ALLOWED: dict[str, Any] = {**BUDGET, "names": {}}


def house(top: Path, **files: str) -> House:
    """Files of jetcluster by name, `__` for a folder."""
    for name, text in files.items():
        file = top / "jetcluster" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return House(top)


def test_a_class_name_stands_for_one_thing(tmp_path: Path) -> None:
    found = house(tmp_path, a="class Job: pass\nclass _Own: pass", b="class Job: pass\nclass _Own: pass")
    assert problems(found, ALLOWED, BUDGET) == ["class Job is in jetcluster/a.py and jetcluster/b.py"]
    assert problems(found, {**ALLOWED, "names": {"Job": "two terms"}}, BUDGET) == []
    assert problems(found, {**ALLOWED, "names": {"Job": "two terms", "Gone": "x"}}, BUDGET) == [
        "class Gone is in one file now"
    ]


def test_a_file_has_a_size(tmp_path: Path) -> None:
    assert problems(house(tmp_path, a="x = 1\n" * 600), ALLOWED, BUDGET) == []
    assert problems(house(tmp_path, a="x = 1\n" * 601), ALLOWED, BUDGET) == ["jetcluster/a.py: 601 lines"]


@pytest.mark.parametrize("text", ['"""What it does."""', 'def f():\n    """Whether."""', 'x = 1\n"""Of the client."""'])
def test_a_docstring_begins_with_the_thing(tmp_path: Path, text: str) -> None:
    (told,) = problems(house(tmp_path, a=text), ALLOWED, BUDGET)
    assert told.startswith("jetcluster/a.py:")


def test_a_table_in_a_docstring_has_its_rows(tmp_path: Path) -> None:
    whole = '"""Ops.\n\n| op | outcome |\n|---|---|\n| ACK | 1 |\n"""'
    assert problems(house(tmp_path, a=whole), ALLOWED, BUDGET) == []
    joined = whole.replace("|\n|", "| |")
    assert problems(house(tmp_path, a=joined), ALLOWED, BUDGET) == [
        "jetcluster/a.py:1: the rows of the docstring's table are one paragraph"
    ]


def test_lines_and_loops_are_counted_by_room(tmp_path: Path) -> None:
    loop = "def f(self):\n    for x in self.streams:\n        x()\n"
    found = house(tmp_path, api__a=loop, api__b__c=loop, store__d=loop, e="x = 1\n")
    assert found.lines() == {"api": 6, "store": 3, "top": 1}
    assert found.loops() == {"api": 2}, "the store does not work for clients on the event loop"


def test_a_file_with_a_function_has_a_test_of_its_name(tmp_path: Path) -> None:
    found = house(tmp_path, api__a="def f(): ...\n", api__b="class C:\n    def f(self): ...\n", c="X = 1\n")
    assert found.untested() == ["jetcluster/api/a.py", "jetcluster/api/b.py"]
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.py").write_text("")
    assert found.untested() == ["jetcluster/api/b.py"]


def test_the_budget_goes_down_and_not_up(tmp_path: Path) -> None:
    found = house(tmp_path, a="x = 1\n")
    more = {
        "untested_files": 5,
        "private_reaches": 2,
        "loops": {"api": 1, "cli": 1},
        "lines": {"api": 501},
    }
    assert problems(found, ALLOWED, more) == [
        "untested_files: 5, and the budget in pyproject.toml is 4",
        "loops of cli: 1, and the budget in pyproject.toml is 0",
        "lines of api: 501, and the budget in pyproject.toml is 500",
    ]
    less = {
        "untested_files": 3,
        "private_reaches": 2,
        "loops": {"api": 1},
        "lines": {"api": 399},
    }
    assert [told.partition(",")[0] for told in problems(found, ALLOWED, less)] == [
        "untested_files: 3",
        "lines of api: 399",
    ]
    counts = "".join(f"{key} = {BUDGET[key]}\n" for key in COUNTS)
    text = f"[tool.house]\n{counts}loops = {{ api = 1 }}\nlines = {{ api = 500 }}\n"
    text += '\n[tool.house.names]\nx = "y"\n'
    after = tomllib.loads(lowered(text, ALLOWED, {**less, "private_reaches": 9}))["tool"]["house"]
    assert after == {**less, "names": {"x": "y"}}, "no number goes up"
