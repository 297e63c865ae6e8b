"""Losses that a sync_interval permits, and those that it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.checkers import judge
from chaos.history import History
from chaos.local_cluster import LocalCluster
from chaos.relaxed import LOSS, relax, relaxed
from chaos.runner import run
from chaos.scenarios import SCENARIOS
from jetcluster.pipeline.checkers.event import Event, load
from testkit import shim
from tests.chaos.test_checkers import Script, drop

pytestmark = [pytest.mark.long, pytest.mark.thorough]

SEED = 1
"""The power cut of this seed comes some seconds after the last flush, which syncs the journal."""


def cut_at(moment: float) -> list[Event]:
    """20 acks, one every second from 1 s on; the power goes at `moment`."""
    script = Script()
    for number in range(20):
        script.now = float(number)
        script.write("queue", "q", f"m{number}", took=1.0)
    cut = Event("ok", 900, "disk", "fault", "machine", subject=LOSS, t0=moment, t1=moment + 1)
    return [*script.history.events, cut]


def lost(events: list[Event], *numbers: int) -> list[Event]:
    for number in numbers:
        events = drop(f="stored", msg_id=f"m{number}")(events)
    return events


def test_the_last_second_may_be_lost() -> None:
    verdict = judge(relaxed(lost(cut_at(20.5), 18, 19), 1.0))
    assert (verdict.findings, verdict.unknown) == ([], 2)


def test_what_is_older_is_a_loss() -> None:
    found = judge(relaxed(lost(cut_at(20.5), 16, 17, 18, 19), 1.0)).findings
    assert [finding.kind for finding in found] == ["lost"] * 6
    assert judge(lost(cut_at(20.5), 19)).findings, "without the option nothing is excused"


def test_the_history_says_so_on_disk_too(tmp_path: Path) -> None:
    history = History(tmp_path / "h.jsonl")
    invoked = history.invoke("queue", "publish", "c", msg_id="m")
    history.end(invoked, "ok", seq=1)
    history.note("disk", "fault", "machine", subject=LOSS)
    relax(history, 0.0)
    assert history.events[1].type == "ok"
    relax(history, 1.0)
    history.note("queue", "leader", replica="n1")
    history.close()
    kept = load((tmp_path / "h.jsonl").read_text().splitlines())
    assert kept == history.events
    assert [event.type for event in kept] == ["invoke", "info", "ok", "ok"]


@pytest.mark.cluster
@pytest.mark.timeout(240)
async def test_a_longer_interval_is_noticed() -> None:
    """The servers sync every minute, the run excuses half a second."""
    if why := shim.why_not():
        pytest.skip(f"power cuts: {why}")
    config = 'jetstream { sync_interval: "60s" }\n'
    async with LocalCluster(3, config=config, needs=frozenset({"shim"})) as cluster:
        result = await run(SCENARIOS["power-relaxed"], cluster, SEED, 1.0, None)
    assert result.faults == {"power-cut-flushed": 1}
    assert result.verdict.lost > 0
