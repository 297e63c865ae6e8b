"""The exam of settings is passed, has a case of every kind of outcome, and notices a mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.consumer.state import creation
from jetcluster.model import consumer_rules, dead_letters, link_rules, retention_guard, stream_rules, subjects
from jetcluster.model.stream import StreamConfig
from tests.sim.cluster import settings
from tests.sim.cluster.exam_rig import examined
from tests.sim.cluster.workloads import setting_exam

pytestmark = pytest.mark.sim

PARTS = ("_streams", "_updates", "_consumers", "_consumer_updates")
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is asked, and not a part that is drawn."""
    monkeypatch.setattr(setting_exam, "SHARE", 1.0)


def test_cases_are_of_every_kind_and_none_is_there_twice() -> None:
    for kind in ("streams", "updates", "consumers", "consumer_updates"):
        some = settings.cases(kind)
        assert any(case.refused for case in some) and any(case.becomes for case in some)
        assert not any(case.refused and case.becomes for case in some)
        assert len({str((case.of, case.on, case.given, case.pedantic)) for case in some}) == len(some)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "small"), [("three", False), ("three", True), ("five", True), ("three and a plain one", False)]
)
def test_each_part_is_passed(monkeypatch: pytest.MonkeyPatch, layout: str, small: bool) -> None:
    result = examined(monkeypatch, "exam-settings", *PARTS, layout=layout, small=small)
    assert result.failure == ""
    assert result.counts["exam-settings: examined"] == len(PARTS)


def _wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_rules, "_narrower", lambda config, upstream: False)


def _longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamConfig, "_default_window", lambda config, limits: 120 * 10**9)


def _unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_rules, "_check_fixed", lambda old, new: None)


def _unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_guard, "_check_bounds", lambda guard, config: None)


def _shapeless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_rules, "one_within_another", lambda subjects: False)


def _circular(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "check_cycle", lambda wish, config, stream: None)


def _unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_rules, "_stream_limit", lambda stream, key: 0)


def _changing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_FIXED", ())


def _blind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "overlap", lambda a, b: False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part", "plant", "noticed"),
    [
        ("_streams", _wider, "exam-settings, streams: a stream"),
        ("_streams", _longer, "exam-settings, streams: a stream"),
        ("_streams", _unguarded, "retention_guard"),
        ("_streams", _blind, "not refused, not"),
        ("_updates", _unsealed, "exam-settings, updates: an update"),
        ("_consumers", _shapeless, "10138"),
        ("_consumers", _circular, "dead_letter subject must not be one"),
        ("_consumers", _unlimited, "max_ack_pending"),
        ("_consumer_updates", _changing, "can not be updated"),
    ],
)
def test_a_mistake_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str, plant: Plant, noticed: str) -> None:
    plant(monkeypatch)
    assert noticed in examined(monkeypatch, "exam-settings", part).failure
