"""The command line of the jobs: what ends before Spark is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jetcluster.cli.main import main as jetcluster
from jetcluster.pipeline import environment, main, package
from jetcluster.pipeline.result import EnvironmentProblem


def test_overview_names_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert jetcluster(["pipeline", "--help"], "jetcluster") == 0
    out = capsys.readouterr().out
    assert jetcluster(["pipeline"], "jetcluster") == 2, "no job was named"
    assert capsys.readouterr() == ("", out)
    for name in main.JOBS:
        assert f"\n    {name} " in out


@pytest.mark.parametrize("name", main.JOBS)
def test_help_needs_no_spark(name: str) -> None:
    """Every job's module, too, is imported without pyspark."""
    code = f"""
import sys
from pathlib import Path
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
from jetcluster.pipeline.main import main
assert main([{name!r}, "--help"]) == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"usage: jetcluster pipeline {name}" in done.stdout
    assert "--print-submit" in done.stdout


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["nonsense"]) == 2
    assert "unknown job 'nonsense'" in capsys.readouterr().err
    assert main.main(["doctor", "--nonsense"]) == 2


def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["archive", "--stream", "S", "--out", "x", "--strem", "1"]) == 2
    out, err = capsys.readouterr()
    assert not out and err == "jetcluster pipeline archive: unrecognized arguments: --strem 1 (see --help)\n"


def test_missing_environment_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(env: object = None) -> int:
        raise EnvironmentProblem("no Java; install it")

    monkeypatch.setattr(environment, "java_version", missing)
    assert main.main(["doctor", "--json"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert '"ok": false, "found": "no Java; install it"' in out


def test_print_submit_drops_what_spark_submit_gets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "/there/python3")
    words = ["doctor", "--master", "yarn", "--conf=a=b", "--conf", "c=d", "--print-submit", "--json"]
    assert main.job_words(words) == ["doctor", "--json"]
    assert main.main(words) == 0
    out, err = capsys.readouterr()
    assert "--master yarn --conf a=b --conf c=d" in out
    assert out.startswith(f"PYTHONPATH={package.file_name()} PYSPARK_PYTHON=/there/python3 spark-submit ")
    assert "/there/python3 needs pyspark, pyarrow, pandas" in err
    assert {path.name for path in tmp_path.iterdir()} == {package.file_name(), "pyspark_jetstream.py"}
    words = [
        "lakehouse",
        "--stream",
        "S",
        "--delta",
        "s3://b/t",
        "--format",
        "avro",
        "--master",
        "yarn",
        "--print-submit",
    ]
    assert main.main(words) == 0
    assert "needs pyspark, pyarrow, pandas, fastavro; here also deltalake, pyiceberg" in capsys.readouterr().err
    words = ["archive", "--stream", "S", "--out", "gs://b/t", "--master", "yarn", "--print-submit"]
    assert main.main(words) == 0
    assert "needs pyspark, pyarrow, pandas, obstore\n" in capsys.readouterr().err
    assert main.main(["doctor", "--master", "local", "--print-submit"]) == 0
    monkeypatch.setattr(package, "write", lambda folder: (_ for _ in ()).throw(PermissionError("no")))
    assert main.main(words) == 3
    assert "cannot be written here: no" in capsys.readouterr().err
