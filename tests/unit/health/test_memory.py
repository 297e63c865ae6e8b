from __future__ import annotations

import os
from pathlib import Path

import pytest

from jetcluster.health.memory import LOOK_SECONDS, MemoryWatch
from testkit.twins.time import ManualTime

PAGE = os.sysconf("SC_PAGE_SIZE")


class Machine:
    """The kernel's files, below a folder of ours."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "sys/fs/cgroup").mkdir(parents=True)
        self.resident(100 << 20)
        self.available(8_000)

    def limit(self, text: str) -> None:
        (self.root / "sys/fs/cgroup/memory.max").write_text(text + "\n")

    def resident(self, size: int) -> None:
        (self.root / "proc/self/statm").write_text(f"99999 {size // PAGE} 11 22 0 33 0\n")

    def available(self, mebibytes: int) -> None:
        text = (
            f"MemTotal:       {10_000 << 10} kB\nMemFree:  1 kB\nMemAvailable:   {mebibytes << 10} kB\nBuffers: 1 kB\n"
        )
        (self.root / "proc/meminfo").write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_control_groups_limit(machine: Machine) -> None:
    machine.limit(str(512 << 20))
    time = ManualTime()
    watch = MemoryWatch(time, machine.root)
    assert watch.trouble() == ""
    machine.resident(490 << 20)
    assert watch.trouble() == "", "it is not looked at all the time"
    time.advance(LOOK_SECONDS)
    assert watch.trouble() == "490 MiB are used of the 512 MiB that the control group allows"
    machine.resident(400 << 20)
    time.advance(LOOK_SECONDS)
    assert watch.trouble() == ""


@pytest.mark.parametrize("limit", ["max", "", None])
def test_the_machines_memory(machine: Machine, limit: str | None) -> None:
    if limit is not None:
        machine.limit(limit)
    machine.resident(9_000 << 20)
    time = ManualTime()
    watch = MemoryWatch(time, machine.root)
    assert watch.trouble() == ""
    machine.available(150)
    time.advance(LOOK_SECONDS)
    assert watch.trouble() == "150 MiB are available of the machine's 10000 MiB"


@pytest.mark.parametrize("text", ["", "MemTotal:\n", "MemTotal: many kB\n"])
def test_what_the_kernel_does_not_say_is_no_trouble(tmp_path: Path, text: str) -> None:
    assert MemoryWatch(ManualTime(), tmp_path).trouble() == ""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(text)
    assert MemoryWatch(ManualTime(), tmp_path).trouble() == ""


def test_the_real_kernel() -> None:
    assert MemoryWatch(ManualTime()).trouble() == ""


def nested(machine: Machine, line: str, limits: dict[str, str]) -> MemoryWatch:
    (machine.root / "proc/self/cgroup").write_text(line + "\n")
    for path, limit in limits.items():
        file = machine.root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    machine.resident(490 << 20)
    return MemoryWatch(ManualTime(), machine.root)


LOW, HIGH = str(512 << 20), str(4096 << 20)


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("0::/system.slice/jc.service", {"system.slice/jc.service/memory.max": LOW}),
        ("0::/a/b", {"a/b/memory.max": HIGH, "a/memory.max": LOW}),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": HIGH, "memory.max": LOW}),
        ("2:cpu:/x\n4:memory:/docker/1\n0::/", {"memory/docker/1/memory.limit_in_bytes": LOW}),
        ("4:cpu,memory:/not/here", {"memory/memory.limit_in_bytes": LOW}),
        ("0::/../outside", {"memory.max": LOW}),
    ],
)
def test_the_smallest_limit_on_the_way_to_the_top(machine: Machine, line: str, limits: dict[str, str]) -> None:
    watch = nested(machine, line, limits)
    assert watch.trouble() == "490 MiB are used of the 512 MiB that the control group allows"


def test_the_limit_of_another_control_group_does_not_count(machine: Machine) -> None:
    limits = {"b/memory.max": LOW, "a/memory.max": HIGH, "cpu/a/memory.limit_in_bytes": LOW}
    assert nested(machine, "0::/a\n3:cpu:/a", limits).trouble() == ""
    unlimited = {"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}
    assert nested(machine, "4:memory:/", unlimited).trouble() == ""
