"""One timer and one end-of-turn hook for many owners.

Which consumers want what was stored.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.consumer.owner.scheduler import ConsumerFilters, ConsumerScheduler, OwnerWakes
from testkit.twins.memory import held
from testkit.twins.time import ManualTime


class Owner:
    def __init__(self) -> None:
        self.runs = 0
        self.ticks: list[int] = []
        """Ticks to 10 us: the timer goes off a little later than asked for."""

    def run(self) -> None:
        self.runs += 1

    def tick(self, now: int) -> None:
        self.ticks.append(now // 10_000 * 10_000)


class Host:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.allowed = True
        self.start = self.time.time_ns()
        self.wakes = ConsumerScheduler(self.time, self.time, lambda: self.allowed, self._guard)

    def _guard(self, call: Callable[[], None]) -> None:
        call()

    def owner(self) -> tuple[Owner, OwnerWakes]:
        owner, wakes = Owner(), OwnerWakes(self.wakes)
        wakes.bind(owner.run, owner.tick)
        return owner, wakes

    def after(self, seconds: float) -> int:
        return self.start + int(seconds * 1e9)


def test_an_owner_is_run_once_at_the_end_of_the_turn() -> None:
    host = Host()
    owner, wakes = host.owner()
    other, _ = host.owner()
    wakes.soon()
    wakes.soon()
    assert owner.runs == 0
    host.time.advance(0.0)
    assert owner.runs == 1 and other.runs == 0


def test_owners_that_may_not_run_stay_ready() -> None:
    host = Host()
    owner, wakes = host.owner()
    host.allowed = False
    wakes.soon()
    host.time.advance(1.0)
    assert owner.runs == 0
    host.allowed = True
    host.wakes.resume()
    host.time.advance(0.0)
    assert owner.runs == 1


def test_only_the_earliest_time_asked_for_since_the_last_tick_counts() -> None:
    host = Host()
    owner, wakes = host.owner()
    wakes.at(host.after(3.0))
    wakes.at(host.after(1.0))
    wakes.at(host.after(2.0))
    host.time.advance(5.0)
    assert owner.ticks == [host.after(1.0)]
    wakes.at(host.after(2.0))  # gone by
    host.time.advance(0.0)
    assert len(owner.ticks) == 2


def test_many_owners_are_ticked_in_order_of_their_times() -> None:
    host = Host()
    owners = [host.owner() for _ in range(20)]
    for number, (_, wakes) in enumerate(owners):
        wakes.at(host.after(20.0 - number))
    host.time.advance(10.5)
    assert [bool(owner.ticks) for owner, _ in owners] == [number >= 10 for number in range(20)]


def test_an_owner_that_was_let_go_is_left_alone() -> None:
    host = Host()
    owner, wakes = host.owner()
    wakes.soon()
    wakes.at(host.after(1.0))
    wakes.close()
    host.time.advance(2.0)
    assert owner.runs == 0 and owner.ticks == []


def test_times_that_were_replaced_do_not_pile_up() -> None:
    host = Host()
    owner, wakes = host.owner()
    for number in range(10_000):
        wakes.at(host.after(10_000.0 - number))
    assert held(host.wakes, host.time) < 2_000
    host.time.advance(2.0)
    assert owner.ticks == [host.after(1.0)]


def test_those_with_a_filter_that_matches_each_once() -> None:
    filters: ConsumerFilters[str] = ConsumerFilters()
    filters.set(1, [b">"], "all")
    filters.set(2, [b"a.*", b"b.c"], "two")
    filters.set(3, [b"b.>"], "b")
    assert sorted(filters.takers([b"a.x"])) == ["all", "two"]
    assert sorted(filters.takers([b"a.x", b"a.y", b"b.c"])) == ["all", "b", "two"]
    assert filters.takers([b"c"]) == ["all"]
    assert filters.takers([]) == []


def test_filters_are_replaced_and_removed() -> None:
    filters: ConsumerFilters[str] = ConsumerFilters()
    filters.set(1, [b"a"], "one")
    filters.set(1, [b"b"], "one")
    assert filters.takers([b"a"]) == [] and filters.takers([b"b"]) == ["one"]
    filters.remove(1)
    filters.remove(1)
    assert filters.takers([b"b"]) == []
