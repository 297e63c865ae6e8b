"""Routes of an index in which some takers' owners are gone."""

from __future__ import annotations

from jetcluster.protocol.sublist import Sublist
from jetcluster.server.gone_owners import GoneOwners
from jetcluster.server.route import Route
from jetcluster.server.subscription import AnySubscription, ClientSubscription, RemoteInterest
from testkit.server_rig import Bench, FakePeer


def test_no_route_has_takers_whose_owner_is_gone() -> None:
    index: Sublist[AnySubscription, Route] = Sublist(Route)
    gone, peer, client = GoneOwners(index, Route), FakePeer("n2"), Bench().client().connection
    plain, member = ClientSubscription(client, b"s", None, b"1"), ClientSubscription(client, b"s", b"q", b"2")
    remote = RemoteInterest(peer, b"s", None, 1)
    for taker in (plain, member, remote):
        index.insert(taker)
    assert index.match(b"s").takers == 3
    gone.add(client)
    route = index.match(b"s")
    assert route.peers == (peer,) and not route.clients and not route.queues, "a queue without members is none"
    gone.add(peer)
    assert index.match(b"s").takers == 0
    gone.discard(client)
    assert index.match(b"s").takers == 2
    gone.discard(peer)
    assert index.match(b"s").takers == 3


def test_routes_of_another_kind_leave_them_out_as_well() -> None:
    class Other(Route):
        __slots__ = ()

    index: Sublist[AnySubscription, Route] = Sublist(Route)
    gone, peer = GoneOwners(index, Route), FakePeer("n2")
    index.insert(RemoteInterest(peer, b"s", None, 1))
    gone.add(peer)
    gone.use(Other)
    assert isinstance(index.match(b"s"), Other) and index.match(b"s").takers == 0
    gone.discard(peer)
    assert isinstance(index.match(b"s"), Other) and index.match(b"s").takers == 1
