"""`python -m bench counts`: what fails, what the figures are compared with, and that each load runs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from bench.counts import meter
from bench.counts.loads import ROWS
from bench.counts.record import LESS, MORE, WRITE, Record, expected, problems
from bench.scenarios import counts

HERE = {"python": "3.11.7", "libc": "glibc 2.36"}
FIGURES = {row.name: 1_000.0 for row in ROWS}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with figures that were counted here; nothing is counted but what `FIGURES` says."""
    (tmp_path / "bench").mkdir()
    Record(FIGURES, HERE).write(tmp_path / counts.PLACE)
    monkeypatch.setattr(counts, "TOP", tmp_path)
    monkeypatch.setattr(meter, "why_not", lambda: "")
    monkeypatch.setattr(meter, "environment", lambda: HERE)
    monkeypatch.setattr(meter, "measure", lambda tree: FIGURES)
    return tmp_path


def run(*, write: bool = False) -> int:
    return counts.main(argparse.Namespace(write=write))


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")


@pytest.mark.parametrize(
    ("share", "words"),
    [(1 + MORE - 0.001, ""), (1 + MORE + 0.001, "more"), (1 - LESS + 0.001, ""), (1 - LESS - 0.001, "less")],
)
def test_a_row_may_be_near_its_figure(share: float, words: str) -> None:
    found = problems({"core": 4_000 * share, "pull": 10.0}, {"core": 4_000.0, "pull": 10.0})
    assert len(found) == bool(words)
    assert all(line.startswith("core:") and f"% {words} than 4,000" in line for line in found)


def test_a_row_has_a_figure_and_is_counted() -> None:
    assert problems({"new": 1.0}, {"old": 1.0}) == ["old: not counted", "new: has no figure"]


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    record = Record({"core": 4_161.0}, {"python": '3.11 [GCC "12"]\\'})
    record.write(tmp_path / "counts.toml")
    assert Record.read(tmp_path / "counts.toml") == record
    assert record.differences(record.environment) == []
    assert record.differences({"python": "3.12", "libc": "2"}) == [
        'python is 3.12, was 3.11 [GCC "12"]\\',
        "libc is 2, was none",
    ]


def test_the_committed_figures_are_of_these_rows() -> None:
    record = Record.read(Path(counts.__file__).parents[2] / counts.PLACE)
    assert list(record.rows) == [row.name for row in ROWS]
    assert all(count > 500 for count in record.rows.values())


def test_what_costs_more_fails_until_it_is_written(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    for row in ROWS:
        monkeypatch.setattr(meter, "measure", lambda tree, name=row.name: {**FIGURES, name: 1_040.0})
        assert run() == 1
        said = capsys.readouterr().out
        assert f"FAILED {row.name}: 1,040 instructions per message, 4.0% more than 1,000" in said
        assert WRITE in said
    assert run(write=True) == 0
    assert Record.read(tree / counts.PLACE).rows[ROWS[-1].name] == 1_040.0
    assert run() == 0


def test_where_nothing_can_be_counted_it_says_why(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(meter, "why_not", lambda: "no valgrind")
    assert (run(), run(write=True)) == (0, 1)
    assert "no valgrind" in capsys.readouterr().out


def test_elsewhere_the_parent_is_counted_beside(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(meter, "environment", lambda: {"python": "3.13"})
    assert run() == 0
    assert "no parent commit" in capsys.readouterr().out
    git(tree, "init", "-q")
    (tree / "scripts").mkdir()
    (tree / "scripts" / "__init__.py").touch()
    (tree / "scripts" / "native.py").write_text("open('compiled', 'w').write('parent')")
    commit(tree)
    (tree / "a").write_text("1")
    commit(tree)

    def measure(folder: Path) -> dict[str, float]:
        """A machine on which all takes twice as much; 4 % more since the parent."""
        return dict.fromkeys(FIGURES, 2_000.0 if (folder / "compiled").exists() else 2_080.0)

    monkeypatch.setattr(meter, "measure", measure)
    assert run() == 1
    said = capsys.readouterr().out
    assert "python is 3.13, was 3.11.7" in said
    assert "2,080 instructions per message, 4.0% more than 2,000" in said
    Record(dict.fromkeys(FIGURES, 1_040.0), HERE).write(tree / counts.PLACE)
    commit(tree)
    assert run() == 0, "the commit says so of itself"


def test_a_parent_without_figures_is_not_compared(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(meter, "environment", lambda: {"python": "3.13"})
    git(tree, "init", "-q")
    figures = (tree / counts.PLACE).read_text()
    (tree / counts.PLACE).unlink()
    (tree / "a").write_text("1")
    commit(tree)
    (tree / counts.PLACE).write_text(figures)
    commit(tree)
    assert run() == 0
    assert f"has no {counts.PLACE}" in capsys.readouterr().out


def test_what_a_new_row_may_take_is_not_known() -> None:
    assert expected({"core": 10.0}, {"core": 1.0}, {"core": 2.0, "new": 5.0}) == {"core": 20.0}


def test_each_load_runs_to_its_end() -> None:
    program = """
from bench.counts import loads
async def count(name, chunks, load):
    await load(1)
    print(name, chunks)
loads.run(count)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[:-1] == [f"{row.name} {row.chunks}" for row in ROWS]
