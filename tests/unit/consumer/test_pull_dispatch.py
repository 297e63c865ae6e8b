"""Which requests a turn looks at: a bounded number, and none again at once whose client does not read."""

from __future__ import annotations

import pytest

from jetcluster.consumer.owner import pull_dispatch
from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.consumer.owner.pull_dispatch import MAX_BACKLOG_BYTES
from tests.unit.consumer.rig import Rig


def looks_of(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of clients that the turns from now on look at."""
    looks: list[int] = []
    run, backlog = PullDelivery.run, rig.bus.backlog

    def counted_run(delivery: PullDelivery) -> None:
        looks.append(0)
        run(delivery)

    def counted_look(reply: bytes) -> int:
        looks[-1] += 1
        return backlog(reply)

    monkeypatch.setattr(PullDelivery, "run", counted_run)
    monkeypatch.setattr(rig.bus, "backlog", counted_look)
    return looks


def test_a_turn_looks_at_so_many_sleepers_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull_dispatch, "MAX_TURN_LOOKS", 20)
    rig = Rig(priority_policy="overflow", priority_groups=["g"], max_waiting=0)
    for number in range(200):
        rig.next(b"w%d" % number, batch=1, group="g", min_pending=1000 + number)
    slow = [rig.next(b"slow%d" % number, batch=1, group="g") for number in range(50)]
    rig.bus.unread.update((b"slow%d" % number, MAX_BACKLOG_BYTES + 1) for number in range(50))
    last = rig.next(b"last", batch=1, group="g")
    looks = looks_of(rig, monkeypatch)
    rig.publish(b"s")
    assert last.seqs == [1]
    assert max(looks) <= 21 and 250 <= sum(looks) <= 300
    rig.publish(b"s")
    assert not any(inbox.seqs for inbox in slow), "and it comes to an end where nobody may have it"
    looks.clear()
    rig.bus.unread.clear()
    rig.advance(0.02)
    assert [inbox.seqs for inbox in slow if inbox] == [[2]]


def test_a_turn_looks_at_so_many_that_do_not_read_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_dispatch, "MAX_TURN_LOOKS", 20)
    rig = Rig(max_waiting=0)
    slow = [rig.next(b"slow%d" % number) for number in range(150)]
    rig.bus.unread.update((b"slow%d" % number, MAX_BACKLOG_BYTES + 1) for number in range(150))
    rig.bus.inboxes.pop(b"slow7")
    last = rig.next(b"last", batch=2)
    looks = looks_of(rig, monkeypatch)
    rig.publish(b"s")
    assert last.seqs == [1]
    assert max(looks) <= 21 and 150 <= sum(looks) <= 180
    looks.clear()
    rig.publish(b"s", b"s")
    assert last.seqs == [1, 2] and not any(inbox.seqs for inbox in slow)
    assert sum(looks) <= 2, "nor does the next message ask them again"
    rig.advance(0.02)
    assert max(looks) <= 21 and not any(inbox.seqs for inbox in slow)
    rig.bus.unread.clear()
    rig.advance(0.02)
    assert [inbox.seqs for inbox in slow if inbox] == [[3]]


def test_those_put_aside_come_back_some_hundreds_at_a_time() -> None:
    rig = Rig(max_waiting=0)
    slow = [rig.next(b"slow%d" % number) for number in range(600)]
    rig.bus.unread.update((b"slow%d" % number, MAX_BACKLOG_BYTES + 1) for number in range(600))
    rig.publish(b"s")
    rig.bus.unread.clear()
    rig.publish(*[b"s"] * 599)
    served = []
    for _ in range(4):
        served.append(sum(bool(inbox.seqs) for inbox in slow))
        rig.advance(0.005)
    assert served == [0, 256, 512, 600]
    assert rig.owner.delivery.num_waiting == 0
