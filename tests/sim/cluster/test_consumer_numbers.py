"""The numbers that CONSUMER.INFO must tell, step by step."""

from __future__ import annotations

from tests.sim.cluster.consumer_numbers import ConsumerNumbers, Numbers


def _filled(count: int, *wanted: str) -> ConsumerNumbers:
    known = ConsumerNumbers(wanted)
    for seq in range(1, count + 1):
        known.store(seq, "ab"[seq % 2])
    return known


def _delivered(known: ConsumerNumbers, *seqs: int) -> ConsumerNumbers:
    for seq in seqs:
        known.deliver(seq)
    return known


def test_the_floor_lies_below_the_oldest_that_waits() -> None:
    known = _delivered(_filled(5), 1, 2, 3, 4)
    assert known.expected() == Numbers((4, 4), (0, 0), 4, 1, 0)
    known.ack(2)
    assert known.expected() == Numbers((4, 4), (0, 0), 3, 1, 0)
    known.ack(1)
    assert known.expected() == Numbers((4, 4), (2, 2), 2, 1, 0)
    known.deliver(3)
    assert known.expected() == Numbers((5, 4), (2, 2), 2, 1, 1)
    known.remove([3, 4, 5])
    assert known.expected() == Numbers((5, 4), (5, 4), 0, 0, 0)


def test_a_purge_of_all_counts_as_delivered_until_a_reset() -> None:
    known = _delivered(_filled(6), 1, 2)
    known.purge()
    assert known.expected() == Numbers((2, 6), (2, 6), 0, 0, 0)
    known.reset(3)
    assert known.expected() == Numbers((0, 2), (0, 2), 0, 0, 0)


def test_only_what_is_wanted_is_to_come_and_the_rest_may_be_passed_over() -> None:
    known = _delivered(_filled(6, "a"), 2, 4)
    assert known.to_come == [6]
    known.remove([6])
    known.pass_over(Numbers((2, 6), (0, 0), 2, 0, 0))
    assert known.expected() == Numbers((2, 6), (0, 0), 2, 0, 0)
    known.ack(2)
    known.ack(4)
    assert known.expected() == Numbers((2, 6), (2, 6), 0, 0, 0)


def test_what_is_to_come_is_not_passed_over() -> None:
    known = _delivered(_filled(6), 1)
    for ahead in (2, 7):
        known.pass_over(Numbers((1, ahead), (0, 0), 1, 5, 0))
    assert known.expected() == Numbers((1, 1), (0, 0), 1, 5, 0)


def test_the_numbers_of_an_answer() -> None:
    info = {
        "delivered": {"consumer_seq": 3, "stream_seq": 5, "last_active": "now"},
        "ack_floor": {"consumer_seq": 1, "stream_seq": 2},
        "num_ack_pending": 2, "num_pending": 7, "num_redelivered": 1,
    }  # fmt: skip
    assert Numbers.of(info) == Numbers((3, 5), (1, 2), 2, 7, 1)
