from __future__ import annotations

import gc
import random
import time

import pytest

from jetcluster.consumer.owner import pull_queue
from jetcluster.consumer.owner.pull_queue import GONE, HELD, READY, RECOUNT_NS, PullQueue, Thresholds, WaitingRoom
from jetcluster.consumer.owner.pull_request import Gauge, PullRequest
from testkit.twins.memory import held


def request(reply: bytes, left: int = 1, priority: int = 0) -> PullRequest:
    made = PullRequest(reply)
    made.left, made.priority = left, priority
    return made


def queue_of(*lefts: int) -> PullQueue:
    queue = PullQueue()
    for at, left in enumerate(lefts):
        queue.add(request(b"%d" % at, left))
    return queue


def dealt(queue: PullQueue, count: int, verdicts: dict[bytes, int] | None = None) -> dict[bytes, list[int]]:
    _, handed = queue.deal(count, lambda request: (verdicts or {}).get(request.reply, READY))
    return {request.reply: indices for request, indices in handed.items()}


def test_round_robin() -> None:
    queue = queue_of(3, 1, 5)
    assert dealt(queue, 7) == {b"0": [0, 3, 5], b"1": [1], b"2": [2, 4, 6]}
    assert [waiting.reply for waiting in queue] == [b"2"] and queue.wanted == 2


def test_the_turn_goes_on_where_it_was() -> None:
    queue = queue_of(9, 9, 9)
    assert dealt(queue, 2) == {b"0": [0], b"1": [1]}
    assert dealt(queue, 2) == {b"2": [0], b"0": [1]}


def test_those_that_are_held_or_gone() -> None:
    queue = queue_of(2, 2, 2)
    assert dealt(queue, 9, {b"0": HELD, b"1": GONE}) == {b"2": [0, 1]}
    assert [waiting.reply for waiting in queue] == [b"0"] and queue.wanted == 2
    assert dealt(queue, 9, {b"0": HELD}) == {}
    assert list(queue.touched) == [b"0", b"1", b"2"]


def test_lower_numbers_first() -> None:
    queue = PullQueue()
    queue.add(request(b"low", 2, 9))
    queue.add(request(b"high", 2, 1))
    assert dealt(queue, 3) == {b"high": [0, 1], b"low": [2]}


def test_one_reply_subject_for_several_requests() -> None:
    queue = PullQueue()
    one, two = request(b"r", 1), request(b"r", 1)
    queue.add(one)
    queue.add(two)
    queue.remove(one)
    assert queue.replies == {b"r": 1} and not one.open and two.open
    queue.remove(two)
    assert queue.replies == {} and len(queue) == queue.wanted == 0


def test_against_one_by_one() -> None:
    rnd = random.Random(7)
    for _ in range(200):
        lefts = [rnd.randint(1, 6) for _ in range(rnd.randint(1, 6))]
        count = rnd.randint(0, 25)
        line = [[at, left] for at, left in enumerate(lefts)]
        expected: dict[bytes, list[int]] = {}
        for index in range(count):
            if not line:
                break
            at, left = line.pop(0)
            expected.setdefault(b"%d" % at, []).append(index)
            if left > 1:
                line.append([at, left - 1])
        queue = queue_of(*lefts)
        assert dealt(queue, count) == expected
        assert [(waiting.reply, waiting.left) for waiting in queue] == [(b"%d" % at, left) for at, left in line]
        assert queue.wanted == sum(left for _, left in line)


def test_only_those_whose_time_has_come_are_looked_at() -> None:
    queue = PullQueue()
    for at in range(1, 2001):
        waiting = request(b"%d" % at)
        waiting.expires_at = 10 * at
        queue.add(waiting)
    assert queue.alarm == 10
    assert [due.reply for due in queue.due(25)] == [b"1", b"2"]
    assert not queue.due(25), "each one is given once"
    assert queue.alarm == 30


def test_whoever_goes_on_waiting_is_reminded() -> None:
    queue = PullQueue()
    waiting = request(b"r")
    waiting.expires_at, waiting.beat_at = 25, 10
    queue.add(waiting)
    assert queue.alarm == 10 and queue.due(9) == []
    assert queue.due(10) == [waiting]
    waiting.beat_at = 20
    queue.remind(waiting)
    assert queue.due(20) == [waiting]
    waiting.beat_at = 30
    queue.remind(waiting)
    assert queue.alarm == 25 and queue.due(99) == [waiting] and not queue.alarm


def test_alarms_of_those_that_are_gone_are_bounded() -> None:
    queue = PullQueue()
    waiting = request(b"stays")
    waiting.expires_at = 5
    queue.add(waiting)
    for _ in range(10_000):
        served = request(b"r")
        served.expires_at = 1 << 60
        queue.add(served)
        queue.remove(served)
    assert held(queue) < 2_000
    assert queue.due(1 << 61) == [waiting]


def test_removal_does_not_look_at_the_others() -> None:
    """20,000 in any order: each one's cost is the same wherever it stands."""
    queue = queue_of(*[1] * 20_000)
    waiting = list(queue)
    random.Random(1).shuffle(waiting)
    began = time.process_time()
    for request in waiting:
        queue.remove(request)
    assert len(queue) == 0 and time.process_time() - began < 0.5  # 10 s when each was searched for


def test_a_step_of_reminders_is_bounded() -> None:
    queue = PullQueue()
    for number in range(2500):
        waiting = request(b"%d" % number)
        waiting.expires_at = 10
        queue.add(waiting)
    counts = []
    while queue.alarm:
        counts.append(len(queue.due(10)))
    assert counts == [1000, 1000, 500]


def test_heartbeats_are_no_more_than_the_server_can_send() -> None:
    queue = queue_of(1)
    (waiting,) = queue
    waiting.heartbeat = 1
    assert queue.next_beat(waiting, 5) == 5 + 100_000_000
    waiting.heartbeat = 500_000_000
    assert queue.next_beat(waiting, 5) == 5 + 500_000_000
    queue = queue_of(*[1] * 20_000)
    assert queue.next_beat(waiting, 0) == 500_000_000 and queue.next_beat(next(iter(queue)), 0) == 400_000_000


def first(queue: PullQueue, awake: set[Gauge]) -> PullRequest | None:
    return next(queue.each_head(lambda gauge: int(gauge in awake)), None)


def test_sleepers_come_in_their_turn_once_they_may_wake() -> None:
    queue = queue_of(1, 1, 1)
    one, two, three = queue
    queue.sleep(one, ((b"a", 1),))
    queue.sleep(two, ((b"b", 1),))
    assert first(queue, set()) is three and queue.gauges == 2 and queue.awake == 1
    last = request(b"last", 3)
    queue.add(last)
    assert [waiting.reply for waiting in queue] == [b"2", b"last", b"0", b"1"]
    queue.take(three, 1)
    assert first(queue, {b"b"}) is two, "it came before the one that stands in the line"
    queue.take(two, 1)
    assert first(queue, {b"b"}) is last and queue.gauges == 1
    queue.take(last, 1)
    assert first(queue, {b"a"}) is one
    queue.pass_over(one)
    assert one.waits_for is None and first(queue, set()) is last
    queue.sleep(last, ((b"a", 1),))
    queue.rouse()
    assert queue.gauges == 0 and len(list(queue)) == len(queue) == queue.awake == 2


def test_a_sleeper_wakes_by_either_of_two_gauges() -> None:
    queue = queue_of(1, 1)
    one, two = queue
    queue.sleep(one, ((0, 5), (1, 7)))
    queue.sleep(two, ((1, 6),))

    def awake(pending: int, unacked: int) -> PullRequest | None:
        return next(queue.each_head(lambda gauge: (pending, unacked)[int(gauge)]), None)

    assert awake(4, 5) is None
    assert awake(5, 0) is one and awake(4, 6) is two and awake(4, 7) is one
    queue.remove(one)
    assert awake(9, 9) is two and awake(9, 5) is None
    queue.remove(two)
    assert queue.gauges == len(queue) == 0


def test_those_that_are_roused_stand_where_they_came() -> None:
    queue = queue_of(1, 1, 1)
    one, _, three = queue
    queue.sleep(one, ((0, 1),))
    for reply in (b"3", b"4"):
        queue.add(request(reply))
    queue.sleep(three, ((0, 9),))
    queue.add(request(b"5"))
    queue.add(request(b"front"), front=True)
    queue.rouse()
    assert [waiting.reply for waiting in queue] == [b"front", b"1", b"0", b"3", b"4", b"2", b"5"]


@pytest.mark.parametrize(("seed", "values"), [(1, 5), (2, 60), (3, 10_000)])
def test_against_a_search_through_all(monkeypatch: pytest.MonkeyPatch, seed: int, values: int) -> None:
    monkeypatch.setattr(pull_queue, "BLOCK_VALUES", 4)
    rng = random.Random(seed)
    found = Thresholds()
    waiting: dict[PullRequest, int] = {}
    for turn in range(3000):
        grows = turn % 600 < 300
        if rng.random() < (0.7 if grows else 0.3) or not waiting:
            request = PullRequest(b"%d" % turn, turn=turn)
            waiting[request] = rng.randint(1, values)
            found.add(waiting[request], request)
        else:
            request = rng.choice(list(waiting))
            found.remove(waiting.pop(request), request)
        reading = rng.randint(0, values + 1)
        reached = [request for request, value in waiting.items() if value <= reading]
        assert found.first(reading) is min(reached, key=lambda request: request.turn, default=None)
        assert bool(found) == bool(waiting)


class Turn(int):
    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Turn.comparisons += 1
        return int(self) < int(other)


def test_a_look_compares_some_hundreds_whatever_came_and_went() -> None:
    found = Thresholds()
    requests = [PullRequest(b"r", turn=Turn(number)) for number in range(40_000)]
    for value, request in enumerate(requests):
        found.add(value, request)
    for reading in (-1, 200, 39_900, 50_000):
        Turn.comparisons = 0
        assert found.first(reading) is (None if reading < 0 else requests[0])
        assert Turn.comparisons < 1000
    for value, request in enumerate(requests):
        if value % 200:
            found.remove(value, request)
    Turn.comparisons = 0
    assert found.first(39_900) is requests[0]
    assert Turn.comparisons < 300


def filled(room: WaitingRoom, count: int) -> PullQueue:
    queue = PullQueue(room)
    for number in range(count):
        queue.add(PullRequest(b"%d" % number))
    return queue


def test_requests_of_all_consumers_are_counted() -> None:
    room = WaitingRoom(5, share=1)
    one, two = filled(room, 3), filled(room, 1)
    assert not room.is_full_for(one, 0)
    two.add(PullRequest(b"x"))
    assert room.is_full_for(one, 0) and one.room is two.room is room
    two.remove(next(iter(two)))
    assert not room.is_full_for(one, 0) and room.count == 4


def test_owners_that_were_let_go_do_not_count() -> None:
    room = WaitingRoom(5, share=1)
    kept, gone = filled(room, 2), filled(room, 3)
    assert room.is_full_for(kept, 0) and len(kept) == 2
    del gone
    gc.collect()
    assert room.is_full_for(kept, RECOUNT_NS - 1), "all queues are gone through once a second"
    assert not room.is_full_for(kept, RECOUNT_NS) and room.count == 2


def test_a_full_room_has_a_share_for_each() -> None:
    room = WaitingRoom(10, share=3)
    hog, victim = filled(room, 10), filled(room, 0)
    assert room.is_full_for(hog, 0)
    for _ in range(3):
        assert not room.is_full_for(victim, 0)
        victim.add(PullRequest(b"v"))
    assert room.is_full_for(victim, 0)
