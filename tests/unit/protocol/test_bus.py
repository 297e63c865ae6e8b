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
