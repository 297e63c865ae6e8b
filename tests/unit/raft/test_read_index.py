from __future__ import annotations

from jetcluster.raft.api import Role
from tests.unit.raft.loopback import Loopback


def test_all_reads_of_a_turn_share_one_round() -> None:
    net = Loopback()
    leader = net.start()
    net.run(0.1)
    frames: list[str] = []
    net.filter = lambda source, target, gid, frame: not gid or frames.append(source + target) is None
    answers: list[bool] = []
    for _ in range(100):
        leader.read_index(answers.append)
    net.run(0.02)
    assert answers == [True] * 100
    assert sorted(frames) == ["AB", "AC", "BA", "CA"]


def test_a_read_waits_until_what_was_committed_is_applied() -> None:
    net = Loopback()
    leader = net.start()
    net.run(0.1)
    seen: list[int] = []
    for i in range(20):
        leader.propose(b"%d" % i)
    net.until(lambda: leader.commit_index > 1 or leader.last_index > 20, step=0.0001)
    committed = leader.commit_index
    leader.read_index(lambda ok: seen.append(leader.applied_index if ok else -1))
    net.run(0.05)
    assert seen[0] >= committed


def test_a_new_leader_answers_after_its_noop() -> None:
    net = Loopback("AB")
    for name in "AB":
        net[name].create(1, ("A", "B"), campaign=name == "A")
    group = net["A"].group()
    net.until(lambda: group.role is Role.LEADER, step=0.0001)
    answers: list[bool] = []
    group.read_index(lambda ok: answers.append(ok and group.ready))
    net.run(0.05)
    assert answers == [True]


def test_a_follower_says_no() -> None:
    net = Loopback()
    net.start()
    net.run(0.1)
    answers: list[bool] = []
    net["B"].group().read_index(answers.append)
    assert answers == []
    net.run(0.0)
    assert answers == [False]


def test_a_group_of_one_answers_in_the_next_turn() -> None:
    net = Loopback("A")
    leader = net.start()
    answers: list[bool] = []
    leader.read_index(answers.append)
    net.run(0.0)
    assert answers == [True]


def test_one_excluded_voter_does_not_count() -> None:
    net = Loopback()
    leader = net.start()
    net.run(0.1)
    net.isolate("C")
    answers: list[tuple[str, bool]] = []
    leader.reads.add(lambda ok: answers.append(("without B", ok)), exclude="B")
    leader.reads.add(lambda ok: answers.append(("plain", ok)))
    net.run(0.1)
    assert answers == []  # rounds are answered in order: the plain one waits behind the other
    net.connect_all()
    net.run(0.2)
    assert answers == [("without B", True), ("plain", True)]


def test_a_slow_disk_does_not_delay_reads() -> None:
    net = Loopback()
    leader = net.start()
    net.run(0.1)
    for name in "BC":
        net[name].journal._busy = True
    leader.propose(b"not durable there")
    net.run(0.01)
    answers: list[bool] = []
    leader.read_index(answers.append)
    net.run(0.01)
    assert answers == [True]


def test_what_a_callback_raises_stops_only_this_group() -> None:
    net = Loopback()
    leader = net.start(1)
    other = net.start(2)

    def broken(ok: bool) -> None:
        raise RuntimeError("callback")

    leader.read_index(broken)
    net.run(0.05)
    assert "callback" in leader.status().stopped
    assert other.role is Role.LEADER
