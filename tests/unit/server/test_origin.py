"""Where messages come from that no client of this server sent."""

from __future__ import annotations

from jetcluster.protocol.valve import Valve
from jetcluster.server.origin import ServerOrigin


def test_the_server_itself_and_its_peers_never_wait_at_a_valve() -> None:
    valve = Valve()
    valve.close()
    for origin in (ServerOrigin("system", "A"), ServerOrigin("route", "A", "PEER")):
        origin.wait_at(valve)
    assert len(valve) == 0
    assert (origin.kind, origin.account, origin.peer_id) == ("route", "A", "PEER")
