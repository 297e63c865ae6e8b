"""Messages that are out and that wait, against lists per key, and what it costs."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from jetcluster.consumer.owner.key_queues import NO_KEY, KeyQueues


def test_one_of_a_key_is_out_and_the_next_comes_when_it_is_settled() -> None:
    queues = KeyQueues(1)
    assert [queues.offer(seq, key) for seq, key in ((1, 5), (2, 5), (3, 6), (4, 5))] == [True, False, True, False]
    assert queues.waiting == 2 and queues.blocked == 1 and not queues.ready
    queues.settle([3])
    assert not queues.ready
    queues.settle([1, 1])
    assert queues.ready and queues.take(9) == [2] and queues.take(9) == []
    assert queues.offer(5, 6) and not queues.offer(6, 5)
    queues.settle([2])
    assert queues.take(9) == [4] and queues.waiting == 1
    queues.settle([4])
    assert queues.take(9) == [6] and queues.waiting == queues.blocked == 0


def test_nothing_of_a_key_passes_one_that_is_ready() -> None:
    queues = KeyQueues(1)
    queues.offer(1, 5)
    queues.offer(2, 5)
    queues.settle([1])
    assert not queues.offer(3, 5)
    assert queues.take(9) == [2]
    queues.give_back([2])
    assert not queues.offer(4, 5) and queues.waiting == 3 and queues.take(9) == [2]


def test_what_is_removed_while_it_waits_or_is_ready_is_left_out() -> None:
    queues = KeyQueues(1)
    for seq in range(1, 6):
        queues.offer(seq, 5)
    queues.settle([2, 5, 2])
    assert queues.waiting == 2
    queues.settle([1])
    queues.settle([3])
    assert queues.take(9) == [4] and queues.waiting == 0
    queues.settle([4])
    assert queues.offer(6, 5) and queues.blocked == 0


def test_messages_without_a_key_wait_for_nobody() -> None:
    queues = KeyQueues(1)
    assert all(queues.offer(seq, NO_KEY) for seq in range(1, 4))
    queues.give_back([2])
    assert queues.take(9) == [2]
    queues.settle([1, 2, 3])
    assert queues.waiting == 0 and not queues.ready


def test_more_than_the_limit_may_be_out_by_the_state_of_before() -> None:
    queues = KeyQueues(2)
    for seq, held in ((1, False), (2, False), (3, False), (4, True), (5, True)):
        queues.restore(seq, 5, held=held)
    queues.restore(6, NO_KEY, held=True)
    queues.check(queues.restored())
    assert queues.take(9) == [6]
    queues.settle([1])
    assert not queues.ready
    queues.settle([2])
    assert queues.take(9) == [4]
    queues = KeyQueues(2)
    for seq, held in ((1, False), (4, True), (5, True)):
        queues.restore(seq, 5, held=held)
    queues.check(queues.restored())
    assert queues.take(9) == [4] and queues.waiting == 1


def test_no_key_goes_on_before_all_of_the_state_is_restored() -> None:
    queues = KeyQueues(1)
    for seq, held in ((1, False), (2, True), (3, False)):
        queues.restore(seq, 5, held=held)
        if seq == 2:
            queues.settle([1])
            assert not queues.ready, "another of its key is out, and not restored yet"
    queues.check(queues.restored())
    assert not queues.ready
    queues.settle([3])
    assert queues.take(9) == [2]


def test_what_left_while_it_waited_is_counted() -> None:
    queues = KeyQueues(1)
    for seq in range(1, 5000):
        queues.offer(seq, 5)
    queues.settle(range(2, 1026))
    assert queues.left == 1024 and not queues.is_sparse
    queues.settle([1026])
    assert queues.left == 1025 and queues.waiting == 4998 - 1025 and queues.is_sparse
    queues.settle([1])
    assert queues.take(9) == [1027] and queues.left == 0 and not queues.is_sparse


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_as_lists_per_key_are(seed: int, limit: int) -> None:
    rng = Random(seed)
    queues = KeyQueues(limit)
    out: dict[int, list[int]] = {key: [] for key in range(1, 9)}
    waits: dict[int, list[int]] = {key: [] for key in out}
    ready: set[int] = set()
    of: dict[int, int] = {}
    seq = 0
    for number in range(8000):
        if rng.random() < (0.55 if number % 4000 < 2500 else 0.35):
            seq += rng.randint(1, 3)
            key = of[seq] = rng.choice(list(out))
            free = len(out[key]) < limit and not ready.intersection(out[key])
            (out if free else waits)[key].append(seq)
            assert queues.offer(seq, key) == free
        elif rng.random() < 0.3:
            taken = sorted(ready)[:2]
            assert queues.take(2) == taken
            ready -= set(taken)
        elif of:
            gone = rng.choice(list(of)[-60:])
            queues.settle([gone])
            key = of.pop(gone)
            ready.discard(gone)
            (out if gone in out[key] else waits)[key].remove(gone)
        for key in out:
            while waits[key] and len(out[key]) < limit:
                out[key].append(waits[key].pop(0))
                ready.add(out[key][-1])
        assert queues.waiting == sum(map(len, waits.values())) + len(ready) and queues.ready == bool(ready)
        assert queues.blocked >= sum(map(bool, waits.values()))


@pytest.mark.thorough
@pytest.mark.parametrize("each", [1, 2])
def test_a_hundred_thousand_keys_cost_less_than_a_hundred_bytes_each(each: int) -> None:
    rng = Random(1)
    keys = [rng.getrandbits(64) for _ in range(100_000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        queues = KeyQueues(1)
        for seq in range(100_000 * each):
            queues.offer(seq + 1, keys[seq % 100_000])
        cost = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert queues.waiting == 100_000 * (each - 1)
    print(f"{cost / 100_000:.0f} bytes per key")
    assert cost < 100 * 100_000 + 40 * queues.waiting


def shared(limit: int) -> tuple[KeyQueues, list[int]]:
    """Queues whose only slot is the first member's."""
    queues, slots = KeyQueues(limit), [1]
    queues.share(slots)
    return queues, slots


def test_what_is_ready_waits_for_its_member() -> None:
    queues, slots = shared(1)
    queues.park(1, 5)
    queues.park(2, 5)
    assert queues.waiting == 2 and not queues.ready and queues.take(9) == []
    assert queues.take_of(2, 9) == [] and queues.take_of(1, 9) == [1] and queues.busy == {1: 1}
    assert queues.holder(1) == 1 and queues.key_of(1) == 5 and queues.holder(2) == queues.holder(9) == 0
    slots[0] = 2
    assert queues.stocks is not None
    queues.stocks.moved([0])
    queues.settle([1])
    assert queues.heard == {1} and queues.busy == {}
    assert queues.take_of(1, 9) == [] and queues.take_of(2, 9) == [2]


def test_nothing_more_of_a_key_goes_to_another_than_has_the_rest() -> None:
    queues, slots = shared(3)
    assert queues.may_go(5, 1)
    queues.add(1, 5, 1)
    assert queues.may_go(5, 1) and not queues.may_go(5, 2) and not queues.may_go(5, 0)
    queues.park(2, 5)
    assert not queues.may_go(5, 1), "another waits"
    slots[0] = 2
    assert queues.stocks is not None
    queues.stocks.moved([0])
    assert queues.take_of(2, 9) == [] and queues.waiting == 1
    queues.settle([1])
    assert queues.take_of(2, 9) == [2] and queues.may_go(5, 2)
    queues.add(3, 5, 2)
    queues.hold(2, 7)
    assert queues.busy == {2: 1, 7: 1} and not queues.may_go(5, 2) and not queues.may_go(5, 7)
    queues.settle([3])
    assert not queues.may_go(5, 7), "it is not known who had the rest"
    queues.hold(2, 8)
    assert queues.may_go(5, 8)


def test_ready_messages_are_put_in_place_when_members_come_and_go() -> None:
    queues = KeyQueues(1)
    for seq in range(1, 7):
        queues.offer(seq, 1 + seq % 2)
    queues.park(7, NO_KEY)
    queues.settle([1, 2])
    queues.share([1])
    assert not queues.arrange(1) and queues.arrange(9) and queues.ready
    assert queues.take(9) == [7] and queues.take_of(1, 1) == [3]
    queues.share(None)
    assert queues.ready and queues.take(9) == [] and queues.arrange(9)
    assert queues.take(9) == [4] and queues.waiting == 2


def test_messages_given_back_are_the_first_of_their_key_again() -> None:
    queues = KeyQueues(3)
    queues.sole = 4
    for seq in range(1, 6):
        queues.offer(seq, 5)
    queues.settle([1])
    assert queues.take(9) == [4] and queues.busy == {4: 3}
    queues.give_back([3, 4, 2])
    assert queues.waiting == 4 and queues.blocked == 1 and not queues.busy
    assert queues.take(2) == [2, 3] and queues.take(9) == [4]


def test_the_only_member_gets_nothing_more_of_a_key_that_another_had() -> None:
    queues = KeyQueues(2)
    queues.sole = 3
    assert queues.offer(1, 5)
    queues.sole = 4
    assert not queues.offer(2, 5) and not queues.offer(3, 5)
    queues.check([5])
    assert queues.take(9) == [] and queues.waiting == 2
    queues.settle([1])
    assert queues.take(9) == [2, 3] and queues.busy == {4: 2}
