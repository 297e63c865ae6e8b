"""The command line of `jetcluster bench`."""

from __future__ import annotations

import json

import pytest

from jetcluster.cli import bench
from jetcluster.cli.bench_result import LoadResult
from jetcluster.cli.commands import run_command


def test_unknown_mode_and_bad_pid_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "--mode", "nonsense"]) == 2
    assert "unknown mode nonsense" in " ".join(capsys.readouterr().err.split())
    assert run_command(["bench", "--mode", "core", "--pid", "n1=abc"]) == 2


def test_no_server_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "-s", "nats://127.0.0.1:1", "--mode", "core"]) == 1
    assert capsys.readouterr().err.startswith("bench: nats://127.0.0.1:1: ")


def test_json_and_table_show_the_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [LoadResult("js-pub window=500", 1000, 0.5, [1.0], {"n1": 0.01})]
    monkeypatch.setattr(bench.Plan, "run", lambda _plan, _modes: found)
    assert run_command(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rate"] == 2000.0
    assert run_command(["bench"]) == 0
    assert "js-pub" in capsys.readouterr().out
