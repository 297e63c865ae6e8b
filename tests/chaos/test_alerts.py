"""`python -m chaos.alerts`: its tables fit the rules, and its judgement of an alert (the run itself: `make alerts`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.alerts import run
from chaos.alerts.cli import markdown
from chaos.alerts.dashboard import queries
from chaos.alerts.faults import FAULTS, Fault
from chaos.alerts.rules import FOLDER, RulesError, rules, scraping, shortened
from chaos.alerts.run import Outcome, Report


def test_each_alert_has_a_fault() -> None:
    assert sorted(fault.alert for fault in FAULTS) == sorted(rule["alert"] for rule in rules())


def test_short_rules_are_the_rules_but_for_their_times() -> None:
    text = (FOLDER / "alerts.yaml").read_text()
    short = [rule for group in yaml.safe_load(shortened(text))["groups"] for rule in group["rules"]]
    changed = set()
    for rule, shorter in zip(rules(), short, strict=True):
        assert {key for key in rule if rule[key] != shorter[key]} <= {"for", "expr"}
        assert ("for" in rule) == ("for" in shorter)
        if rule["expr"] != shorter["expr"]:
            changed.add(rule["alert"])
    assert "JetclusterReplicaLags" in changed and "JetclusterServerGone" not in changed


def test_a_rule_that_was_changed_is_not_shortened_by_an_old_table() -> None:
    text = "groups: [{rules: [{alert: A, expr: 'a > 60'}]}]"
    assert "a > 5" in shortened(text, {"A": (("> 60", "> 5"),)})
    with pytest.raises(RulesError, match="is not there once"):
        shortened(text, {"A": (("> 61", "> 5"),)})
    with pytest.raises(RulesError, match="no such alerts: B"):
        shortened(text, {"B": ()})


def test_the_configuration_scrapes_what_the_run_has() -> None:
    text = (FOLDER / "prometheus.yml").read_text()
    found = yaml.safe_load(scraping(text, {"jetcluster": ["a:1", "b:2"], "jetcluster-edge": ["e:3"]}))
    jobs = {job["job_name"]: job for job in found["scrape_configs"]}
    assert jobs["jetcluster"]["static_configs"] == [{"targets": ["a:1", "b:2"]}]
    assert jobs["jetcluster-edge"] == {"job_name": "jetcluster-edge", "static_configs": [{"targets": ["e:3"]}]}
    assert found["rule_files"] == ["alerts.yaml"]
    with pytest.raises(RulesError, match="jobs are"):
        scraping(text, {"jetcluster": ["a:1"]})


def test_queries_are_those_of_the_panels_without_variables(tmp_path: Path) -> None:
    assert len(queries()) > 30
    board = tmp_path / "board.json"
    expression = 'rate(a{instance=~"$instance"}[$__rate_interval])'
    board.write_text(json.dumps({"panels": [{"title": "row"}, {"title": "P", "targets": [{"expr": expression}]}]}))
    assert queries(board) == {"P: 1": 'rate(a{instance=~".*"}[15s])'}
    board.write_text(json.dumps({"panels": [{"title": "P", "targets": [{"expr": "$other"}]}]}))
    with pytest.raises(AssertionError, match="an unknown variable"):
        queries(board)


class Watch:
    """Prometheus, with an alert that begins to fire when the stage is struck and ends when it is healed."""

    def __init__(self, fires: bool = True, ends: bool = True, before: bool = False, other: bool = False) -> None:
        self.on = before
        self.beside = False
        self._fires, self._ends, self._other = fires, ends, other

    async def firing(self) -> dict[str, list[dict[str, str]]]:
        return {name: [{}] for name, on in (("A", self.on), ("B", self.beside)) if on}

    async def strike(self, _stage: Any) -> None:
        self.on = self._fires
        self.beside = True

    async def heal(self, _stage: Any) -> None:
        self.on = self.on and not self._ends
        self.beside = self._other


@pytest.mark.parametrize(
    ("watch", "finding"),
    [
        (Watch(), ""),
        (Watch(before=True), "it fires before its fault"),
        (Watch(fires=False), "it does not fire within 0 s"),
        (Watch(ends=False), "it fires 0 s after the end|A go on"),
        (Watch(other=True), "B go on"),
    ],
)
async def test_an_alert_is_quiet_fires_and_is_quiet(
    monkeypatch: pytest.MonkeyPatch, watch: Watch, finding: str
) -> None:
    monkeypatch.setattr(run, "POLL", 0.01)
    monkeypatch.setattr(run, "SETTLED", 0.05)
    stage: Any = None
    outcome = await run.attempt(stage, watch, Fault("A", "a", watch.strike, watch.heal, 0.3, 0.3))  # type: ignore[arg-type]
    assert outcome.finding in finding.split("|")
    report = Report([outcome], {"P: 1": 2, "Q: 1": 0})
    assert report.ok == (not finding)
    assert "1 of 2 queries" in markdown(report)
    if not finding:
        assert outcome.beside == {"B"} and outcome.fired is not None and outcome.quiet is not None


async def test_a_fault_that_cannot_be_made_is_a_finding() -> None:
    async def cannot(_stage: Any) -> None:
        raise TimeoutError("no")

    watch, stage = Watch(), None
    outcome: Outcome = await run.attempt(stage, watch, Fault("A", "a", cannot, watch.heal, 0.1, 0.1))  # type: ignore[arg-type]
    assert outcome.finding == "TimeoutError: no"
