"""An answer to STREAM.INFO with very many subjects is made and read in steps, at the leader and where the client is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.budget import LoopBudget, Steps
from jetcluster.clock import SystemClock
from jetcluster.cluster.requests import LeaderRequests
from jetcluster.model.codec import LONG_LIST_ITEMS, dumps, encoding
from jetcluster.replica.leaders import LeaderTable
from testkit.sim.shared import MeshNetwork, VirtualLoop, virtual_time
from testkit.twins.log import ListLog
from tests.unit.api.fake_cluster import Client

SUBJECTS = {f"s.\u00e9{number}": number for number in range(5 * LONG_LIST_ITEMS)}


class Counted:
    """Steps of each job that runs on a budget."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        run = LoopBudget.run

        def counted(budget: LoopBudget, key: Any, steps: Any) -> Any:
            return run(budget, key, self._count(steps))

        monkeypatch.setattr(LoopBudget, "run", counted)

    def _count(self, steps: Steps[Any]) -> Steps[Any]:
        self.steps.append(0)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return stop.value
            self.steps[-1] += 1
            yield


@pytest.mark.parametrize("value", [{}, {"a": [1, 2.5, None, True, {"b": "\u00e9\n"}]}, [], "x", {"s": SUBJECTS}])
def test_encoding_is_what_dumps_makes(value: Any) -> None:
    steps = encoding(value)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            assert stop.value == dumps(value)
            break
        count += 1
    assert count == 1 or (isinstance(value, dict) and "s" in value and count > 20)


@pytest.mark.parametrize(("subjects", "long"), [(SUBJECTS, True), ({"s": 1}, False)])
async def test_client_gets_many_subjects_in_steps(
    monkeypatch: pytest.MonkeyPatch, subjects: dict[str, int], *, long: bool
) -> None:
    client = Client()
    await client.create("S")
    ask = client.cluster.stream_request

    async def asked(*args: Any) -> dict[str, Any]:
        answer = await ask(*args)
        return {**answer, "state": {**answer["state"], "subjects": subjects}}

    monkeypatch.setattr(client.cluster, "stream_request", asked)
    counted = Counted(monkeypatch)
    found = await client.ask("STREAM.INFO.S", {"subjects_filter": ">"})
    assert found["state"]["subjects"] == subjects
    assert found["type"] == "io.nats.jetstream.api.v1.stream_info_response"
    assert bool(counted.steps) == long
    assert not long or counted.steps[0] > 20


@virtual_time
async def test_leader_sends_many_subjects_in_steps() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        counted = Counted(monkeypatch)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        mesh = MeshNetwork(loop).mesh("A", "A" * 8)
        leaders = LeaderTable(mesh, lambda gid: None, lambda gid, term: None)
        answers: list[dict[str, Any]] = [{"state": {"subjects": SUBJECTS}}, {"state": {"subjects": {"s": 1}}}]

        async def handle(gid: int, kind: str, body: dict[str, Any]) -> dict[str, Any]:
            number: int = body["number"]
            return answers[number]

        budget = LoopBudget(SystemClock(), loop)
        requests = LeaderRequests("test", mesh, leaders, loop, handle, ListLog(), budget)
        mesh.start_now()
        leaders.lead(7, 1)
        for number, answer in enumerate(answers):
            found = await requests.ask(7, "info", {"number": number})
            assert json.dumps(found) == json.dumps(answer)
        assert len(counted.steps) == 2, "it is encoded where the leader is, and decoded where the client is"
        assert min(counted.steps) > 20
