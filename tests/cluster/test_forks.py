"""`ForkServer`: what it forks is to a test what a started server is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testkit.forks import ForkServer
from testkit.harness import TOP, Node, ProcessCluster, eventually

pytestmark = pytest.mark.cluster


async def test_a_forked_server_serves_and_ends_as_a_started_one_does(single: ProcessCluster) -> None:
    node = single[0]
    async with await node.connect() as client:
        await client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert await node.stop() in (0, 1)
    await node.start()
    first = node.pid
    async with await node.connect() as client:
        assert (await client.api("STREAM.INFO.S"))["config"]["name"] == "S"
    node.kill9()
    assert node.process is not None and node.process.returncode == -signal.SIGKILL
    await node.start()
    assert node.pid != first


async def test_what_a_server_says_when_it_cannot_start_is_in_its_log(server: str, tmp_path: Path) -> None:
    nodes = ProcessCluster(1, server, root=tmp_path, config="no_such_field: 1\n")
    nodes[0].spawn()
    assert await nodes[0].wait_exit(20) == 1
    assert 'unknown field "no_such_field"' in nodes[0].log()


async def test_each_has_its_own_environment_and_folder(tmp_path: Path) -> None:
    forks = ForkServer()
    try:
        process = forks.start(["version"], {**os.environ, "MINE": "1"}, tmp_path, tmp_path / "log")
        assert process.wait(10) == 0 and process.poll() == 0
        assert (tmp_path / "log").read_text().startswith("nats-server: v")
        process.kill()  # of what has ended: nothing
        args = ["serve", "-a", "127.0.0.1", "-p", "-1"]
        left = forks.start(args, {"PATH": "/bin", "MINE": "2"}, tmp_path, tmp_path / "log")
        await eventually(lambda: Path(f"/proc/{left.pid}/cwd").resolve() == tmp_path, 10, "it is not in its folder")
        with pytest.raises(subprocess.TimeoutExpired):
            left.wait(0.01)
    finally:
        forks.close()
    await eventually(lambda: left.pid not in _running(), 10, "the server outlives the fork server")


def _running() -> list[int]:
    """Processes that are there and have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def test_no_server_outlives_its_tests(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, os, signal\n"
        "from testkit.harness import Node, ProcessCluster\n"
        "Node.forked = True\n"
        f"nodes = ProcessCluster(1, root=pathlib.Path({str(tmp_path)!r}))\n"
        "asyncio.run(nodes.start())\n"
        "print(nodes[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, check=False, timeout=60
    )
    pid = int(done.stdout)
    await eventually(lambda: pid not in _running(), 10, "the server still runs")


@pytest.mark.started
async def test_a_start_as_users_do_it_is_a_program_of_its_own(single: ProcessCluster) -> None:
    assert not Node.forked
    words = Path(f"/proc/{single[0].pid}/cmdline").read_bytes().split(b"\0")
    assert words[-2:-1] != [b"testkit.forks"] and b"-js" in words


@pytest.mark.ours("only servers of this tree are forked")
async def test_a_fork_costs_a_fraction_of_a_start(tmp_path: Path) -> None:
    """Processor time until it is ready."""
    cost = {}
    for forked in (True, False, True):
        Node.forked = forked
        nodes = ProcessCluster(1, root=tmp_path / f"{forked}{time.monotonic()}")
        await nodes[0].start()
        fields = Path(f"/proc/{nodes[0].pid}/stat").read_text().rsplit(")", 1)[1].split()
        cost[forked] = int(fields[11]) + int(fields[12])
        nodes.kill9_all()
    assert cost[True] < cost[False] / 2
