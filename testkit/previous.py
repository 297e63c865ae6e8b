"""The commit before this one, unpacked beside this tree with its compiled loops: what servers are upgraded from, and
what the instructions of this one are compared with."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jetcluster.native import source_digest

NATIVE = Path("jetcluster/native")
COMPILER = Path("scripts/native.py")
KEPT = 4
"""Commits that stay unpacked, the newest."""


def git(tree: Path, *words: str) -> str:
    """The output of git; "" where there is no git, no repository or no such commit."""
    try:
        command = ["git", *words]
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def commit_before(tree: Path) -> str:
    """The commit before what is in the tree: HEAD where something is not committed, else its first parent. "" where
    there is none, as in an sdist, also one that is unpacked in somebody's repository."""
    if git(tree, "rev-parse", "--show-prefix") or not git(tree, "rev-parse", "--git-dir"):
        return ""
    dirty = git(tree, "status", "--porcelain", "--untracked-files=no")
    return git(tree, "rev-parse", "--verify", "--quiet", "HEAD" if dirty else "HEAD^")


def unpacked(tree: Path, commit: str) -> Path:
    """A folder with the sources of a commit and their loops, compiled once: `.tools/previous-<commit>`. Raises
    CalledProcessError."""
    tools = tree / ".tools"
    tools.mkdir(exist_ok=True)
    folder = tools / f"previous-{commit[:12]}"
    with _alone(tools):
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            _unpack(tree, commit, part)
            part.rename(folder)
            _forget(tools)
    return folder


@contextmanager
def _alone(tools: Path) -> Iterator[None]:
    """Tests of two processes may want the same commit."""
    with (tools / "previous.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(tree: Path, commit: str, folder: Path) -> None:
    archive = folder.with_suffix(".tar")
    command = ["git", "archive", f"--output={archive}", commit]
    subprocess.run(command, cwd=tree, check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    if _same_loops(tree, folder):
        for compiled in (tree / NATIVE).glob("*.so"):
            shutil.copy2(compiled, folder / NATIVE)
        return
    # A process of its own: it is the other commit's code.
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "scripts.native"]
    subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)


def _same_loops(tree: Path, folder: Path) -> bool:
    """Both have the same loops and compile them alike, and this tree's are compiled from what it has."""
    if not (folder / NATIVE).exists() or not (tree / NATIVE).exists():
        return False
    if source_digest(tree / NATIVE) != source_digest(folder / NATIVE):
        return False
    if (tree / COMPILER).read_bytes() != (folder / COMPILER).read_bytes():
        return False
    code = "import sys; from jetcluster import native; sys.exit(bool(native.why_pure))"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tree)}
    return subprocess.run([sys.executable, "-c", code], cwd=tree, env=env, check=False).returncode == 0


def _forget(tools: Path) -> None:
    """Removes all but the newest."""
    found = sorted(tools.glob("previous-????????????"), key=lambda folder: folder.stat().st_mtime)
    for old in found[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
