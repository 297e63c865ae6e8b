"""Cost against size: the page, its plots, and a server that grows until its time is over."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import sizes
from bench.axes import AXES, Axis
from bench.contender import LAZY, OURS
from bench.plot import plots
from bench.sizes import Point, Points
from bench.stand import Stand
from testkit.client import ClientError

UNITS = {"publish": "µs of CPU", "Direct Get": "µs of CPU", "restart": "s", "memory": "MB"}


class FakeCluster:
    def __init__(self, n: int, server: str, *, root: Path, config: str) -> None:
        self.nodes: list[object] = [None, None]

    async def __aenter__(self) -> FakeCluster:
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture
def points() -> Points:
    found = Points(None, "2026-11-29", {"peer": "nats-server 2.15.3"})
    for server, factor in ((LAZY, 2.0), (OURS, 1.0)):
        for size in (10_000, 1000):
            found.add(Point("messages", server.name, size, dict.fromkeys(UNITS, factor * size / 1000)))
    return found


def test_a_page_has_a_plot_and_a_table_for_each_axis_measured(points: Points) -> None:
    points.notes["messages lazy"] = "ended after 10,000 and 91 s"
    page = sizes.page(points)
    rows = [line for line in page.splitlines() if line.startswith("| 1")]
    assert rows == [
        "| 1,000 | nats-server | 2 | 2 | 2 | 2 |", "| 1,000 | jetcluster | 1 | 1 | 1 | 1 |",
        "| 10,000 | nats-server | 20.0 | 20.0 | 20.0 | 20.0 |", "| 10,000 | jetcluster | 10.0 | 10.0 | 10.0 | 10.0 |",
    ]  # fmt: skip
    assert "(messages.svg)" in page and "## Subjects" not in page
    assert "`python -m bench sizes --axis messages --sizes 1000 10000`" in page
    assert "nats-server: ended after 10,000 and 91 s." in page


def test_a_later_figure_takes_the_place_of_an_earlier_one(points: Points) -> None:
    points.add(Point("messages", OURS.name, 1000, {"publish": 7.0}))
    assert points.line("messages", OURS.name, "publish") == [(1000, 7.0), (10_000, 10.0)]
    assert points.line("messages", OURS.name, "restart") == [(10_000, 10.0)]


def test_plots_are_small_and_the_same_each_time(points: Points) -> None:
    pytest.importorskip("matplotlib")
    text = sizes.svg(AXES[0], points)
    root = ElementTree.fromstring(text)
    words = {element.text.strip() for element in root.iter() if element.tag.endswith("text") and element.text}
    assert {"publish, µs of CPU", "restart, s", "jetcluster", "nats-server"} <= words
    assert text == sizes.svg(AXES[0], points) and len(text) < 40_000
    assert not re.search(r"fill: *(#000|black)", text) and "dc:date" not in text
    assert "<svg" in plots("n", {"one": ("s", {"a": [(1, 1)]})})


async def grow(stand: Stand, before: int, size: int) -> dict[str, float]:
    if size == 40:
        raise ClientError("too many")
    return {"figure": float(size - before)}


async def test_growth_ends_with_a_failure_or_with_the_time_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "ProcessCluster", FakeCluster)
    path = tmp_path / "sizes.json"
    found = Points(path)
    axis = Axis("things", "", 2, (), {"figure": "s"}, grow)
    await sizes.measure(axis, (10, 30, 40, 50), OURS, 1.0, tmp_path / "run", found)
    assert found.line("things", OURS.name, "figure") == [(10, 10.0), (30, 20.0)]
    assert found.notes == {"things jetcluster": "failed after 30: ClientError too many"}
    axis = Axis("things", "", 2, (), {"figure": "s"}, grow, budget=-1.0)
    await sizes.measure(axis, (10,), LAZY, 1.0, tmp_path / "run", found)
    assert found.notes["things lazy"] == "ended after 0 and 0 s" and Points.read(path).points == found.points
