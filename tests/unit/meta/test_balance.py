"""The decision who gives what to whom (meta/balance.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.budget import at_once
from jetcluster.meta.balance import Choices, Shift, Unit, Weight, needed_gap, noise_of, spread, uneven

ONE = Weight(100)


def loads_of(peers: Sequence[str], units: Sequence[Unit]) -> dict[str, Weight]:
    found = dict.fromkeys(peers, Weight())
    for unit in units:
        found[unit.at] = found[unit.at].plus(unit.weight)
    return found


def after(units: Sequence[Unit], shifts: Sequence[Shift]) -> list[Unit]:
    new = {shift.unit.key: shift.target for shift in shifts}
    return [unit._replace(at=new.get(unit.key, unit.at)) for unit in units]


def idle(at: str, count: int, heirs: str = "abcdef") -> list[Unit]:
    return [Unit(f"{at}{number}", at, tuple(heirs), ONE) for number in range(count)]


def counts(peers: str, units: Sequence[Unit]) -> list[int]:
    found = Counter(unit.at for unit in units)
    return [found[peer] for peer in peers]


def test_idle_leaders_are_spread_by_their_number() -> None:
    units = idle("a", 40) + idle("b", 20)
    shifts = spread(loads_of("abc", units), units, "abc", 100)
    assert counts("abc", after(units, shifts)) == [20, 20, 20]
    assert len(shifts) == 20


def test_a_difference_of_one_is_none() -> None:
    units = idle("a", 7) + idle("b", 6) + idle("c", 6)
    assert not spread(loads_of("abc", units), units, "abc", 100)
    assert not uneven(loads_of("abc", units), "abc", ONE.total)


def test_a_new_server_gets_its_share_and_others_give_it() -> None:
    units = [unit for peer in "abc" for unit in idle(peer, 20)]
    shifts = spread(loads_of("abcd", units), units, "abcd", 100)
    assert counts("abcd", after(units, shifts)) == [15, 15, 15, 15]
    assert {shift.target for shift in shifts} == {"d"}


def test_one_that_is_hotter_than_all_others_stays_and_the_others_leave_it() -> None:
    hot = Unit("hot", "a", ("b", "c"), Weight(100, 500_000))
    units = [hot, *idle("a", 9, "bc")]
    shifts = spread(loads_of("abc", units), units, "abc", 100)
    assert counts("abc", after(units, shifts)) == [1, 5, 4] or counts("abc", after(units, shifts)) == [1, 4, 5]
    assert hot in after(units, shifts)


def test_load_decides_and_not_the_number() -> None:
    busy = [Unit(f"busy{number}", "a", ("b",), Weight(100, 10_000)) for number in range(4)]
    units = busy + idle("b", 12, "a")
    moved = after(units, spread(loads_of("ab", units), units, "ab", 100))
    assert [unit.at for unit in moved if str(unit.key).startswith("busy")].count("a") == 2


def test_only_servers_that_are_named_get_anything() -> None:
    units = idle("a", 30)
    assert {shift.target for shift in spread(loads_of("abc", units), units, "b", 100)} == {"b"}
    assert not spread(loads_of("abc", units), units, "", 100)


def test_no_more_moves_than_asked_for_and_the_busiest_gives_first() -> None:
    units = idle("a", 30) + idle("b", 60)
    shifts = spread(loads_of("abc", units), units, "abc", 3)
    assert [(shift.unit.at, shift.target) for shift in shifts] == [("b", "c")] * 3


def test_units_that_can_go_nowhere_stay() -> None:
    units = idle("a", 30, "a") + idle("b", 1)
    assert not spread(loads_of("abc", units), units, "abc", 100)


def test_a_pair_that_is_not_allowed_gives_nothing() -> None:
    units = idle("a", 30)
    shifts = spread(loads_of("abc", units), units, "abc", 100, lambda source, target: target != "c")
    assert {shift.target for shift in shifts} == {"b"}


PEERS = "abcd"
weights = st.builds(Weight, st.integers(1, 200), st.one_of(st.just(0), st.integers(0, 100_000)))
some_units = st.lists(st.tuples(st.sampled_from(PEERS), st.sets(st.sampled_from(PEERS)), weights), max_size=40).map(
    lambda rows: [Unit(key, at, tuple(sorted(heirs)), weight) for key, (at, heirs, weight) in enumerate(rows)]
)


def squares(peers: str, units: Sequence[Unit]) -> int:
    return sum(load.total**2 for load in loads_of(peers, units).values())


@given(some_units, st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_it_ends_and_no_state_comes_again(units: list[Unit], most: int) -> None:
    """Round after round, each by what the last one left. The sum of squares falls with each move by what it promises,
    so that no state can come again, and there is a bound for the number of moves."""
    seen = {tuple(unit.at for unit in units)}
    left = squares(PEERS, units)
    for _ in range(10_000):
        shifts = spread(loads_of(PEERS, units), units, PEERS, most)
        if not shifts:
            break
        assert len(shifts) <= most
        for shift in shifts:
            assert shift.target in shift.unit.heirs
            units = after(units, [shift])
            now = squares(PEERS, units)
            assert now <= left - shift.unit.weight.total**2
            left = now
            state = tuple(unit.at for unit in units)
            assert state not in seen
            seen.add(state)
    else:
        raise AssertionError("it goes on and on")
    assert not uneven_left(units)


def uneven_left(units: list[Unit]) -> bool:
    """Is there a move left that would be worth it? By trying all."""
    loads = loads_of(PEERS, units)
    return any(
        heir != unit.at
        and loads[unit.at].total - loads[heir].total
        >= needed_gap(unit.weight.total, noise_of(loads[unit.at], loads[heir]))
        for unit in units
        for heir in unit.heirs
    )


@given(some_units)
@settings(max_examples=200, deadline=None)
def test_nothing_moves_back_at_once(units: list[Unit]) -> None:
    for shift in spread(loads_of(PEERS, units), units, PEERS, 1):
        moved = after(units, [shift])
        again = spread(loads_of(PEERS, moved), moved, PEERS, 100)
        assert all(one.unit.key != shift.unit.key or one.target != shift.unit.at for one in again[:1])


@given(some_units, st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_the_quick_look_misses_nothing(units: list[Unit], seed: int) -> None:
    targets = Random(seed).sample(PEERS, 3)
    loads = loads_of(PEERS, units)
    lightest = min((unit.weight.total for unit in units), default=1)
    if spread(loads, units, targets, 1):
        assert uneven(loads, targets, lightest)


def test_rates_that_waver_by_some_percent_move_nothing_for_long() -> None:
    """Two hundred rounds of measurements, each wrong by up to 4 percent: in the end nothing moves any more."""
    rng = Random(7)
    units = [Unit(n, rng.choice("abc"), tuple("abc"), Weight(100, rng.choice([0, 500, 3000]))) for n in range(120)]
    moves = []
    for _ in range(200):
        measured = [
            unit._replace(weight=Weight(100, int(unit.weight.rate * rng.uniform(0.96, 1.04)))) for unit in units
        ]
        shifts = spread(loads_of("abc", measured), measured, "abc", 4)
        units = after(units, shifts)
        moves.append(len(shifts))
    assert sum(moves[100:]) == 0, moves
    totals = [load.total for load in loads_of("abc", units).values()]
    assert max(totals) < 1.3 * min(totals)


def test_thousands_of_streams_are_decided_quickly_enough_in_few_steps() -> None:
    """Bounded by the number of comparisons, as times say little: each unit is weighed once per pair of servers."""
    units = idle("a", 3000, "bc")
    shifts = spread(loads_of("abc", units), units, "abc", 4)
    assert [shift.target for shift in shifts] == ["b", "c", "b", "c"]


def test_choices_are_filled_once_and_asked_for_what_nobody_refused() -> None:
    units = [*idle("a", 40, "bc"), Unit((99,), "a", ("c",), Weight(100))]
    loads = loads_of("abc", units)
    choices = Choices(loads, "bc")
    steps = sum(1 for _ in choices.fill(units))
    assert steps >= len(units) // 20, "it lets other work run"
    first = at_once(choices.next(loads))
    assert first is not None and first.target == "b"
    choices.refuse(first.unit, "b")
    second = at_once(choices.next(loads))
    assert second is not None and second.target == "b" and second.unit != first.unit
    for unit in idle("a", 40):
        choices.refuse(unit, "b")
    third = at_once(choices.next(loads))
    assert third is not None and third.target == "c"
    for unit in units[:-1]:
        choices.drop(unit)
    last = at_once(choices.next(loads))
    assert last is not None and last.unit == units[-1]
    choices.drop(last.unit)
    assert at_once(choices.next(loads)) is None
