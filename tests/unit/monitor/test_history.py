"""The main figures of the last day: taken every ten seconds, kept through restarts, answered in fewer points."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.budget import at_once
from jetcluster.health.history_file import PERIOD_SECONDS
from jetcluster.latency import Latency
from jetcluster.monitor import history
from jetcluster.monitor.history import COLUMNS, FILE_NAME, History, Sampler, beside
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import QueryError
from jetcluster.monitor.system.requests import MAX_BESIDE, MAX_LATER
from jetcluster.server.server import Server
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime
from tests.unit.monitor import fake_node
from tests.unit.monitor.system import Asker, services


class Rig:
    """A node with a clock that tests move, whose threads are the test's own."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.clock = ManualTime()
        self.engine = fake_node.engine(self.clock)
        raft = self.engine.network.raft
        raft.journal.sync_latency, raft.commit_latency = Latency(), Latency()
        self.node: Any = fake_node.node(server, self.clock, self.engine)
        self.node.jetstream.store_dir = str(folder)
        self.node.options.console = True
        self.node.server = SimpleNamespace(
            name="n1", clients=server.clients, accounts=server.accounts, state=server.state, timers=self.clock,
            budget=server.budget, info=server.info, server_id=server.server_id, start_ns=server.start_ns,
        )  # fmt: skip
        self.history = self.made()

    def made(self) -> History:
        async def here(work: Callable[[], object]) -> object:
            return work()

        return History(self.node, here)

    async def run(self, periods: int, history: History | None = None) -> None:
        history = history or self.history
        history.start()
        for _ in range(periods):
            self.clock.advance(PERIOD_SECONDS)
            for _ in range(20):
                await asyncio.sleep(0)
        history.stop()

    async def answer(self, seconds: int = 60, points: int = 100, *columns: str) -> dict[str, Any]:
        return await self.history.answer("a", seconds, points, list(columns))


@pytest.fixture
def rig(server: Server, tmp_path: Path) -> Rig:
    return Rig(server, tmp_path)


async def test_a_point_each_ten_seconds(rig: Rig) -> None:
    rig.engine.network.raft.journal.free = 77
    await rig.run(3)
    found = await rig.answer(60, 100, "disk_free", "streams_led", "in_msgs")
    assert (found["step"], found["points"], len(found["times"])) == (10, 6, 6)
    assert found["columns"]["disk_free"]["mean"] == [None, None, None, 77.0, 77.0, 77.0]
    assert found["columns"]["streams_led"]["max"][-1] == 1.0
    assert found["columns"]["in_msgs"]["mean"][3:] == [None, 0.0, 0.0], "the first point of a start has no rates"
    assert set((await rig.answer())["columns"]) == set(COLUMNS)


async def test_a_restart_is_a_gap(rig: Rig) -> None:
    await rig.run(2)
    rig.clock.advance(2 * PERIOD_SECONDS)
    await rig.run(1, rig.made())
    found = await rig.answer(60, 100, "connections")
    assert found["columns"]["connections"]["mean"] == [None, 0.0, 0.0, None, None, 0.0]


async def test_fewer_points_have_mean_and_maximum(rig: Rig) -> None:
    rig.clock.advance(3600 - rig.clock.time_ns() // 10**9 % 3600)  # steps begin with the hour
    rig.history.start()
    for free in range(6):
        rig.engine.network.raft.journal.free = free
        await rig.run(1)
    found = await rig.answer(60, 2, "disk_free")
    assert (found["step"], found["points"]) == (30, 2)
    assert found["columns"]["disk_free"] == {"mean": [1.0, 4.0], "max": [2.0, 5.0]}


def test_the_times_of_fsync_are_those_of_the_period(rig: Rig) -> None:
    sampler, latency = Sampler(rig.node), rig.engine.network.raft.journal.sync_latency
    latency.observe(0.5)
    at_once(sampler.take())
    for seconds in (0.001, 0.003):
        latency.observe(seconds)
    found = at_once(sampler.take())
    assert found["fsync_mean"] == pytest.approx(0.002)
    assert found["fsync_max"] == 0.005, "the bound of the bucket"
    assert math.isnan(at_once(sampler.take())["fsync_mean"])


def test_rates_are_per_second_and_never_negative(rig: Rig) -> None:
    sampler, counters = Sampler(rig.node), rig.node.jetstream.apis["$G"].counters
    at_once(sampler.take())
    counters.total += 50
    rig.clock.advance(10)
    assert at_once(sampler.take())["api_requests"] == 5.0
    counters.total = 0
    rig.clock.advance(10)
    assert at_once(sampler.take())["api_requests"] == 0.0


async def test_a_disk_that_hangs_holds_nothing_up(rig: Rig) -> None:
    over = asyncio.Event()

    async def hangs(work: Callable[[], object]) -> object:
        await over.wait()
        return work()

    await rig.run(3, History(rig.node, hangs))
    assert not (Path(rig.node.jetstream.store_dir) / FILE_NAME).exists()


async def test_a_disk_that_hangs_is_asked_once_and_the_server_answers(
    rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "READ_SECONDS", 0.4)
    over, reads = asyncio.Event(), []

    async def hangs(work: Callable[[], object]) -> object:
        reads.append(work)
        await over.wait()
        return b""

    node = fake_node.node(server, rig.clock, rig.engine)
    node.options.console, node.jetstream.store_dir = True, rig.node.jetstream.store_dir
    node.monitoring.parts[History] = History(node, hangs)
    own, asker = services(node), Asker(server)
    try:
        for _ in range(MAX_BESIDE + MAX_LATER + 3):
            asker.bus.ask(b"$SYS.REQ.SERVER.PING.HISTORY", b"{}", b"nobody")
        assert "id" in await asker.ask("$SYS.REQ.SERVER.PING.IDZ")
        assert len(reads) == 1
        assert own.dropped == 3
        with pytest.raises(QueryError, match="the disk does not answer"):
            await NodeSource(node).history("http", {})
        assert len(reads) == 1
        over.set()
        await asyncio.sleep(0)
        assert (await NodeSource(node).history("http", {"columns": "cpu"}))["points"]
    finally:
        await own.stop()


async def test_a_disk_that_fails_is_said_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ListLog()
    monkeypatch.setattr(history, "log", log)
    rig.node.jetstream.store_dir = "/nowhere/at/all"
    await rig.run(3, rig.made())
    assert log.events("warning") == ["the history for the console cannot be written"]
    assert (await rig.answer(60, 3, "cpu"))["columns"]["cpu"]["mean"] == [None] * 3


async def test_a_file_taken_away_is_made_again(rig: Rig) -> None:
    await rig.run(1)
    (Path(rig.node.jetstream.store_dir) / FILE_NAME).unlink()
    await rig.run(2)
    assert (Path(rig.node.jetstream.store_dir) / FILE_NAME).stat().st_size > 1_000_000


async def test_work_beside_the_loop() -> None:
    assert await beside(lambda: 7) == 7
    with pytest.raises(OSError, match="torn"):
        await beside(lambda: (_ for _ in ()).throw(OSError("torn")))
    over, names = threading.Event(), []

    def hangs() -> None:
        names.append((threading.current_thread().daemon, threading.current_thread().name))
        over.wait()

    task = asyncio.ensure_future(beside(hangs))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    over.set()
    assert names == [(True, "history")], "the end of a process waits for no such thread"


async def test_bad_queries(rig: Rig) -> None:
    with pytest.raises(QueryError, match="there is no column x"):
        await rig.answer(60, 10, "x")
    await rig.run(1)
    found = await rig.answer(10**9, 10**9, "cpu")
    assert found["points"] <= 2000
    assert found["seconds"] <= 24 * 3600 + found["step"]


async def test_over_the_system_account_and_http(rig: Rig, server: Server) -> None:
    own, asker = services(fake_node.node(server, rig.clock, rig.engine)), Asker(server)
    try:
        refused = await asker.ask("$SYS.REQ.SERVER.PING.HISTORY")
        assert refused["error"]["description"].startswith("no history is kept here")
    finally:
        await own.stop()
    await rig.run(1)
    rig.node.monitoring.parts.clear()
    rig.node.server = server
    own = services(rig.node)
    try:
        answer = await asker.ask("$SYS.REQ.SERVER.PING.HISTORY", seconds=30, points=3, columns=["cpu"])
        assert set(answer["data"]["columns"]) == {"cpu"}
    finally:
        await own.stop()
    page = await NodeSource(rig.node).history("http", {"seconds": "30", "columns": "cpu,memory"})
    assert list(page["columns"]) == ["cpu", "memory"]
    json.dumps(page, allow_nan=False)
