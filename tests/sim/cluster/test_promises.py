"""Every workload promises something that a judge can find broken; the table of promises is right."""

from __future__ import annotations

from pathlib import Path

from tests.sim.cluster import promises
from tests.sim.cluster.test_workloads import PLANTED
from tests.sim.cluster.workload import found

ROOT = Path(__file__).parents[3]


def test_every_workload_promises_something_and_each_of_its_judges_can_fail() -> None:
    for name, workload in found().items():
        assert workload.promises, name
        assert workload.judges, name
        assert PLANTED.keys() >= set(workload.judges), name


def test_the_documentation_shows_the_table_of_promises() -> None:
    for page, exams in (("promises.md", False), ("exams.md", True)):
        text = (ROOT / "docs" / "testing" / page).read_text()
        assert "\n".join(promises.table(exams=exams)) in text, "run python -m tests.sim.cluster.promises"


def test_workloads_that_are_kin_have_streams_of_their_own() -> None:
    """A seed may draw both: one would find the other's messages, or another configuration."""
    classes = found().values()
    kin = [(one, other) for one in classes for other in classes if one is not other and issubclass(other, one)]
    same = [(a.name, b.name) for a, b in kin if getattr(a, "stream", "") == getattr(b, "stream", "")]
    assert kin
    assert same == []
