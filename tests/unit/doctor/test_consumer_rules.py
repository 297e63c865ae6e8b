"""The watchdog of consumers; `cases` has facts for each code."""

from __future__ import annotations

from jetcluster.doctor.consumer_rules import look_at_consumer
from tests.unit.doctor.cases import consumer


def test_what_waits_and_who() -> None:
    (found,) = look_at_consumer(consumer(waiting=2, delivered=90.0))
    assert found.what == "C delivers nothing: 5 messages wait although 2 pull requests wait"
    assert found.why.startswith("The oldest waits for 100 s; the last delivery was 90 s ago.")
    (found,) = look_at_consumer(consumer(push=True, bound=True))
    assert found.what == "C delivers nothing: 5 messages wait although a subscriber is there"
    assert found.why.startswith("The oldest waits for 100 s; nothing was ever delivered.")


def test_a_consumer_that_waits_for_acks_is_not_called_stuck() -> None:
    (found,) = look_at_consumer(consumer(waiting=2, ack_pending=10, max_ack_pending=10, acked=40.0))
    assert found.code == "JC402"
    assert found.why.startswith("5 messages wait behind them; the last one came 40 s ago.")
