"""The preloaded library alone: what it takes from files, and the clock it shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testkit import shim

WRITER = """
import os
def make(name, flags=0):
    return os.open(name, os.O_RDWR | os.O_CREAT | flags)
grown = make("grown"); os.write(grown, b"synced"); os.fdatasync(grown)
os.write(grown, b"-lost"); os.pwrite(grown, b"!", 0)
held = make("held"); os.posix_fallocate(held, 0, 16); os.fsync(held); os.pwritev(held, [b"lo", b"st"], 4)
whole = make("whole", os.O_DSYNC); os.pwritev(whole, [b"kept"], 0); os.write(whole, b"KEPT")
never = make("never"); os.write(never, b"lost")
late = make("late"); os.write(late, b"one"); os.fsync(late); os.write(late, b"two"); os.fsync(late)
"""


@pytest.fixture
def node(tmp_path: Path) -> shim.Shim:
    if why := shim.why_not():
        pytest.skip(why)
    return shim.Shim(shim.build(tmp_path), tmp_path / "shim")


def python(node: shim.Shim, code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, **node.env},
                          capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout


def test_a_power_cut_takes_what_was_not_synced(node: shim.Shim, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    python(node, WRITER, store)
    (store / "older").write_bytes(b"not written by this node")
    assert node.lose_unsynced(store) == len(b"-lost") + 1 + len(b"lost") + len(b"lost")
    assert {path.name: path.read_bytes() for path in store.iterdir()} == {
        "grown": b"\0ynced",
        "held": bytes(16),
        "whole": b"KEPT",
        "never": b"",
        "late": b"onetwo",
        "older": b"not written by this node",
    }
    assert node.lose_unsynced(store) == 0, "the record begins anew"


def test_the_wall_clock_jumps_and_the_monotonic_one_does_not(node: shim.Shim, tmp_path: Path) -> None:
    code = "import time, datetime; print(time.time(), time.monotonic(), datetime.datetime.now().timestamp())"
    for seconds in (0.0, 3600.0, -50.0):
        node.set_clock(seconds)
        wall, monotonic, shown = map(float, python(node, code, tmp_path).split())
        assert abs(wall - time.time() - seconds) < 30
        assert abs(shown - wall) < 1
        assert abs(monotonic - time.monotonic()) < 30
