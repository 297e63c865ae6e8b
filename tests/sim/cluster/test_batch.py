"""Seeds that are summed up and recorded: with the commit that ran them, and which of them failed."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests.sim.cluster import batch
from tests.sim.cluster.batch import Outcome, Totals

BEFORE = "seeds = 10\nfailed = 1\nhours = 1.50\ncpu_seconds = 20\nlast = 2026-11-01\n"


def ran(*seeds: int, failing: int) -> Totals:
    totals = Totals()
    for seed in seeds:
        totals.add(Outcome(seed, "it fails" if seed == failing else "", "", 3_600.0, 2.0))
    return totals


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "totals.toml"
    path.write_text(BEFORE)
    monkeypatch.setattr(batch, "TOTALS", path)
    return path


def test_each_commit_has_its_seeds_and_those_of_them_that_failed(table: Path) -> None:
    batch.record(ran(1, 2, failing=2), "aaaaaaaa")
    batch.record(ran(3, failing=0), "bbbbbbbb")
    batch.record(ran(4, 5, failing=5), "aaaaaaaa")
    row = tomllib.loads(table.read_text())
    today = datetime.now(UTC).date()
    assert row.pop("commits") == {
        "bbbbbbbb": {"date": today, "seeds": 1, "failures": []},
        "aaaaaaaa": {"date": today, "seeds": 4, "failures": [2, 5]},
    }
    assert row == {"seeds": 15, "failed": 3, "hours": 6.5, "cpu_seconds": 30, "last": today}


def test_the_table_says_which_commit_this_is(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"rev-parse": "0123abcd", "status": ""}
    monkeypatch.setattr(batch, "git", lambda root, word, *rest: said[word])
    monkeypatch.setattr(batch, "TOTALS", Path(batch.__file__).with_name("totals.toml"))
    names = []
    for changed in ("", "M tests/sim/cluster/totals.toml", "M jetcluster/clock.py\n M tests/sim/cluster/totals.toml"):
        said["status"] = changed
        names.append(batch.commit_here())
    said["rev-parse"] = ""
    assert [*names, batch.commit_here()] == ["0123abcd", "0123abcd", "0123abcd+", "unknown+"]


def test_what_is_recorded_is_read_again() -> None:
    with batch.TOTALS.open("rb") as file:
        row = tomllib.load(file)
    assert batch.recorded().seeds == row["seeds"] >= sum(one["seeds"] for one in row.get("commits", {}).values())
    assert isinstance(row["last"], date)
