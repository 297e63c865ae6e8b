from __future__ import annotations

from jetcluster.protocol.bus import Origin, Valve


class Node(Origin):
    kind = "peer"
    account = "A"


def test_an_origin_that_is_no_connection_is_refused_nothing_and_waits_nowhere() -> None:
    origin, valve = Node(), Valve()
    valve.close()
    origin.wait_at(valve)
    assert valve.closed and not valve.waiting
    assert origin.client_info() == {} and origin.rtt == 0.0
    assert origin.may_be_answered_at(b"$SYS.x") and origin.may_publish_mapped(b"any")


# A valve: who waits at it, whose turn it is, and who is called.


class Publisher:
    def wait_at(self, valve: Valve) -> None:
        valve.waiting[self] = None


def test_only_changes_are_reported() -> None:
    told: list[bool] = []
    valve = Valve(told.append)
    valve.open()
    for _ in range(2):
        valve.close()
    for _ in range(2):
        valve.open()
    assert told == [True, False] and not valve.closed


def test_who_leaves_waits_no_more() -> None:
    valve, publisher = Valve(), Publisher()
    publisher.wait_at(valve)
    assert len(valve) == 1
    assert valve, "also when nobody waits"
    valve.leave(publisher)
    assert len(valve) == 0 and valve


def test_at_its_opening_those_who_sent_little_are_due_and_one_of_the_others() -> None:
    opened: list[Valve] = []
    valve = Valve()
    valve.opened = opened.append
    valve.close()
    valve.open()
    assert (opened, valve.due) == ([], 0), "nobody waits"
    some = [Publisher() for _ in range(5)]
    valve.close()
    for one in some[:3]:
        valve.first[one] = None
    for one in some[3:]:
        valve.waiting[one] = None
    valve.open()
    assert (opened, valve.due) == ([valve], 4)
    for left, one in zip((4, 3, 2, 1, 0), some, strict=True):
        valve.leave(one)
        assert (len(valve), valve.due) == (left, left), "no more than wait"
