"""Peers and strangers that a mesh refuses (mesh/mesh.py)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.mesh.auth import Handshake, Reason, RouteCredentials, derive_key, encode_refused
from jetcluster.mesh.frames import Kind, frame
from jetcluster.mesh.info import encode_info
from tests.unit.cluster.mesh_support import Heard, full, info, node, route_to, until
from tests.unit.mesh.rig import HIGH, LOW, SECRET, Start, Stranger, greeting_of, linked


async def test_same_secret_forms_a_mesh_also_with_credentials_of_the_route_url(start: Start) -> None:
    a = await start(node("a", authorization=SECRET))
    b = await start(node("b", route_to(a), authorization=SECRET))
    c = await start(node("c", route_to(a, credentials=SECRET), authorization=SECRET))
    await until(lambda: full(a, b, c))


@pytest.mark.parametrize(
    ("wrong", "credentials"),
    [
        (RouteCredentials("route", "guess"), None),
        (SECRET, RouteCredentials("route", "guess")),
        (None, None),
        (None, RouteCredentials("route", "guess")),
    ],
)
async def test_wrong_or_no_secret_is_refused_and_logged(
    start: Start, caplog: pytest.LogCaptureFixture, wrong: RouteCredentials | None, credentials: RouteCredentials | None
) -> None:
    a = await start(node("a", authorization=SECRET))
    b = await start(node("b", route_to(a, credentials=credentials), authorization=wrong))
    await until(lambda: any("Error trying to connect to route" in text for text in caplog.messages))
    assert a.peers == b.peers == {}
    assert any("authorization" in text for text in caplog.messages)
    assert "s3cret" not in caplog.text
    assert "guess" not in caplog.text


async def test_a_member_that_is_refused_is_remembered_and_no_stranger(start: Start) -> None:
    a = await start(node("a", authorization=SECRET))
    other = RouteCredentials("route", "another")
    b = await start(node("b", route_to(a, credentials=other), authorization=other))
    await until(lambda: a.counters.refused + b.counters.refused > 0)
    assert a.refused_members == {} == b.refused_members
    a.members = a.members._replace(knows=lambda peer: peer == b.me.peer_id)
    b.members = b.members._replace(knows=lambda peer: peer == a.me.peer_id)
    await until(lambda: bool(a.refused_members or b.refused_members))
    for mesh, peer_id in ((a, b.me.peer_id), (b, a.me.peer_id)):
        for peer, (reason, at) in mesh.refused_members.items():
            assert (peer, reason) == (peer_id, "authorization violation")
            assert 0 <= mesh.clock.monotonic() - at < 60


async def test_a_node_with_a_secret_does_not_join_an_open_one(start: Start) -> None:
    a = await start(node("a"))
    b = await start(node("b", route_to(a), authorization=SECRET))
    await until(lambda: a.counters.refused + b.counters.refused > 0)
    assert a.peers == b.peers == {}


async def test_another_cluster_name_is_refused_and_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    a = await start(node("a", cluster="east"))
    b = await start(node("b", route_to(a), cluster="west"))
    await until(lambda: a.counters.refused >= 3)
    assert a.peers == b.peers == {}
    lines = [text for text in caplog.messages if "is not ours" in text]
    assert len(lines) == 2  # one at each side, however often it is tried
    assert "'west'" in lines[0] or "'east'" in lines[0]


async def test_the_missing_authorization_is_warned_of_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    a = await start(node("a", cluster="open"))
    b = await start(node("b", route_to(a), cluster="open"))
    await until(lambda: full(a, b))
    warnings = [text for text in caplog.messages if "no authorization" in text]
    assert len(warnings) == 2  # one per node


async def test_a_node_of_another_cluster_of_this_name_is_refused(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Either side may decide, and it may turn out later."""
    for low, high in (("X", "Y"), ("Y", "X")):
        caplog.clear()
        a = await start(node("a" + low, me=info("a" + low, LOW[:-1] + low, cluster_id=low)))
        b = await start(node("b" + high, route_to(a), me=info("b" + high, HIGH[:-1] + high, cluster_id=high)))
        await until(lambda: "another JetStream cluster" in caplog.text)
        assert a.peers == b.peers == {}
    c = await start(node("c", route_to(a)))
    await until(lambda: full(a, c))
    c.join_cluster("Z")
    await until(lambda: not a.peers and not c.peers)
    c.join_cluster(a.me.cluster_id)
    await until(lambda: full(a, c))


async def test_a_taken_name_is_refused_until_its_owner_is_gone(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    a, first = await linked(start, "twin")
    second = await start(node("twin", route_to(a)))
    await until(lambda: any("'twin' is taken" in text for text in caplog.messages))
    assert list(a.peers) == [first.me.peer_id]
    await first.stop()
    await until(lambda: list(a.peers) == [second.me.peer_id])


async def test_our_own_name_is_refused(start: Start) -> None:
    a = await start(node("a"))
    b = await start(node("a", route_to(a)))
    await until(lambda: a.counters.refused + b.counters.refused > 0)
    assert a.peers == b.peers == {}


async def test_an_unauthenticated_peer_cannot_go_on(start: Start) -> None:
    a = await start(node("a", authorization=SECRET))
    me = info("evil")
    async with Stranger(a) as stranger:
        handshake = Handshake(greeting_of(me, authorization=SECRET), derive_key("test", SECRET), dialer=True)
        stranger.writer.write(handshake.start())
        stranger.writer.write(frame(Kind.PROOF, b"0" * 32))
        stranger.writer.write(encode_info(me) + frame(Kind.RAFT, b"\x00\x00\x00\x01entry"))
        kinds = await stranger.until_closed()
    assert kinds[-1] == Kind.REFUSED
    assert Kind.PROOF not in kinds
    assert a.peers == {}


async def test_a_silent_stranger_is_closed_after_the_handshake_timeout(start: Start) -> None:
    a = await start(node("a", handshake_timeout=0.05))
    async with Stranger(a) as stranger:
        assert await stranger.until_closed() == [Kind.REFUSED]


async def test_strangers_are_limited(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.mesh.mesh.MAX_STRANGERS", 2)
    a = await start(node("a"))
    async with Stranger(a) as one, Stranger(a), Stranger(a) as three:
        assert await three.until_closed() == [Kind.REFUSED]
        assert not one.reader.at_eof()


async def test_strangers_are_few_where_the_store_needs_the_descriptors(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetcluster.mesh.mesh.MAX_STRANGERS_WHEN_SCARCE", 2)
    a = await start(node("a"))
    async with Stranger(a), Stranger(a), Stranger(a) as three:
        await asyncio.sleep(0.05)
        assert not three.reader.at_eof(), "there are enough"
        a.descriptors = DescriptorWatch(lambda: 10)  # every descriptor is one of the last
        async with Stranger(a) as four:
            assert await four.until_closed() == [Kind.REFUSED]
    b = await start(node("b", route_to(a)))
    await until(lambda: full(a, b))


async def test_who_has_proven_nothing_cannot_say_that_a_node_was_left_out(start: Start) -> None:
    """It would end the process: only a peer that knows the cluster's secret is believed."""
    mesh = await start(node("one", authorization=RouteCredentials("u", "p")))
    said: list[str] = []
    mesh.listener = Heard(lambda age, text: said.append(text))
    async with Stranger(mesh) as stranger:
        stranger.writer.write(encode_refused(Reason.LEFT_OUT, "1 go away"))
        await stranger.until_closed()
    assert said == []
