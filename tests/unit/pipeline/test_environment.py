"""A missing requirement of Spark becomes one line and exit code 3."""

from __future__ import annotations

import importlib.util
import stat
from pathlib import Path

import pytest

from jetcluster.pipeline import environment
from jetcluster.pipeline.result import EnvironmentProblem


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version \"25.0.2\"", 25),
        ("command not found", 0),
    ],
)  # fmt: skip
def test_version(text: str, major: int) -> None:
    assert environment.parse_java_version(text) == major


def test_java_home_wins_and_must_hold_one(tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", "17.0.1")
    env = {"JAVA_HOME": str(good), "PATH": "/bin:/usr/bin"}
    assert environment.java_version(env) == 17
    with pytest.raises(EnvironmentProblem, match=r"none found \(JAVA_HOME=/nowhere\).*apt-get install openjdk-17"):
        environment.java_version({"JAVA_HOME": "/nowhere", "PATH": str(good / "bin")})
    assert environment.java_version({"PATH": f"{good / 'bin'}:/bin:/usr/bin"}) == 17


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"needs a Java 17\+ runtime; none found \(JAVA_HOME, PATH\)"):
        environment.java_version({"PATH": str(tmp_path)})


def test_old_java(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(EnvironmentProblem, match="is Java 11; Spark needs 17"):
        environment.java_version({"JAVA_HOME": str(home), "PATH": "/bin:/usr/bin"})


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_missing_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(EnvironmentProblem, match=rf'needs {package}, .*pip install "jetcluster\[spark\]"') as caught:
        environment.check({})
    assert caught.value.code == 3


def test_under_spark_submit_java_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    environment.check({"PYSPARK_GATEWAY_PORT": "1", "PATH": ""})
    with pytest.raises(EnvironmentProblem):
        environment.check({"PATH": ""})


# Progress on stderr.


def test_progress_is_no_part_of_the_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_submitted", lambda: False)
    environment.progress("half of it")
    assert capsys.readouterr() == ("", "half of it\n")
