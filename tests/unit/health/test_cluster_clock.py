from __future__ import annotations

from jetcluster.clock import ManualTime
from jetcluster.health.cluster_clock import HOLD, LIMIT, SECOND, ClusterClock

HOUR = 3600


class Wall:
    """A node's own clocks: monotonic time is shared, the wall clock is off by `ahead` seconds."""

    def __init__(self, time: ManualTime, ahead: float = 0.0, booted: float = 0.0) -> None:
        self.time = time
        self.ahead = ahead
        self.booted = booted

    def monotonic(self) -> float:
        return self.time.monotonic() - self.booted

    def time_ns(self) -> int:
        return self.time.time_ns() + int(self.ahead * SECOND)


class Cluster:
    """Nodes that beat every 100 ms; `cut` nodes hear nobody."""

    def __init__(self, **ahead: float) -> None:
        self.time = ManualTime()
        self.walls: dict[str, Wall] = {}
        self.clocks: dict[str, ClusterClock] = {}
        self.cut: set[str] = set()
        self.moves: list[tuple[str, float]] = []
        for name, seconds in ahead.items():
            self.join(name, seconds)

    def join(self, name: str, ahead: float = 0.0) -> None:
        self.walls[name] = Wall(self.time, ahead, booted=100.0 * len(self.walls))
        self.clocks[name] = ClusterClock(self.walls[name], on_moved=lambda s: self.moves.append((name, s)))

    def run(self, seconds: float, check: bool = True) -> None:
        for _ in range(round(seconds * 10)):
            self.time.advance(0.1)
            for name, clock in self.clocks.items():
                for other in self.clocks.values():
                    if other is not clock and name not in self.cut:
                        sender = next(n for n, c in self.clocks.items() if c is other)
                        if sender not in self.cut:
                            clock.heard(sender, other.wall_ns, other.trusted_ns)
                clock.settle()

    def off(self, name: str) -> float:
        """Seconds by which what `name` stamps is off."""
        return (self.clocks[name].time_ns() - self.time.time_ns()) / SECOND


def test_the_own_clock_is_read_while_it_agrees() -> None:
    net = Cluster(a=0.0, b=1.5, c=-2.0)
    net.run(2)
    assert net.off("b") == 1.5
    assert net.off("c") == -2.0
    assert not any(clock.trouble for clock in net.clocks.values())


def test_a_clock_that_jumps_is_left_behind_at_once() -> None:
    net = Cluster(a=0.0, b=0.0, c=0.0)
    net.run(2)
    for jump in (2 * HOUR, -2 * HOUR):
        net.walls["a"].ahead = jump
        assert abs(net.off("a")) < 0.01, "before anybody has looked"
        net.run(HOLD + 10)
        assert abs(net.off("a")) < 0.01
        assert f"{abs(jump):.1f} s" in net.clocks["a"].trouble
        assert not net.clocks["b"].trouble
        net.walls["a"].ahead = 0.0
        net.run(0.2)
        assert not net.clocks["a"].trouble
    assert net.moves == []


def test_it_stays_left_behind_when_only_one_other_is_heard() -> None:
    net = Cluster(a=0.0, b=0.0, c=0.0)
    net.run(2)
    net.cut.add("c")
    net.run(5)
    net.walls["a"].ahead = -2 * HOUR  # the lower one of two, and wrong all the same
    net.run(HOLD + 10)
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


def test_three_that_start_together_follow_the_median() -> None:
    net = Cluster(a=0.0, b=2 * HOUR, c=-1 * HOUR)
    net.run(1)
    assert [abs(net.off(name)) < 0.01 for name in "abc"] == [True] * 3


def test_of_two_that_start_together_the_lower_one_counts() -> None:
    net = Cluster(a=0.0, b=2 * HOUR)
    net.run(1)
    assert abs(net.off("b")) < 0.01
    assert net.clocks["b"].trouble
    assert not net.clocks["a"].trouble


def test_all_clocks_far_apart_do_not_move_the_time() -> None:
    net = Cluster(a=0.0, b=0.0, c=0.0)
    net.run(2)
    for name, ahead in (("a", 50.0), ("b", -55.0), ("c", 20.0)):
        net.walls[name].ahead = ahead
    net.run(2 * HOLD)
    assert [abs(net.off(name)) < 0.01 for name in "abc"] == [True] * 3


def test_a_majority_that_agrees_on_another_time_for_long_is_believed() -> None:
    net = Cluster(a=0.0, b=0.0, c=0.0)
    net.run(2)
    net.walls["a"].ahead = net.walls["b"].ahead = HOUR
    net.run(HOLD - 2)
    assert abs(net.off("a")) < 0.01
    net.run(4)
    assert [round(net.off(name)) for name in "abc"] == [HOUR] * 3
    assert net.clocks["c"].trouble
    assert sorted(name for name, _ in net.moves) == ["a", "b", "c"]
    assert all(round(seconds) == HOUR for _, seconds in net.moves)


def test_a_node_alone_follows_its_clock_after_a_while() -> None:
    net = Cluster(a=0.0)
    net.run(1)
    net.walls["a"].ahead = HOUR
    net.run(HOLD - 2)
    assert abs(net.off("a")) < 0.01
    assert net.clocks["a"].trouble
    net.run(4)
    assert net.off("a") == HOUR
    assert not net.clocks["a"].trouble
    assert net.clocks["a"].trusted_ns == 0, "nobody has confirmed it: who meets this node decides for itself"


def test_slow_drift_is_followed_alone_and_not_against_others() -> None:
    net = Cluster(a=0.0)
    for _ in range(200):
        net.walls["a"].ahead += 0.2
        net.run(0.1)
    assert abs(net.off("a") - 40.0) < 0.001
    net = Cluster(a=0.0, b=0.0, c=0.0)
    net.run(1)
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
    assert abs(clock.time_ns() - time.time_ns()) < LIMIT
