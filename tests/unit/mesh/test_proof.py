"""An address that others tell leads to the node that says it is there, and to nobody who only hands on
(mesh/proof.py)."""

from __future__ import annotations

import asyncio

import pytest

from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.node_key import NodeKey
from jetcluster.mesh.proof import own_addresses
from testkit.twins.time import SeededRng
from tests.unit.cluster.mesh_support import Proxy, full, info, node, route_to, stop, until
from tests.unit.cluster.rogue import SECRET

LOW, HIGH = "0" * 8, "z" * 8
SIDES = pytest.mark.parametrize(("a_id", "b_id"), [(LOW, HIGH), (HIGH, LOW)], ids=["decides", "is told"])


def member(name: str, peer_id: str, seed: int, *routes: object, **options: object) -> NodeMesh:
    key = NodeKey(SeededRng(seed).token(32))
    return node(  # type: ignore[arg-type]
        name, *routes, me=info(name, peer_id, key=key.public), sign=key.sign, authorization=SECRET, **options
    )


@SIDES
async def test_a_relay_that_is_named_as_the_address_of_a_node_links_nobody(a_id: str, b_id: str) -> None:
    a, b = member("a", a_id, 1), member("b", b_id, 2)
    await a.start()
    await b.start()
    relay = Proxy(route_to(b))
    came_up = []
    for mesh in (a, b):
        mesh.on_peers(came_up.append, lambda info: None)
    try:
        named = await relay.start()
        a.dialer.learn(b_id, f"{named.host}:{named.port}")
        await until(lambda: a.counters.refused + b.counters.refused >= 2)
        await asyncio.sleep(0.2)
        assert not came_up, "neither of the two took the other for linked"
        a.dialer.learn(b_id, b.me.cluster_url)
        await until(lambda: full(a, b))
        assert {link.stats.port for link in a.links.values()} == {route_to(b).port}
    finally:
        await stop(a, b)
        await relay.stop()


@SIDES
@pytest.mark.parametrize("listen", [{"host": "127.0.0.1"}, {"host": "0.0.0.0"}, {"advertise": "localhost"}])
async def test_the_addresses_of_a_node_lead_to_it(a_id: str, b_id: str, listen: dict[str, str]) -> None:
    a, b = member("a", a_id, 1), member("b", b_id, 2, **listen)
    await a.start()
    await b.start()
    try:
        a.dialer.learn(b_id, b.me.cluster_url.replace("0.0.0.0", "127.0.0.1"))
        await until(lambda: full(a, b))
    finally:
        await stop(a, b)


@SIDES
async def test_a_configured_route_may_lead_through_a_relay(a_id: str, b_id: str) -> None:
    b = member("b", b_id, 2)
    await b.start()
    relay = Proxy(route_to(b))
    a = member("a", a_id, 1, await relay.start())
    await a.start()
    try:
        await until(lambda: full(a, b))
    finally:
        await stop(a, b)
        await relay.stop()


def test_own_addresses() -> None:
    assert own_addresses("h:1", ("::ffff:10.0.0.1", 2)) == ("h:1", "10.0.0.1:2")
    assert own_addresses("0.0.0.0:1", ("10.0.0.1", 1)) == ("10.0.0.1:1",)
    assert own_addresses("", None) == ()
    assert own_addresses("[::]:1", ("fd00::1", 1)) == ("[fd00::1]:1",)
