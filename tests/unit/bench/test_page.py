"""`python -m bench page` with a real server: one short row, and the page made again of its raw samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]


def bench(*words: str) -> str:
    command = [sys.executable, "-m", "bench", "page", *words]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_row_is_measured_and_rendered_again(tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "samples.json"), "--profiles", str(tmp_path / "none")]
    words = ["--rounds", "1", "--seconds", "0.1", "--rows", "r1 SYNC", "--only", "jetcluster", "--dir", str(tmp_path)]
    bench(*files, *words, "--out", str(tmp_path / "page.md"))
    page = (tmp_path / "page.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| R1 sync pub |"))
    assert 0 < float(row.split("|")[5]) < 1000, row
    assert "failed" not in page and "## Publish, R3" not in page
    assert bench(*files, "--render") == page + "\n"
    samples = json.loads((tmp_path / "samples.json").read_text())
    assert [one["row"] for one in samples["samples"]] == ["R1 sync pub", "R1 sync pub, p99"]
    assert samples["conditions"]["commit"] and not list(tmp_path.glob("run-*"))


def test_rows_are_listed() -> None:
    assert "Publish, R1\n  R1 async w500 [msgs/s]\n" in bench("--list")


@pytest.mark.parametrize("words", [["--rows", "no such row"], ["--render", "--json", "/nowhere/samples.json"]])
def test_what_is_not_there_is_an_error(words: list[str]) -> None:
    with pytest.raises(AssertionError, match=r"no row has|No such file"):
        bench(*words)
