"""The facts of a consumer that messages wait for (cluster/consumer_facts.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster import consumer_facts as taken
from jetcluster.consumer.state.letters import Letter, WaitingLetters

SECOND = 10**9
NOW = 1000 * SECOND


def consumer(**changed: Any) -> tuple[Any, Any]:
    """(replica, state) of a pull consumer that has nothing delivered, with five stored messages."""
    rules = SimpleNamespace(
        direct=False, pause_until=0, max_ack_pending=10, max_deliver=0, push=False, ack_wait=30 * SECOND,
        filters=(b">",), deliver_subject=b"", deliver_group=b"",
    )  # fmt: skip
    view = SimpleNamespace(delivered_sseq=0, ack_pending=0, redelivered=0)
    state = SimpleNamespace(
        cid=1, name="C", rules=rules, view=lambda: view, exhausted=SimpleNamespace(keys={}), delivered_sseq=0,
        letters=WaitingLetters(), delivered_at=0, acked_at=0, last_per_subject_upto=0,
    )  # fmt: skip
    for name, value in changed.items():
        place = next(one for one in (rules, view, state) if hasattr(one, name))
        setattr(place, name, value)
    owner = SimpleNamespace(
        num_waiting=1,
        push_bound=False,
        letter_trouble="full",
        selection=SimpleNamespace(in_flight=2),
        withheld=lambda: "replay",
    )
    store = SimpleNamespace(
        last_seq=5, view=lambda one, start: SimpleNamespace(first=lambda: SimpleNamespace(ts=NOW - 60 * SECOND))
    )
    replica = SimpleNamespace(
        store=store, consumers=SimpleNamespace(owner=lambda cid: owner),
        assignment=SimpleNamespace(account="A", name="S"),
    )  # fmt: skip
    return replica, state


@pytest.fixture(autouse=True)
def _five_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken, "num_pending", lambda state, store: 5)


def test_a_consumer_whose_messages_wait() -> None:
    found = taken.consumer_facts(*consumer(), "n1", NOW)
    assert found is not None
    assert (found.pending, found.oldest, found.delivered, found.waiting) == (5, 60.0, -1.0, 1)
    assert (found.in_flight, found.withheld, found.target) == (2, "replay", "")
    found = taken.consumer_facts(*consumer(delivered_at=NOW - 30 * SECOND, acked_at=NOW - 20 * SECOND), "n1", NOW)
    assert found is not None
    assert (found.delivered, found.acked) == (30.0, 20.0)


def test_dead_letters_that_wait_though_the_consumer_gets_on() -> None:
    letters = WaitingLetters()
    busy: dict[str, Any] = {"delivered_sseq": 5, "letters": letters}
    assert taken.consumer_facts(*consumer(**busy), "n1", NOW) is None
    letters.add(3, Letter(1, 5, NOW - 70 * SECOND))
    letters.add(2, Letter(1, 5, NOW - 60 * SECOND))
    found = taken.consumer_facts(*consumer(**busy), "n1", NOW)
    assert found is not None
    assert (found.letters, found.letters_oldest, found.letters_error) == (2, 70.0, "full")


def test_the_subject_of_a_push_consumer() -> None:
    found = taken.consumer_facts(*consumer(push=True, deliver_subject=b"d", deliver_group=b"g"), "n1", NOW)
    assert found is not None
    assert found.target == "d (queue group g)"


@pytest.mark.parametrize(
    "changed", [{"delivered_at": NOW - SECOND}, {"delivered_sseq": 5}, {"direct": True}], ids=["new", "all", "direct"]
)
def test_a_consumer_that_gets_on_costs_nothing(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(*_: Any) -> int:
        raise AssertionError("its messages are counted")

    monkeypatch.setattr(taken, "num_pending", counts)
    assert taken.consumer_facts(*consumer(**changed), "n1", NOW) is None


@pytest.mark.parametrize("changed", [{"last_per_subject_upto": 3}, {"filters": (b"a",) * 17}])
def test_an_oldest_message_that_takes_a_search_is_not_looked_for(changed: dict[str, Any]) -> None:
    found = taken.consumer_facts(*consumer(**changed), "n1", NOW)
    assert found is not None
    assert found.oldest == -1.0
