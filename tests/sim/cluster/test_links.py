"""The exam of links is passed, and notices a mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.mirror import stall
from jetcluster.mirror.link import UpstreamLink
from jetcluster.mirror.upstream import Upstream
from tests.sim.cluster.exam_rig import examined

pytestmark = [pytest.mark.sim, pytest.mark.thorough]

PARTS = ("_told", "_ended", "_stalled")
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(
    ("layout", "small"), [("three", False), ("three", True), ("five", True), ("three and a plain one", False)]
)
def test_each_part_is_passed(monkeypatch: pytest.MonkeyPatch, layout: str, small: bool, seed: int) -> None:
    result = examined(monkeypatch, "exam-links", *PARTS, layout=layout, small=small, seed=seed)
    assert result.failure == ""
    assert result.counts["exam-links: examined"] == len(PARTS)


def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upstream, "delete_subject", lambda upstream, consumer: b"nobody")
    monkeypatch.setattr("jetcluster.mirror.upstream.INACTIVE_NS", 10**12)


def _for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "STALLED", None)


def _unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = UpstreamLink.info
    monkeypatch.setattr(UpstreamLink, "info", lambda link: {**usual(link), "filter_subject": "linked.b"})


@pytest.mark.parametrize(
    ("part", "plant", "noticed"),
    [
        ("_ended", _kept, "exam-links, ended: exam-links: not after"),
        ("_stalled", _for_ever, "exam-links, stalled: exam-links: not after"),
        ("_told", _unfiltered, "exam-links, told: the link"),
    ],
)
def test_a_mistake_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str, plant: Plant, noticed: str) -> None:
    plant(monkeypatch)
    assert noticed in examined(monkeypatch, "exam-links", part).failure
