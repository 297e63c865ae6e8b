"""`python -m bench sizing`: its tables, and their place in the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.marks import END, put
from bench.sizing import BEGIN, LABELS, THINGS, disk_bytes, tables
from tests.unit.bench.test_estimate import FIGURES

TOP = Path(__file__).resolve().parents[3]


def test_tables_have_every_thing_and_every_example() -> None:
    for thing in THINGS:
        FIGURES.memory.setdefault(thing.name, 0.0)
        FIGURES.disk.setdefault(thing.name, 0.0)
    FIGURES.rest |= {thing.name: FIGURES.rest.get(thing.name, 0.0) for thing in THINGS}
    text = tables(FIGURES)
    for thing in THINGS:
        assert f"\n| {LABELS.get(thing.name, thing.name)} |" in text
    assert "| stream | 100 KB | 1 KB | 1.00 % for 1,000 |" in text
    assert "| message of 1 KiB, many at a time | 100 B | 1 B beside its bytes | - |" in text
    assert "| connection (on one node) | 8 KB | - | - |" in text
    assert "| Direct Get | 10.0 µs |" in text
    assert "**memory of a node** | **" in text
    assert len({line.count("|") for line in text.split("edge: ")[1].splitlines()[1:]}) == 1


def test_they_go_between_the_marks_of_the_page() -> None:
    page = put(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new", BEGIN)
    assert page == f"before\n{BEGIN}\n\nnew\n{END}\nafter\n"
    assert put(page, "newer", BEGIN).count("new") == 1
    with pytest.raises(ValueError, match="the page has no"):
        put("before", "new", BEGIN)
    text = (TOP / "docs" / "sizing.md").read_text()
    assert text.index(BEGIN) < text.index("**memory of a node**") < text.index(END), "`make sizing` has not run"


def test_bytes_of_a_folder_are_those_that_it_takes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "full").write_bytes(b"x" * 10_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    assert 10_000 <= disk_bytes(tmp_path) < 1 << 19
