"""Shares of a core: the quota of each process, by both versions of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.scaling.share import CGROUPS, PERIOD_US, ShareError, Shares, apart, cores, shares


def held(root: Path) -> Path:
    """The group of a process that holds a fifth of a core."""
    Shares(root).hold(7, 0.2)
    [group] = root.rglob("jetcluster-bench-*")
    assert (group / "cgroup.procs").read_text() == "7"
    return group


def test_a_quota_of_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cgroup.procs").write_text("")
    group = held(tmp_path)
    assert group.parent.name == "cpu"
    assert (group / "cpu.cfs_period_us").read_text() == str(PERIOD_US)
    assert (group / "cpu.cfs_quota_us").read_text() == str(PERIOD_US // 5)


def test_a_quota_of_the_second_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    group = held(tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert (group / "cpu.max").read_text() == f"{PERIOD_US // 5} {PERIOD_US}"


def test_a_machine_without_control_groups_says_so(tmp_path: Path) -> None:
    with pytest.raises(ShareError, match="cannot be used"):
        Shares(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    with pytest.raises(ShareError, match="no controller of processors"):
        Shares(tmp_path)


def test_a_busy_process_gets_its_share_and_goes_back() -> None:
    spin = "while True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as busy:
        try:
            with shares([busy.pid], 0.1):
                own = Path(f"/proc/{busy.pid}/cgroup").read_text()
                start, before = time.monotonic(), _spent(busy.pid)
                time.sleep(0.6)
                share = (_spent(busy.pid) - before) / (time.monotonic() - start)
                assert "jetcluster-bench-" in own
                assert share < 0.25
            assert "jetcluster-bench-" not in Path(f"/proc/{busy.pid}/cgroup").read_text()
            assert not list(CGROUPS.glob(f"**/jetcluster-bench-{os.getpid()}-*"))
        except ShareError as error:
            pytest.skip(str(error))
        finally:
            busy.kill()


def _spent(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def test_servers_and_client_are_apart_and_the_client_comes_back() -> None:
    if (found := cores()) is None:
        pytest.skip("this process has one core")
    before = os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        try:
            with apart([other.pid]):
                assert (os.sched_getaffinity(other.pid), os.sched_getaffinity(0)) == ({found[0]}, {found[1]})
            assert os.sched_getaffinity(0) == before
        finally:
            other.kill()
