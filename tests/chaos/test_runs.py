"""The short subset of `make chaos` that runs in CI: real processes, one of each fault, every replica read back."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from chaos import links
from chaos.cli import main
from chaos.history import History
from chaos.local_cluster import LocalCluster
from chaos.nemeses import NEMESES
from chaos.runner import lateness, run
from chaos.scenarios import DEFAULT, SCENARIOS
from jetcluster.pipeline.checkers.event import load
from testkit import shim
from testkit.harness import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240), pytest.mark.long, pytest.mark.thorough]


def test_no_promise_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = "7"
    status = main(["--scenario", "short", "--seeds", seed, "--seconds", "12", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    sys.stdout.write(printed)
    assert status == 0, printed
    events = load((tmp_path / f"short-{seed}.jsonl").read_text().splitlines())
    struck = {event.subject for event in events if event.f == "fault" and event.client == "nemesis"}
    assert len(struck) >= 2
    assert {event.replica for event in events if event.f == "stored"} == {"n1", "n2", "n3"}
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page and "http" not in page.replace("http-equiv", "")
    assert main(["--judge", str(tmp_path / f"short-{seed}.jsonl")]) == 0


async def test_a_run_can_fail() -> None:
    """Acks before the fsync (`sync_interval`), and a power cut: acked messages must be missed."""
    if why := shim.why_not():
        pytest.skip(f"power cuts: {why}")
    config = 'jetstream { sync_interval: "60s" }\n'
    async with LocalCluster(3, config=config, needs=frozenset({"shim"})) as cluster:
        result = await run(SCENARIOS["power"], cluster, 1, 1.0, None, workloads=("queue",))
    assert result.faults == {"power-cut": 1}
    assert result.verdict.lost + result.verdict.other > 0


async def test_a_machine_that_is_too_busy_is_noted_as_a_pause() -> None:
    history = History()
    watch = asyncio.create_task(lateness(history))
    await asyncio.sleep(0)
    time.sleep(1.0)
    while not history.events:
        await asyncio.sleep(0)
    watch.cancel()
    late = history.events[0]
    assert (late.f, late.workload, late.subject) == ("fault", "pause", "late")
    assert late.t1 - late.t0 >= 1.0


def test_scenarios_name_nemeses_that_are_there() -> None:
    assert all(name in NEMESES for scenario in SCENARIOS.values() for name in scenario.nemeses)
    assert set(DEFAULT) <= set(SCENARIOS)


async def test_a_cut_direction_carries_nothing_and_the_other_does(tmp_path: Path) -> None:
    """Tests the proxies alone: bytes that a cut link swallowed do not come back when it heals."""
    if why := links.why_not():
        pytest.skip(f"links: {why}")
    heard: list[bytes] = []
    answers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(writer)
        while data := await reader.read(100):
            heard.append(data)
        writer.close()

    port, other = free_ports(2)
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    mesh = links.Links({"a": other, "b": port}, tmp_path / "log")
    await mesh.start()
    try:
        address = mesh.routes("a")[0].rpartition(":")[2]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address))
        writer.write(b"one")
        while not heard:
            await asyncio.sleep(0.01)
        await mesh.cut("a", "b")
        writer.write(b"two")
        answers[0].write(b"still here")
        assert await asyncio.wait_for(reader.read(100), 5) == b"still here"
        await asyncio.sleep(0.3)
        await mesh.heal()
        assert await asyncio.wait_for(reader.read(100), 5) == b""
        assert heard == [b"one"]
        writer.close()
        await writer.wait_closed()
    finally:
        mesh.stop()
        server.close()
        await server.wait_closed()
