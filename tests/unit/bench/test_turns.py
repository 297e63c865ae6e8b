"""Rounds in turns: their order, what a second run still measures, and failures that do not end it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench import turns
from bench.contender import ALL, ALWAYS, LAZY, OURS, Contender
from bench.row import Group, Measured, Row
from bench.samples import Samples
from bench.stand import Stand
from testkit.client import ClientError


class FakeCluster:
    """A cluster without processes; `began` tells which ones there were."""

    began: list[str]

    def __init__(self, n: int, server: str, *, root: Path, config: str = "", monitor: bool = False) -> None:
        self.nodes: list[object] = []
        self._name = f"{server}{' always' if config else ''}"

    async def __aenter__(self) -> FakeCluster:
        self.began.append(self._name)
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    FakeCluster.began = []
    monkeypatch.setattr(turns, "ProcessCluster", FakeCluster)
    monkeypatch.setattr(turns, "fdatasync_p50", lambda _folder: 0.1)

    async def settle(_stand: Stand) -> None: ...

    monkeypatch.setattr(Stand, "settle", settle)
    return FakeCluster.began


class Bench:
    """Two groups: one with a durable row, one without; `fails` names rows that do."""

    def __init__(self, folder: Path) -> None:
        self.fails: set[str] = set()
        self.said: list[str] = []
        self.folder = folder
        self.groups = [Group("durable", nodes=1), Group("other", nodes=1)]
        self.groups[0].measure(Row("publish", "msgs/s", durable=True), Row("p99", "ms"))(self._two)
        self.groups[0].measure(Row("hang", "msgs/s"), within=0.01)(self._hang)
        self.groups[1].measure(Row("read", "msgs/s"))(self._one)

    async def _one(self, _stand: Stand) -> Measured:
        if "read" in self.fails:
            raise ClientError("no answer\nand more")
        return Measured(1.0, 2.0, 0.5)

    async def _two(self, stand: Stand) -> tuple[Measured, ...]:
        return Measured(stand.seconds), Measured(4.0)

    async def _hang(self, _stand: Stand) -> Measured:
        if "hang" in self.fails:
            await asyncio.sleep(10)
        return Measured(5.0)

    async def run(self, samples: Samples, rounds: int, contenders: tuple[Contender, ...] = ALL) -> None:
        chosen = [(group, group.measurements) for group in self.groups]
        await turns.Turns(samples, chosen, contenders, self.folder, self.said.append).run(rounds)


async def test_contenders_take_turns_in_changing_order(tmp_path: Path, fake: list[str]) -> None:
    samples = Samples(None, 1.5)
    await Bench(tmp_path).run(samples, 2)
    first = ["nats-server", "nats-server always", "jetcluster", "nats-server", "jetcluster"]
    assert fake == [*first, "jetcluster", "nats-server always", "nats-server", "jetcluster", "nats-server"]
    assert samples.values(ALWAYS.name, "publish") == [1.5, 1.5]
    assert samples.values(ALWAYS.name, "p99") == samples.values(ALWAYS.name, "read") == []
    assert (samples.values(OURS.name, "p99"), samples.cpu(LAZY.name, "read"), samples.rounds) == ([4.0] * 2, 2.0, 2)


async def test_a_cut_run_goes_on_where_it_was(tmp_path: Path, fake: list[str]) -> None:
    path = tmp_path / "samples.json"
    bench = Bench(tmp_path)
    bench.fails = {"hang", "read"}
    await bench.run(Samples(path, 1.5), 1)
    assert any(line.endswith("jetcluster: read: ClientError: no answer") for line in bench.said)
    assert any("hang: TimeoutError" in line for line in bench.said)
    bench.fails.clear()
    fake.clear()
    samples = Samples.read(path)
    assert samples.errors(LAZY.name, "read") == ["ClientError: no answer"]
    await bench.run(samples, 1)
    assert fake == ["nats-server", "jetcluster"] * 2, "only what failed is measured again"
    again = Samples.read(path)
    assert again.samples == samples.samples and len(again.samples) == 2 * 4 + 1
    assert not any(one.error for one in again.samples)
    fake.clear()
    await bench.run(again, 1)
    assert fake == [] and len(again.load) == len(json.loads(path.read_text())["fsync_ms"]) == 2


async def test_a_cluster_that_does_not_start_is_a_failure_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def settle(_stand: Stand) -> None:
        raise ClientError("no meta leader")

    monkeypatch.setattr(Stand, "settle", settle)
    samples = Samples(None, 1.0)
    await Bench(tmp_path).run(samples, 1, (OURS,))
    assert {one.row for one in samples.samples if one.error == "ClientError: no meta leader"} == {
        "publish", "p99", "hang", "read",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "rows"), [("HANG", ["hang"]), ("p9", ["publish"]), ("durable", ["publish", "hang"]), ("x", [])]
)
def test_rows_are_chosen_by_their_name_or_that_of_their_group(tmp_path: Path, pattern: str, rows: list[str]) -> None:
    group = Bench(tmp_path).groups[0]
    assert [one.rows[0].name for one in group.matching(pattern)] == rows
