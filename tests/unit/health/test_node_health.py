from __future__ import annotations

import pytest

from jetcluster.health.node_health import CALM_SECONDS, LOOP_WINDOW_SECONDS, Aspect, LoopWatch, NodeHealth, Trouble
from testkit.twins.time import ManualTime


class Rig:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.health = NodeHealth(self.time)
        self.told: list[tuple[str, bool]] = []
        self.reasons: dict[Aspect, str] = dict.fromkeys(Aspect, "")
        self.health.on_change(self._changed)
        for aspect in Aspect:
            self.health.watch(aspect, lambda aspect=aspect: self.reasons[aspect])  # type: ignore[misc]

    def _changed(self, trouble: Trouble, began: bool) -> None:
        self.told.append((trouble.text, began))

    def look(self, seconds: float = 0.0) -> None:
        self.time.advance(seconds)
        self.health.look()


def test_a_node_is_well_until_something_is_wrong() -> None:
    rig = Rig()
    rig.look()
    assert rig.health.well
    assert rig.health.may_vote
    assert rig.health.may_answer
    assert rig.health.reasons == []


@pytest.mark.parametrize("aspect", Aspect)
def test_the_table_of_verdicts(aspect: Aspect) -> None:
    rig = Rig()
    rig.reasons[aspect] = "broken"
    rig.look()
    assert not rig.health.well
    assert rig.health.may_vote is (aspect not in (Aspect.JOURNAL, Aspect.DELETED))
    assert rig.health.may_answer is (aspect not in (Aspect.JOURNAL, Aspect.DELETED, Aspect.STORE))
    assert rig.health.reasons == [f"{aspect.value}: broken"]


def test_beginning_and_end_are_reported_once_and_the_end_only_after_a_calm() -> None:
    rig = Rig()
    rig.reasons[Aspect.STORE] = "EIO"
    for _ in range(3):
        rig.look(0.1)
    assert rig.told == [("store: EIO", True)]
    rig.reasons[Aspect.STORE] = "ENOSPC"
    rig.look(0.1)
    assert rig.health.reasons == ["store: ENOSPC"]
    rig.reasons[Aspect.STORE] = ""
    rig.look(CALM_SECONDS / 2)
    assert not rig.health.well
    rig.reasons[Aspect.STORE] = "EIO"
    rig.look(CALM_SECONDS / 4)
    rig.reasons[Aspect.STORE] = ""
    rig.look(CALM_SECONDS * 0.9)
    assert not rig.health.well, "it was there again meanwhile"
    rig.look(CALM_SECONDS * 0.2)
    assert rig.health.well
    assert rig.told == [("store: EIO", True), ("store: EIO", False)]


def test_several_checks_of_one_aspect() -> None:
    rig = Rig()
    rig.health.watch(Aspect.STORE, lambda: "flushes hang")
    rig.look()
    assert rig.health.reasons == ["store: flushes hang"]


def test_the_clock_is_looked_at_without_being_asked_for() -> None:
    rig = Rig()
    for _ in range(5):
        rig.health.time.heard("b", rig.time.time_ns() - 7200 * 10**9, rig.time.time_ns() - 7200 * 10**9)
        rig.look(0.1)
    assert rig.health.reasons == ["clock: the wall clock is 7200.0 s ahead of the cluster's time"]


@pytest.mark.parametrize(("late", "ill"), [(0.0, False), (0.2, False), (0.3, True), (5.0, True)])
def test_it_stands_still_for_half_of_the_time(late: float, ill: bool) -> None:
    watch = LoopWatch()
    for _ in range(100):
        watch.beat(0.1, late)
    assert bool(watch.trouble) is ill


@pytest.mark.parametrize("late", [1.0, 10.0, 600.0])
def test_a_pause_that_is_over_does_not_count(late: float) -> None:
    watch = LoopWatch()
    watch.beat(0.1, late)
    assert not watch.trouble


def test_what_was_is_forgotten() -> None:
    watch = LoopWatch()
    for _ in range(20):
        watch.beat(0.1, 1.0)
    assert watch.trouble
    for _ in range(int(3 * LOOP_WINDOW_SECONDS / 0.1)):
        watch.beat(0.1, 0.0)
    assert not watch.trouble
