"""`jetcluster demo` as a user runs it: all steps, with three processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jetcluster

ENV = {**os.environ, "PYTHONPATH": str(Path(jetcluster.__file__).parents[1])}


def test_it_proves_everything_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "jetcluster", "demo"]
    done = subprocess.run(
        words, env={**ENV, "TMPDIR": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.findall(r"^(n\d): all 4,000 acked orders, each exactly once", done.stdout.replace("   ", ""), re.M) == [
        "n1", "n2", "n3",
    ]  # fmt: skip
    assert "COPY has all 4,000 orders" in done.stdout
    assert "refused: no update is lost" in done.stdout
    assert list(tmp_path.iterdir()) == []
    for port in re.findall(r"nats://127\.0\.0\.1:(\d+)", done.stdout):
        assert f":{int(port):04X} " not in _listening(), "a server is left"


def _listening() -> str:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return "".join(f"{line.split()[1]} " for line in lines if line.split()[3] == "0A")
