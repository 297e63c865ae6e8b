from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from jetcluster.health.cluster_clock import (
    AGREED_SECONDS,
    DOUBT_SECONDS,
    MAX_DIFFERENCE_NS,
    PROVEN_SECONDS,
    SECOND,
    START_DIFFERENCE_SECONDS,
    ClusterClock,
)
from testkit.twins.time import ManualTime

HOUR = 3600


class Wall:
    """A node's own clocks: monotonic time is shared, the wall clock is off by `ahead` seconds."""

    def __init__(self, time: ManualTime, ahead: float = 0.0, booted: float = 0.0) -> None:
        self.time = time
        self.ahead = ahead
        self.booted = booted

    def monotonic(self) -> float:
        return self.time.monotonic() - self.booted

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return self.time.time_ns() + int(self.ahead * SECOND)


class Cluster:
    """Nodes that know of each other and beat every 100 ms; `cut` nodes hear nobody. Heartbeats are heard one by one,
    in another order every time."""

    def __init__(self, seed: int = 0, **ahead: float) -> None:
        self.time = ManualTime()
        self.random = random.Random(seed)
        self.members = set(ahead)
        self.walls: dict[str, Wall] = {}
        self.clocks: dict[str, ClusterClock] = {}
        self.cut: set[str] = set()
        self.frozen: set[str] = set()
        """They stand still; what is sent to them waits."""
        self.waiting: list[tuple[str, str, int, int]] = []
        self.moves: list[tuple[str, float]] = []
        for name, seconds in ahead.items():
            self.join(name, seconds)

    def join(self, name: str, ahead: float = 0.0) -> None:
        """A node starts, for the first time or again."""
        self.walls[name] = Wall(self.time, ahead, booted=100.0 * len(self.walls))
        self.clocks[name] = ClusterClock(self.walls[name], on_moved=lambda s: self.moves.append((name, s)))
        self.clocks[name].others = lambda: self.members - {name}

    def stop(self, name: str) -> None:
        del self.clocks[name]
        for clock in self.clocks.values():
            clock.forget(name)

    def run(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        for _ in range(round(seconds * 10)):
            self.time.advance(0.1)
            pairs = [(a, b) for a in self.clocks for b in self.clocks if a != b and not self.cut & {a, b}]
            self.random.shuffle(pairs)
            told = [(a, b, self.clocks[b].wall_ns, self.clocks[b].trusted_ns) for a, b in pairs if b not in self.frozen]
            due, self.waiting = self.waiting + told, []
            for name, sender, wall_ns, trusted_ns in due:
                if name in self.frozen:
                    self.waiting.append((name, sender, wall_ns, trusted_ns))
                    continue
                self.clocks[name].heard(sender, wall_ns, trusted_ns)
                check()
            for name, clock in self.clocks.items():
                if name not in self.frozen:
                    clock.settle()
            check()

    def off(self, name: str) -> float:
        """Seconds by which what `name` stamps is off."""
        return (self.clocks[name].time_ns() - self.time.time_ns()) / SECOND


def agreed(seconds: float) -> Cluster:
    """Three nodes whose clocks agree, after so long."""
    net = Cluster(a=0.0, b=0.0, c=0.0)
    net.run(seconds)
    return net


def test_the_own_clock_is_read_while_it_agrees() -> None:
    net = Cluster(a=0.0, b=1.5, c=-2.0)
    net.run(2)
    assert net.off("b") == 1.5
    assert net.off("c") == -2.0
    assert not any(clock.trouble for clock in net.clocks.values())


def test_a_clock_that_jumps_is_left_behind_at_once() -> None:
    net = agreed(2)
    for jump in (2 * HOUR, -2 * HOUR):
        net.walls["a"].ahead = jump
        assert abs(net.off("a")) < 0.01, "before anybody has looked"
        net.run(AGREED_SECONDS + 10)
        assert abs(net.off("a")) < 0.01
        assert f"{abs(jump):.1f} s" in net.clocks["a"].trouble
        assert not net.clocks["b"].trouble
        net.walls["a"].ahead = 0.0
        net.run(0.2)
        assert not net.clocks["a"].trouble
    assert net.moves == []


def test_it_stays_left_behind_when_only_one_other_is_heard() -> None:
    net = agreed(2)
    net.cut.add("c")
    net.run(5)
    net.walls["a"].ahead = -2 * HOUR  # the lower one of two, and wrong all the same
    net.run(AGREED_SECONDS + 10)
    assert abs(net.off("a")) < 0.01
    assert abs(net.off("b")) < 0.01
    assert not net.clocks["b"].trouble


def test_a_node_that_starts_with_a_wrong_clock_takes_the_time_of_the_others() -> None:
    net = Cluster(a=0.0, b=0.0)
    net.run(2)
    for number, ahead in enumerate((2 * HOUR, -2 * HOUR)):
        name = f"c{number}"
        net.join(name, ahead)
        assert net.off(name) == ahead, "it has heard nobody yet"
        net.run(0.2)
        assert abs(net.off(name)) < 0.01
        assert net.clocks[name].trouble
        del net.clocks[name]


class Stamps:
    """Is to be called after every heartbeat: what leads stamps; no stamp is hours off, nor made to look old later."""

    def __init__(self, net: Cluster) -> None:
        self.net = net
        self.count = 0

    def __call__(self) -> None:
        for name, clock in self.net.clocks.items():
            if clock.established:
                self.count += 1
                assert abs(self.net.off(name)) < 10, f"{name} stamps {self.net.off(name):.0f} s off"

    def judged(self, bad: set[str]) -> None:
        for name, clock in self.net.clocks.items():
            assert clock.established
            assert bool(clock.trouble) is (name in bad), f"{name}: {clock.trouble or 'well'}"


SKEWS = (2 * HOUR, -2 * HOUR, 40.0, -40.0)


@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR])
@pytest.mark.parametrize(
    "pauses", [(0.0, 0.0, AGREED_SECONDS + 2), (0.0, 1.0, AGREED_SECONDS + 2), (0.1, 40.0, 1.0), (40.0, 0.1, 1.0)]
)
def test_three_start_in_any_order_and_any_one_of_them_is_wrong(pauses: tuple[float, ...], ahead: float) -> None:
    for seed, (order, bad) in enumerate(itertools.product(itertools.permutations("abc"), "abc")):
        net = Cluster(seed)
        net.members = set("abc")
        stamps = Stamps(net)
        for name, pause in zip(order, pauses, strict=True):
            net.join(name, ahead if name == bad else 0.0)
            net.run(pause, stamps)
        stamps.judged({bad})
        assert net.moves == []


@pytest.mark.parametrize("seed", range(12))
def test_five_of_which_two_are_wrong_start_stop_and_are_cut_off_at_random(seed: int) -> None:
    """Right nodes restart while a majority of right ones is left; wrong ones do what they want."""
    chance = random.Random(seed)
    bad = dict(zip("xy", chance.choice([(2 * HOUR, 2 * HOUR), (-2 * HOUR, -2 * HOUR), (HOUR, -HOUR)]), strict=True))
    net = Cluster(seed)
    net.members = set("abcxy")
    stamps = Stamps(net)
    order = chance.sample("abcxy", 5)
    for name in order:
        net.join(name, bad.get(name, 0.0))
        net.run(chance.choice([0.0, 0.1, 3.0, 40.0]), stamps)
    net.run(1, stamps)
    for _ in range(6):
        name = chance.choice("abcxy")
        if chance.random() < 0.5:
            net.stop(name)
            net.run(chance.choice([0.1, 5.0, 100.0]), stamps)
            net.join(name, bad.get(name, 0.0))
        else:
            net.cut.add(name)
            net.run(chance.choice([1.0, 100.0]), stamps)
            net.cut.clear()
        net.run(chance.choice([0.1, 1.0, 40.0]), stamps)
    net.run(1, stamps)
    stamps.judged(set(bad))
    assert net.moves == []


@pytest.mark.parametrize("ahead", SKEWS)
@pytest.mark.parametrize("bad", ["a", "b", "c"])
def test_a_rolling_restart_after_which_one_clock_is_wrong(ahead: float, bad: str) -> None:
    for seconds in (1.0, AGREED_SECONDS + 10):
        net = Cluster(a=0.0, b=0.0, c=0.0)
        stamps = Stamps(net)
        net.run(1, stamps)
        for name in "abc":
            net.stop(name)
            net.run(seconds, stamps)
            net.join(name, ahead if name == bad else 0.0)
            net.run(1, stamps)
        stamps.judged({bad})


@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR])
def test_of_two_that_start_together_and_differ_none_is_believed(ahead: float) -> None:
    net = Cluster(a=0.0, b=ahead)
    net.run(DOUBT_SECONDS + 2 * AGREED_SECONDS)
    for clock in net.clocks.values():
        assert not clock.established
        assert clock.disputed
        assert not clock.trusted_ns
        assert "no majority" in clock.trouble
    net.walls["b"].ahead = 0.0
    net.run(DOUBT_SECONDS + 1)
    assert all(clock.established and not clock.trouble for clock in net.clocks.values())
    assert net.moves == []


@pytest.mark.parametrize("ahead", [2 * HOUR, -2 * HOUR])
def test_of_two_the_one_that_was_there_first_is_believed(ahead: float) -> None:
    net = Cluster(a=0.0, b=0.0)
    stamps = Stamps(net)
    net.run(1, stamps)
    net.stop("b")
    net.run(3 * AGREED_SECONDS, stamps)
    net.join("b", ahead)
    net.run(1, stamps)
    stamps.judged({"b"})
    net.walls["b"].ahead = 0.0
    net.run(2 * AGREED_SECONDS, stamps)
    stamps.judged(set())
    assert net.moves == []


def test_clocks_that_are_a_little_apart_are_believed_as_soon_as_nobody_else_could_outvote_them() -> None:
    net = Cluster(a=0.0, b=20.0)
    net.run(19)
    assert not any(clock.established for clock in net.clocks.values())
    net.run(2)
    assert all(clock.established for clock in net.clocks.values())
    net = Cluster(a=0.0, b=20.0)
    net.members |= {"c"}
    net.run(2 * START_DIFFERENCE_SECONDS)
    assert not any(clock.established for clock in net.clocks.values()), "there is another one, who may come"
    net.join("c", 21.0)
    net.run(1)
    assert [round(net.off(name)) for name in "abc"] == [20, 20, 21]


def test_a_node_that_hears_too_few_reads_its_own_clock_and_has_no_reference() -> None:
    net = Cluster(a=3 * HOUR)
    net.members = set("abc")
    net.run(2 * AGREED_SECONDS)
    assert not net.clocks["a"].established
    assert not net.clocks["a"].trusted_ns
    assert not net.clocks["a"].disputed
    assert net.off("a") == 3 * HOUR
    net.join("b")
    net.run(0.1)
    assert net.clocks["a"].disputed


def test_a_node_that_is_cut_off_never_follows_its_own_clock() -> None:
    net = Cluster(a=0.0, b=0.0, c=0.0)
    stamps = Stamps(net)
    net.run(1, stamps)
    net.cut.add("a")
    net.run(2 * AGREED_SECONDS, stamps)
    assert net.clocks["a"].trusted_ns, "its own clock is of the same mind"
    net.walls["a"].ahead = -2 * HOUR
    net.run(10 * AGREED_SECONDS, stamps)
    assert net.clocks["a"].trusted_ns == 0
    net.stop("b")
    net.stop("c")
    net.cut.clear()
    net.join("b")
    net.run(1, stamps)
    stamps.judged({"a"})
    assert net.clocks["a"].trusted_ns
    assert net.moves == []


def test_who_was_cut_off_takes_the_time_of_the_majority_at_once() -> None:
    net = agreed(1)
    net.cut.add("a")
    for name in "abc":
        net.walls[name].ahead = HOUR
    net.run(2 * AGREED_SECONDS)
    assert [round(net.off(name)) for name in "abc"] == [0, HOUR, HOUR]
    net.cut.clear()
    net.run(PROVEN_SECONDS + 0.3)
    assert round(net.off("a")) == HOUR
    assert not net.clocks["a"].trouble


def test_all_clocks_far_apart_do_not_move_the_time() -> None:
    net = agreed(2)
    for name, ahead in (("a", 50.0), ("b", -55.0), ("c", 20.0)):
        net.walls[name].ahead = ahead
    net.run(2 * AGREED_SECONDS)
    assert [abs(net.off(name)) < 0.01 for name in "abc"] == [True] * 3


def test_a_majority_that_agrees_on_another_time_for_long_is_believed() -> None:
    net = agreed(2)
    net.walls["a"].ahead = net.walls["b"].ahead = HOUR
    net.run(AGREED_SECONDS - 2)
    assert abs(net.off("a")) < 0.01
    net.run(4)
    assert [round(net.off(name)) for name in "abc"] == [HOUR] * 3
    assert net.clocks["c"].trouble
    assert sorted(name for name, _ in net.moves) == ["a", "b", "c"]
    assert all(round(seconds) == HOUR for _, seconds in net.moves)


def test_clocks_of_which_half_are_just_within_the_limit_move_the_time_all_the_same() -> None:
    """All are within a second of each other, and no majority agrees or disagrees with the time of before."""
    net = Cluster(a=0.0, b=0.0, c=0.0, d=0.0)
    net.run(2)
    for name, ahead in zip("abcd", (4.6, 4.7, 5.2, 5.6), strict=True):
        net.walls[name].ahead = ahead
    net.run(AGREED_SECONDS - 2)
    assert net.clocks["d"].trouble and net.clocks["c"].trouble
    net.run(4)
    assert not any(clock.trouble for clock in net.clocks.values())
    assert all(4.5 < net.off(name) < 5.7 for name in "abcd")


def test_a_cluster_of_one_follows_its_clock_after_a_while() -> None:
    net = Cluster(a=0.0)
    net.run(1)
    net.walls["a"].ahead = HOUR
    net.run(AGREED_SECONDS - 2)
    assert abs(net.off("a")) < 0.01
    assert net.clocks["a"].trouble
    net.run(4)
    assert net.off("a") == HOUR
    assert not net.clocks["a"].trouble
    assert net.clocks["a"].trusted_ns, "it is the majority: a second node takes its time"


def test_slow_drift_is_followed_alone_and_not_against_others() -> None:
    net = Cluster(a=0.0)
    for _ in range(200):
        net.walls["a"].ahead += 0.2
        net.run(0.1)
    assert abs(net.off("a") - 40.0) < 0.001
    net = agreed(1)
    for _ in range(400):
        net.walls["a"].ahead += 0.1
        net.run(0.1)
    assert abs(net.off("a")) < 0.01
    assert net.clocks["a"].trouble


def test_heartbeats_that_come_late_do_not_make_a_clock_look_late() -> None:
    time = ManualTime()
    wall = Wall(time)
    clock = ClusterClock(wall)
    for _ in range(10):
        time.advance(0.1)
        clock.heard("b", time.time_ns(), time.time_ns())
    late = time.time_ns()
    time.advance(2.0)
    for _ in range(5):  # this node, or the link, stood still: what was sent then is read now
        clock.heard("b", late, late)
    clock.settle()
    assert not clock.trouble
    assert abs(clock.time_ns() - time.time_ns()) < MAX_DIFFERENCE_NS


@pytest.mark.parametrize("frozen", ["a", "ab", "abc"])
@pytest.mark.parametrize("seconds", [AGREED_SECONDS / 2, AGREED_SECONDS + 10, 2.0 * HOUR])
@pytest.mark.parametrize("told", [0.1, 3.0])
def test_what_waited_while_a_node_stood_still_moves_no_time(frozen: str, seconds: float, told: float) -> None:
    """A process that is stopped: its clocks run on, and heartbeats wait in its sockets."""
    net = agreed(5)
    net.waiting = [(a, b, net.clocks[b].wall_ns, net.clocks[b].trusted_ns) for a in frozen for b in "abc" if a != b]
    net.frozen.update(frozen)
    net.run(told)  # then the peers drop their links, or stand still as well
    net.frozen.update("abc")
    net.time.advance(seconds)
    net.frozen.clear()

    def right() -> None:
        assert all(abs(net.off(name)) < 0.1 for name in "abc")

    net.run(2 * AGREED_SECONDS, right)
    assert not net.moves
    assert all(clock.trusted_ns for clock in net.clocks.values())


def test_what_waited_on_the_way_from_a_peer_moves_no_time() -> None:
    """A node that is cut off from all, and then hears first what was said when that began."""
    net = agreed(5)
    net.cut.add("a")
    old = [("a", sender, net.clocks[sender].wall_ns, net.clocks[sender].trusted_ns) for sender in "bc"]
    net.run(2 * AGREED_SECONDS)
    net.cut.clear()
    net.waiting = old

    def right() -> None:
        assert all(abs(net.off(name)) < 0.1 for name in "abc")

    net.run(5, right)
    assert not net.moves


def test_one_other_alone_moves_no_clock_that_agrees_with_itself() -> None:
    """Nobody knows which one of two is right."""
    net = agreed(5)
    net.cut.add("a")
    net.run(5)
    net.walls["b"].ahead = net.walls["c"].ahead = HOUR
    net.run(2 * AGREED_SECONDS)
    net.stop("c")
    net.cut.clear()
    net.run(10)
    assert net.off("a") == 0.0
    net.walls["a"].ahead = 2.0 * HOUR
    net.run(2 * AGREED_SECONDS)
    assert round(net.off("a")) == HOUR, "its own clock does not agree with its time any more"
