"""The house rules on small trees, and the list of what may remain, which may only shrink (scripts/check_house.py)."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from scripts.check_house import House, components, problems, shrunk


def house(top: Path, **files: str) -> House:
    """Files of jetcluster by name, `__` for a folder, each with a test of its own name; "" is some function."""
    for name, text in files.items():
        text = text or "def f() -> int:\n    return 1\n"
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


def test_a_public_class_says_what_it_is(tmp_path: Path) -> None:
    found = house(
        tmp_path, a="class Job:\n    size = 1\n\nclass _Own:\n    size = 1\n\nclass Gone(Exception):\n    pass"
    )
    (problem,) = problems(found, {})
    assert problem.startswith("jetcluster/a.py: 1 public classes without a docstring")
    assert problems(found, {"classes": {"jetcluster/a.py": 1}}) == []


def test_a_class_name_stands_for_one_thing(tmp_path: Path) -> None:
    found = house(tmp_path, a="class Job: pass\nclass _Own: pass", b="class Job: pass\nclass _Own: pass")
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
    (tmp_path / "testkit" / "twins").mkdir(parents=True)
    (tmp_path / "testkit" / "twins" / "disk.py").write_text('"""What a disk does."""')
    assert house(tmp_path, a="").openings() == {"testkit/twins/disk.py": [1]}


def test_files_are_not_too_long(tmp_path: Path) -> None:
    found = house(tmp_path, a="x = 1\n" * 601, b="x = 1\n" * 600)
    assert problems(found, {})[0].startswith("jetcluster/a.py: 601 lines, 0 may be")
    assert problems(found, {"sizes": {"jetcluster/a.py": 601}}) == []
    assert problems(found, {"sizes": {"jetcluster/a.py": 700}}) == [
        "house.toml: jetcluster/a.py has 601 lines, not 700"
    ]


def test_each_file_has_a_test_or_names_the_one_that_covers_it(tmp_path: Path) -> None:
    found = house(tmp_path, room__a="", room__b="")
    a, b = tmp_path / "tests/unit/room/test_a.py", tmp_path / "tests/unit/room/test_b.py"
    b.unlink()
    a.write_text("from jetcluster.room.b import f")

    def told(why: str = "it is small", **tests: str) -> list[str]:
        entries = {f"jetcluster/room/{name}.py": f"tests/unit/room/test_{test}.py" for name, test in tests.items()}
        return problems(found, {"tests": {"small": {"why": why, **entries}}})

    assert problems(found, {}) == ["jetcluster/room/b.py: no test file of its own name"]
    assert told(b="a") == []
    assert told(b="a", why="") == ["house.toml: tests.small gives no reason"]
    assert "not there" in told(b="c")[0]
    assert "has a test file of its own" in told(b="a", a="a")[0]
    a.write_text("import jetcluster.room.a")
    assert "imports neither it nor what it is part of" in told(b="a")[0]


@pytest.mark.parametrize(
    ("test", "reached"),
    [
        ("from jetcluster.room.part import f", True),
        ("from jetcluster.room import part", True),
        ("import jetcluster.room.part", True),
        ("from jetcluster.room.whole import Whole", True),
        ("from jetcluster.room import Whole", True),
        ("from tests.unit.rig import rig", True),
        ("from tests.unit import rig", True),
        ("from jetcluster.far import far", False),
        ("from tests.unit import other", False),
        ("'jetcluster.room.part'", False),
    ],
)
def test_a_test_has_to_import_what_it_covers_or_the_whole_of_it(tmp_path: Path, test: str, reached: bool) -> None:
    house(
        tmp_path,
        room__part="",
        room__whole="from jetcluster.room.part import f",
        far="from jetcluster.room.whole import Whole",
    )
    (tmp_path / "jetcluster/room/__init__.py").write_text("from jetcluster.room.whole import Whole")
    found = House(tmp_path)
    (tmp_path / "tests/unit/rig.py").write_text("from jetcluster.room.part import f")
    (tmp_path / "tests/unit/other.py").write_text("from jetcluster.far import far")
    (tmp_path / "tests/unit/test_x.py").write_text(test)
    assert ("jetcluster.room.part" in found.reached("tests/unit/test_x.py")) is reached


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("X = 1", False),
        ("class A(Protocol):\n    def f(self) -> int: ...\n    def g(self) -> None:\n        'Docs.'", False),
        ("class A(Exception):\n    def f(self) -> None:\n        pass", False),
        ("class A:\n    def f(self) -> int:\n        return 1", True),
        ("class A:\n    async def f(self) -> None:\n        'Docs.'\n        await x()", True),
    ],
)
def test_where_no_function_does_anything_no_test_is_needed(tmp_path: Path, text: str, needs: bool) -> None:
    found = house(tmp_path, a=text)
    (tmp_path / "tests/unit/test_a.py").unlink()
    assert found.untested() == (["jetcluster/a.py"] if needs else [])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("stream._state", 1),
        ("assert queue.parts()[0]._heap == [] and queue._heap", 2),
        ("from jetcluster.a import _f, g", 1),
        ("monkeypatch.setattr(store, '_db', 1)\ngetattr(store, '_path')", 2),
        ("class A:\n    def f(self, other):\n        self._x = other._x\n        super()._y", 0),
        ("def f(self):\n    self.node._x", 1),
        ("stream.state, stream.__class__, row._replace(a=1), os._exit(1), setattr(store, 'db', 1)", 0),
    ],
)
def test_tests_reach_into_nothing_private(tmp_path: Path, text: str, count: int) -> None:
    found = house(tmp_path, a="")
    (tmp_path / "tests/unit/test_a.py").write_text(text)
    what, name = "reaches into private attributes", "tests/unit/test_a.py"
    assert problems(found, {}) == ([f"{name}: {count} {what}, 0 may be"] if count else [])
    assert problems(found, {"private": {name: 3}}) == [
        f"house.toml: {name} has {count} {what}, not 3" if count else f"house.toml: {name} has no {what} to be excused"
    ]


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
[private]
"tests/unit/test_a.py" = 3
"tests/unit/test_b.py" = 3
"""
    (tmp_path / "tests/unit/test_a.py").write_text("a._x")
    assert (
        shrunk(text, found)
        == """\
# why
[circles]
x = { reason = "r", modules = ["jetcluster.a", "jetcluster.b"] }
[names]
[sizes]
"jetcluster/a.py" = 601
[private]
"tests/unit/test_a.py" = 1
"""
    )


def test_a_loop_that_may_be_long_is_counted_in_the_rooms_that_work_for_clients(tmp_path: Path) -> None:
    text = "def f(self) -> None:\n    for one in self.queue:\n        one.end()\n"
    found = house(tmp_path, server__a=text, store__b=text)
    assert problems(found, {}) == ["jetcluster/server/a.py: 1 loops over what may be many, 0 may be"]
    assert problems(found, {"loops": {"jetcluster/server/a.py": 1}}) == []
    assert problems(found, {"loops": {"jetcluster/server/a.py": 2}}) == [
        "house.toml: jetcluster/server/a.py has 1 loops over what may be many, not 2"
    ]
    shorter = shrunk('[loops]\n"jetcluster/server/a.py" = 2\n"jetcluster/store/b.py" = 1\n', found)
    assert shorter == '[loops]\n"jetcluster/server/a.py" = 1\n'
