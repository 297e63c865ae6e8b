"""`python -m bench scaling`: short runs on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.scaling import costs, machines, tables, trials
from bench.scaling.figures import Figures
from bench.scaling.model import PLACES
from testkit.client import ClientError
from testkit.harness import ProcessCluster

pytestmark = pytest.mark.cluster


@pytest.mark.ours("read_info, by which it says who answers, is not nats-server's")
async def test_a_cluster_that_runs_somewhere(shared: ProcessCluster) -> None:
    found = await machines.run(shared.urls, clients=2, replicas=3, messages=3000, window=64, seconds=0.3)
    for node in shared.nodes:
        assert found.alone[node.url].total > 0
        assert found.together.rates[node.url] > 0
        [(who, count)] = found.answered[node.url].items()
        assert who.partition(" ")[0] == node.name and count == machines.SAMPLE
    assert f"All at once {found.together.total:,.0f} reads/s" in found.table()
    async with await shared[0].connect() as client:
        assert machines.STREAM not in ((await client.api("STREAM.NAMES", {}))["streams"] or [])


def test_a_client_that_cannot_connect_ends_the_load() -> None:
    with pytest.raises(ClientError, match="ConnectionRefused"):
        machines.load(["nats://127.0.0.1:1"], 2, 1, 0.1)


@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_costs_and_trials_make_both_pages(tmp_path: Path) -> None:
    found = Figures()
    await costs.measure(tmp_path / "costs", found, 1, 0.05)
    await trials.try_all(tmp_path / "trials", found, 1, 0.2, 0.2)
    assert {(one.what, one.place) for one in found.forms} == {(form, place) for form in costs.FORMS for place in PLACES}
    assert all(one.rate > 0 and one.asked > 0 for one in (*found.forms, *found.strengths))
    assert "| MSG.GET |" in tables.strengths(found, "trial")
    assert "## On the model" in tables.scaling(found, "trial")
    assert found.untried or {one.case for one in found.trials} >= {"1 server", "3 servers and a mirror"}
