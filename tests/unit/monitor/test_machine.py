"""A worker answers for all workers of its machine; the others are asked over the mesh."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.config.options import WorkerOptions
from jetcluster.mesh.api import MeshError
from jetcluster.model.machines import tags_of
from jetcluster.monitor.machine import MachinePages, WorkerAbsentError
from jetcluster.monitor.source import Health, QueryError

Fleet = dict[str, MachinePages]


class Mesh:
    def __init__(self, fleet: Fleet, name: str, tags: list[str], peers: dict[str, list[str]]) -> None:
        self._fleet, self._name = fleet, name
        self.me = SimpleNamespace(tags=tags)
        self.peers = {peer: SimpleNamespace(tags=tags) for peer, tags in peers.items() if peer != name}

    async def call(self, peer: str, method: str, payload: bytes, timeout: float) -> bytes:
        if peer not in self._fleet:
            raise MeshError("timed out")
        return await self._fleet[peer].serve(self._name, payload)


class Source:
    def __init__(self, index: int) -> None:
        self._index = index

    def in_steps(self, name: str, query: dict[str, str]) -> Any:
        if "bad" in query:
            raise QueryError("bad")
        yield
        return {"server_name": f"w{self._index}", "connections": 10 + self._index, "asked": dict(query)}

    async def run(self, asker: str, steps: Any) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            await asyncio.sleep(0)

    async def healthz(self, query: dict[str, str]) -> Health:
        return Health(200, {"status": "ok"})

    async def scrape(self, query: dict[str, str]) -> bytes:
        return b"# TYPE a gauge\na %d\n" % self._index


def fleet(running: tuple[int, ...] = (0, 1)) -> Fleet:
    found: Fleet = {}
    peers = {"w0": tags_of("m", 0), "w1": tags_of("m", 1), "other": tags_of("other", 1), "plain": []}
    for index in running:
        name = f"w{index}"
        node: Any = SimpleNamespace(jetstream=SimpleNamespace(mesh=Mesh(found, name, peers[name], peers)))
        source: Any = Source(index)
        place = WorkerOptions(index, 2, "m", (), "", {})
        found[name] = MachinePages(node, place, source, source)
    found["other"] = MachinePages(
        SimpleNamespace(jetstream=SimpleNamespace(mesh=Mesh(found, "other", peers["other"], peers))),  # type: ignore[arg-type]
        WorkerOptions(1, 2, "other", (), "", {}), Source(9), Source(9),  # type: ignore[arg-type]
    )  # fmt: skip
    return found


@pytest.mark.parametrize("asked", ["w0", "w1"])
async def test_any_worker_answers_for_the_machine(asked: str) -> None:
    pages = fleet()[asked]
    page = await pages.page("varz", {})
    assert (page["server_name"], page["connections"]) == ("w0", 21)
    assert [(row["worker"], row["connections"]) for row in page["workers"]] == [(0, 10), (1, 11)]
    assert json.loads(await pages.render({"a": 1})) == {"a": 1}
    assert (await pages.health({})).status == 200
    assert b'a{worker="0"} 0' in await pages.metrics({})


async def test_one_worker_is_asked_alone() -> None:
    pages = fleet()["w0"]
    page = json.loads(await pages.of_worker("varz", {"worker": "1", "limit": "3"}))
    assert (page["connections"], page["asked"]) == (11, {"limit": "3"})
    for wrong in ("2", "x", "-1", ""):
        with pytest.raises(QueryError, match="worker must be a number below 2"):
            await pages.of_worker("varz", {"worker": wrong})


async def test_a_worker_that_is_away_is_named() -> None:
    pages = fleet(running=(0,))["w0"]
    page = await pages.page("varz", {})
    assert (page["connections"], page["missing_workers"]) == (10, [1])
    assert (await pages.health({})).body == {"status": "unavailable", "error": "worker 1: does not answer"}
    with pytest.raises(WorkerAbsentError, match="worker 1: timed out"):
        await pages.of_worker("varz", {"worker": "1"})


async def test_a_bad_query_is_refused() -> None:
    with pytest.raises(QueryError):
        await fleet()["w0"].page("varz", {"bad": "1"})


async def test_other_machines_get_no_pages() -> None:
    found = fleet()
    with pytest.raises(MeshError, match="no worker of this machine"):
        await found["w0"].serve("other", b'["varz", {}]')
    with pytest.raises(MeshError, match="no worker of this machine"):
        await found["w0"].serve("plain", b'["varz", {}]')
