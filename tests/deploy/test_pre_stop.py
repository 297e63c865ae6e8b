"""The pre-stop hook of the image, without docker: `probe.py` and `jetcluster` are played."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

HOOK = Path(__file__).resolve().parents[2] / "deploy" / "docker" / "pre-stop.sh"


def run(folder: Path, *, safe: bool, pid: str = "4711", seconds: int = 60) -> subprocess.CompletedProcess[str]:
    """Runs the hook; what it asked of `jetcluster` is in the file `asked`."""
    for name, script in (
        ("probe.py", f"exit {0 if safe else 1}"),
        ("jetcluster", f'echo "$@" >> {folder}/asked'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "pid").write_text(pid)
    path = f"{folder}:{os.environ['PATH']}"
    env = {"PATH": path, "PID_FILE": str(folder / "pid"), "PRE_STOP_SECONDS": str(seconds)}
    return subprocess.run([str(HOOK)], env=env, capture_output=True, text=True, timeout=20, check=False)


def test_a_normal_stop_ends_with_0_while_the_server_still_runs(tmp_path: Path) -> None:
    """The kubelet warns of any other code, and of a hook that goes with its container."""
    done = run(tmp_path, safe=True, pid=str(os.getpid()))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "asked").read_text() == f"serve -sl ldm={os.getpid()}\n"


def test_a_node_that_is_needed_is_waited_for_and_then_stopped(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(tmp_path, safe=False, seconds=1)
    assert time.monotonic() - began >= 1
    assert done.returncode == 0 and "still not safe" in done.stderr
    assert (tmp_path / "asked").exists()


def test_a_server_that_has_not_started_is_stopped_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, safe=False, pid="")
    assert done.returncode == 0 and "has not started" in done.stderr
    assert not (tmp_path / "asked").exists()
