"""`jetcluster demo` when a step fails."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jetcluster.cli.demo import run
from jetcluster.cli.demo.copies import DemoError
from jetcluster.cli.demo.steps import Say
from jetcluster.cli.local_cluster import ClusterError, LocalCluster


class Failing:
    """A demo of two steps, whose first one fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.closed = False

    def steps(self) -> list[tuple[str, Callable[[Say], None]]]:
        return [("first", self._fail), ("second", lambda say: pytest.fail("a step after a failure"))]

    def _fail(self, say: Say) -> None:
        say("a line [of the] step")
        raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("error", [DemoError("n1 LOST 3"), ClusterError("n1 is not healthy"), OSError("no room")])
def test_a_failure_ends_it_with_1_and_its_text(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    demo: Any = Failing(error)
    out = io.StringIO()
    assert run.show(demo, Console(file=out)) == 1
    assert demo.closed
    assert out.getvalue() == "1  first\n   a line [of the] step\n"
    assert capsys.readouterr().err == f"jetcluster demo: {error}\n"


def test_servers_that_do_not_start_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(LocalCluster, "command", lambda _self, _node: [sys.executable, "-c", "raise SystemExit(3)"])
    assert run.run_demo(keep=False) == 1
    assert list(tmp_path.iterdir()) == []
    assert run.run_demo(keep=True) == 1
    assert len(list(tmp_path.glob("jetcluster-demo-*/n1/stderr"))) == 1
