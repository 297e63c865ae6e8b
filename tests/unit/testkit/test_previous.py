"""The commit before: which one that is, and that its loops are compiled once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testkit import previous
from testkit.previous import commit_before, unpacked

LOOPS = "jetcluster/native/loop.pyx"
COMPILE = """
from pathlib import Path
Path("jetcluster/native/loop.so").write_text(Path("jetcluster/native/loop.pyx").read_text())
with Path("compiled").open("a") as file:
    file.write("once ")
"""


def git(tree: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)


def commit(tree: Path, **files: str) -> None:
    for name, text in files.items():
        (tree / name).write_text(text)
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a commit and sources of loops, which `scripts.native` "compiles"."""
    for folder in ("jetcluster/native", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "scripts" / "native.py").write_text(COMPILE)
    for package in ("jetcluster", "scripts"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "jetcluster/native/__init__.py").write_text("why_pure = ''")
    (tmp_path / LOOPS).write_text("one")
    (tmp_path / ".gitignore").write_text("*.so\n.tools\n__pycache__\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def test_the_commit_before_is_the_parent_or_what_was_committed_last(tree: Path) -> None:
    assert commit_before(tree) == "", "the first commit has none"
    commit(tree, a="1")
    parent = commit_before(tree)
    assert parent == previous.git(tree, "rev-parse", "HEAD^")
    (tree / "a").write_text("2")
    assert commit_before(tree) == previous.git(tree, "rev-parse", "HEAD"), "something is not committed"


def test_without_a_repository_there_is_none(tmp_path: Path) -> None:
    assert commit_before(tmp_path) == ""


def test_a_repository_around_the_tree_is_none_of_its_own(tree: Path) -> None:
    commit(tree, a="1")
    assert commit_before(tree) != ""
    assert commit_before(tree / "scripts") == ""


def test_other_loops_are_compiled_once(tree: Path) -> None:
    commit(tree, **{LOOPS: "two"})
    folder = unpacked(tree, commit_before(tree))
    assert (folder / "jetcluster/native/loop.so").read_text() == "one"
    assert unpacked(tree, commit_before(tree)) == folder
    assert (folder / "compiled").read_text() == "once "
    assert not list((tree / ".tools").glob("*.part")) and not list((tree / ".tools").glob("*.tar"))


def test_the_same_loops_are_copied(tree: Path) -> None:
    commit(tree, a="1")
    (tree / "jetcluster/native/loop.so").write_text("compiled here")
    folder = unpacked(tree, commit_before(tree))
    assert (folder / "jetcluster/native/loop.so").read_text() == "compiled here"
    assert not (folder / "compiled").exists()


def test_loops_of_other_sources_are_not_copied(tree: Path) -> None:
    commit(tree, **{"jetcluster/native/__init__.py": "why_pure = 'compiled from other sources'"})
    commit(tree, a="1")
    (tree / "jetcluster/native/loop.so").write_text("compiled long ago")
    folder = unpacked(tree, commit_before(tree))
    assert (folder / "jetcluster/native/loop.so").read_text() == "one"


def test_few_commits_are_kept(tree: Path) -> None:
    for number in range(previous.KEPT + 2):
        commit(tree, a=str(number))
        newest = unpacked(tree, commit_before(tree))
    kept = list((tree / ".tools").glob("previous-*/"))
    assert len([folder for folder in kept if folder.is_dir()]) == previous.KEPT
    assert newest in kept


def test_its_own_interpreter_compiles(tree: Path) -> None:
    (tree / "scripts" / "native.py").write_text("import sys; open('python', 'w').write(sys.executable)")
    commit(tree)
    commit(tree, **{LOOPS: "two"})
    assert (unpacked(tree, commit_before(tree)) / "python").read_text() == sys.executable
