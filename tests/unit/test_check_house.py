"""The house rules on small trees, and the list of what may remain, which may only shrink (scripts/check_house.py)."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from scripts.check_house import House, components, problems, shrunk


def house(top: Path, **files: str) -> House:
    """Files of jetcluster by name, `__` for a folder, each with a test of its own name."""
    for name, text in files.items():
        file = top / "jetcluster" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        test = top / "tests" / "unit" / file.relative_to(top / "jetcluster").with_name(f"test_{file.name}")
        test.parent.mkdir(parents=True, exist_ok=True)
        test.write_text("")
    return House(top)


def test_components_of_a_graph() -> None:
    found = components({"a": "b", "b": "c", "c": "a", "d": "a", "e": "e"})
    assert sorted(map(sorted, found)) == [["a", "b", "c"], ["d"], ["e"]]


def test_a_circle_over_types_is_found_and_one_that_is_listed_may_not_grow(tmp_path: Path) -> None:
    found = house(
        tmp_path,
        a="from jetcluster import b",
        b="def f() -> None:\n    from jetcluster.c import C",
        c="if TYPE_CHECKING:\n    from jetcluster.a import A",
        d="from jetcluster.a import A",
    )
    circle = ["jetcluster.a", "jetcluster.b", "jetcluster.c"]
    assert problems(found, {}) == [f"circle of imports: {' '.join(circle)}"]
    assert problems(found, {"circles": {"x": {"modules": circle}}}) == []
    assert problems(found, {"circles": {"x": {"modules": circle[:2]}}})[0] == f"circle of imports: {' '.join(circle)}"
    assert problems(found, {"circles": {"x": {"modules": [*circle, "jetcluster.d"]}}}) == [
        "house.toml: no circle has these any more: jetcluster.d"
    ]
    lonely = {"x": {"modules": circle}, "y": {"modules": ["jetcluster.d", "jetcluster.e"]}}
    assert problems(found, {"circles": lonely}) == ["house.toml: there is no circle y any more"]


def test_a_class_name_stands_for_one_thing(tmp_path: Path) -> None:
    found = house(tmp_path, a="class Job: ...\nclass _Own: ...", b="class Job: ...\nclass _Own: ...")
    assert problems(found, {}) == ["class name Job: jetcluster/a.py, jetcluster/b.py"]
    assert problems(found, {"names": {"Job": "both are"}}) == []
    assert problems(found, {"names": {"Job": "", "Row": ""}}) == ["house.toml: class name Row is not repeated any more"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""What it does."""', [1]),
        ('x = 1\n"""Of the loop."""', [2]),
        ('class A:\n    """How long."""\n    b: int\n    """Whether."""', [2, 4]),
        ('def f():\n    """Who asks."""', [2]),
        ('"""Whatsoever. Office. Whole."""\nx = "What"', []),
    ],
)
def test_a_docstring_says_first_what_a_thing_is(tmp_path: Path, text: str, lines: list[int]) -> None:
    found = house(tmp_path, a=text)
    assert found.openings() == ({"jetcluster/a.py": lines} if lines else {})
    told = "docstrings that do not say first what the thing is, in lines"
    assert problems(found, {}) == ([f"jetcluster/a.py: {told} {', '.join(map(str, lines))}"] if lines else [])


def test_docstrings_beside_the_package_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "tests" / "twins").mkdir(parents=True)
    (tmp_path / "tests" / "twins" / "disk.py").write_text('"""What a disk does."""')
    assert house(tmp_path, a="").openings() == {"tests/twins/disk.py": [1]}


def test_files_are_not_too_long(tmp_path: Path) -> None:
    found = house(tmp_path, a="x = 1\n" * 601, b="x = 1\n" * 600)
    assert problems(found, {})[0].startswith("jetcluster/a.py: 601 lines, 0 may be")
    assert problems(found, {"sizes": {"jetcluster/a.py": 601}}) == []
    assert problems(found, {"sizes": {"jetcluster/a.py": 700}}) == [
        "house.toml: jetcluster/a.py has 601 lines, not 700"
    ]


def test_each_file_has_a_test_or_names_the_one_that_covers_it(tmp_path: Path) -> None:
    found = house(tmp_path, room__a="", room__b="")
    (tmp_path / "tests/unit/room/test_b.py").unlink()
    assert problems(found, {}) == ["jetcluster/room/b.py: no test file of its own name"]
    assert problems(found, {"tests": {"jetcluster/room/b.py": "tests/unit/room/test_a.py"}}) == []
    assert "not there" in problems(found, {"tests": {"jetcluster/room/b.py": "tests/unit/room/test_c.py"}})[0]
    entries = {"jetcluster/room/b.py": "tests/unit/room/test_a.py", "jetcluster/room/a.py": "tests/unit/room/test_a.py"}
    assert "has a test file of its own" in problems(found, {"tests": entries})[0]


def test_shrinking_lowers_and_drops_and_adds_nothing(tmp_path: Path) -> None:
    found = house(tmp_path, a="from jetcluster import b\n" + "x = 1\n" * 600, b="import jetcluster.a", c="class A: ...")
    text = """\
# why
[circles]
x = { reason = "r", modules = ["jetcluster.a", "jetcluster.b", "jetcluster.c"] }
y = { reason = "r", modules = ["jetcluster.c", "jetcluster.d"] }
[names]
A = "gone"
[sizes]
"jetcluster/a.py" = 640
"jetcluster/b.py" = 610
"""
    assert (
        shrunk(text, found)
        == """\
# why
[circles]
x = { reason = "r", modules = ["jetcluster.a", "jetcluster.b"] }
[names]
[sizes]
"jetcluster/a.py" = 601
"""
    )
