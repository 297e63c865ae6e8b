# ruff: noqa: S603, S607 - runs df, git and the peer itself, with fixed arguments
"""Conditions of a run: the machine, its disk, versions."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

from testkit.harness import TOP, find_server


def fdatasync_p50(folder: Path, rounds: int = 200) -> float:
    """Milliseconds of one small append and fdatasync in `folder`, median: the floor of a synchronous durable write."""
    path = folder / "fsync-probe"
    times = []
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        for _ in range(rounds):
            os.write(fd, b"x" * 256)
            start = time.perf_counter()
            os.fdatasync(fd)
            times.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(times)


def describe(folder: Path) -> dict[str, str]:
    """Each condition in words, by name."""
    found = {
        "machine": machine(),
        "disk": disk(folder),
        "python": platform.python_version(),
        "commit": commit(),
        "loops": _loops(),
    }
    if find_server("nats-server") is not None:
        found["peer"] = peer_version()
    return found


def commit() -> str:
    """The commit of this tree: the version number alone says little about a figure."""
    command = ["git", "-C", str(TOP), "describe", "--always", "--dirty", "--exclude", "*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unknown (no git)"


def _loops() -> str:
    """Which loops the servers run with."""
    from jetcluster import native

    return f"loops in Python ({native.why_pure})" if native.why_pure else "compiled loops"


def machine() -> str:
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return f"{os.cpu_count()} CPUs ({model or platform.machine()}), {pages} GiB RAM, Linux {platform.release()}"


def disk(folder: Path) -> str:
    found = subprocess.run(["df", "--output=fstype,source", str(folder)], capture_output=True, text=True, check=False)
    return " ".join(found.stdout.split("\n")[1].split()) if found.returncode == 0 else "unknown"


def peer_version() -> str:
    command = find_server("nats-server")
    assert command is not None
    text = subprocess.run([command[0], "-v"], capture_output=True, text=True, check=True).stdout
    return text.strip().replace("nats-server: v", "nats-server ")
