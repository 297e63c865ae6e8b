"""Programs in other languages that tests run, built where their toolchain and its package index are there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def build(command: Sequence[str], folder: Path) -> None:
    """Skips the tests when it fails: what is missing then is a toolchain or a package, not a feature of ours."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{command[0]}: {error}")
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}")


def found(name: str, folder: str = "") -> str:
    """The path of a tool, also looked for in `folder`. Skips the tests when it is not there."""
    path = shutil.which(name) or (shutil.which(name, path=folder) if folder else None)
    if path is None:
        pytest.skip(f"no {name} on this machine")
    return path


def go_suite(folder: Path) -> list[str]:
    """The command of the programs in `go/`, built in an empty folder."""
    go = found("go", "/usr/local/go/bin")
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    build([go, "build", "-o", "suite", "."], folder)
    return [str(folder / "suite")]


def js_suite(folder: Path) -> list[str]:
    node, npm = found("node"), found("npm")
    shutil.copytree(HERE / "js", folder, dirs_exist_ok=True)
    build([npm, "install", "--silent", "--no-audit", "--no-fund"], folder)
    return [node, str(folder / "suite.mjs")]


def java_member(folder: Path) -> list[str]:
    java, javac, maven = found("java"), found("javac"), found("mvn")
    shutil.copytree(HERE / "java", folder, dirs_exist_ok=True)
    build([maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], folder)
    done = subprocess.run(
        [javac, "-cp", "lib/*", "Member.java"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr  # the client is there: what fails is ours
    return [java, "-XX:TieredStopAtLevel=1", "-cp", f"{folder}:{folder}/lib/*", "Member"]
