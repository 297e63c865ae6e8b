"""The TCP mesh on loopback (mesh/mesh.py)."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from jetcluster.auth.certificates import route_check
from jetcluster.clock import SystemRng
from jetcluster.config.tls import client_context, server_context
from jetcluster.config.tls_options import TlsOptions
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.auth import Handshake
from jetcluster.mesh.frames import Kind, frame
from jetcluster.mesh.info import encode_info
from jetcluster.mesh.interest import MeshInterest
from jetcluster.mesh.link import TcpLink
from jetcluster.mesh.options import ConfiguredRoute, MeshTls
from testkit.certificates import Authority, pin_of
from tests.unit.cluster.mesh_support import FakeSwitchboard, Heard, Proxy, full, info, node, receive, route_to, until
from tests.unit.mesh.rig import HIGH, LOW, MIDDLE, SECRET, Start, Stranger, greeting_of, linked, starting


async def test_three_nodes_form_a_full_mesh_from_one_seed_route(start: Start) -> None:
    seed, b, c = await linked(start, "b", "c")
    assert b.peers[c.me.peer_id].cluster_url == c.me.cluster_url
    assert b.settled and c.settled
    await asyncio.sleep(0.05)
    assert sum(mesh.connections for mesh in (seed, b, c)) == 6  # one TCP connection per pair


async def test_all_nodes_name_all_routes_including_themselves(start: Start) -> None:
    first = await start(node("a"))
    routes = [route_to(first)]
    b = await start(node("b", *routes))
    c = await start(node("c", *routes, route_to(b)))
    d = node("d", *routes, route_to(b), route_to(c))
    await start(d)
    d.dialer.start((route_to(d),))
    await until(lambda: full(first, b, c, d))
    await until(lambda: d.settled)
    assert d.me.peer_id not in d.peers
    assert all(mesh.counters.refused == 0 for mesh in (first, b, c, d))


async def test_nodes_that_dial_each_other_at_once_keep_one_connection_and_never_flap(start: Start) -> None:
    duplicates = 0
    for _ in range(5):
        a, b = node("a"), node("b")
        await start(a)
        await start(b)
        ups: list[str] = []
        for mesh in (a, b):
            mesh.on_peers(
                lambda peer, ups=ups: ups.append(peer.name),
                lambda peer, ups=ups: ups.append("down"),
            )
        a.dialer.start((route_to(b),))
        b.dialer.start((route_to(a),))
        await until(lambda a=a, b=b: full(a, b))
        await asyncio.sleep(0.05)
        assert sorted(ups) == ["a", "b"]
        assert a.connections == b.connections == 1
        near, far = a.links[b.me.peer_id], b.links[a.me.peer_id]
        assert near.stats.did_solicit != far.stats.did_solicit  # both kept the same one
        duplicates += a.counters.duplicates + b.counters.duplicates
    assert duplicates > 0


@pytest.mark.parametrize("mine", [LOW, HIGH])
async def test_a_second_connection_of_a_live_peer_is_settled_by_the_lower_id(start: Start, mine: str) -> None:
    """The lower id refuses it; the higher id goes along when the lower one chooses the new connection."""
    server = await start(node("server", me=info("server", mine)))
    me = info("client", MIDDLE, "BBBBBBBB")
    events: list[str] = []
    server.on_peers(lambda peer: events.append("up"), lambda peer: events.append("down"))
    async with Stranger(server) as one, Stranger(server) as two:
        handshakes = [Handshake(greeting_of(me), b"", dialer=True) for _ in range(2)]
        await one.authenticate(handshakes[0])
        one.writer.write(encode_info(me))
        await until(lambda: bool(server.peers))
        rest = await two.authenticate(handshakes[1])
        if mine == LOW:
            assert [*(kind for kind, _ in rest), *await two.until_closed()] == [Kind.REFUSED]
            assert events == ["up"]
            assert server.counters.duplicates == 1
        else:
            two.writer.write(encode_info(me))
            await one.until_closed()
            await until(lambda: events == ["up", "down", "up"])


async def test_a_restarted_peer_replaces_its_old_connection_at_once(start: Start) -> None:
    server = await start(node("server", me=info("server", LOW)))
    events: list[str] = []
    server.on_peers(lambda peer: events.append(peer.boot_id), lambda peer: events.append("down " + peer.boot_id))
    async with Stranger(server) as one, Stranger(server) as two:
        for stranger, boot in ((one, "11111111"), (two, "22222222")):
            me = info("client", MIDDLE, boot)
            await stranger.authenticate(Handshake(greeting_of(me), b"", dialer=True))
            stranger.writer.write(encode_info(me))
            await until(lambda boot=boot: boot in events)
        assert events == ["11111111", "down 11111111", "22222222"]
        await one.until_closed()


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b'CONNECT {"verbose":false}\r\nPING\r\n',
    b"\x00" * 100,
    b"\xff" * 100_000,
    b"\x80\x04\x95pickle",
    struct.pack("!IB", 9000, Kind.HELLO) + b"x" * 9000,
    frame(Kind.HELLO, b"jcmesh\x01" + b"x" * 100),
    frame(Kind.HELLO, b"jcmesh\x02" + b"x" * 100),
    frame(Kind.RAFT, b"\x00\x00\x00\x01entry"),
    frame(Kind.INFO, b"{}"),
    frame(Kind.PROOF, b"x" * 32),
    frame(Kind.REFUSED, b"\x04because"),
]


async def test_garbage_on_the_port_is_closed_and_harms_nobody(start: Start) -> None:
    a, b = await linked(start, "b", authorization=SECRET)
    downs: list[str] = []
    a.on_peers(lambda _: None, lambda peer: downs.append(peer.name))
    raft: list[bytes] = []
    receive(a, lambda peer, gid, entry: raft.append(entry))
    for garbage in GARBAGE:
        async with Stranger(a) as stranger:
            stranger.writer.write(garbage)
            kinds = await stranger.until_closed()
            assert set(kinds) <= {Kind.REFUSED}, garbage[:20]
    assert a.counters.malformed >= 9
    assert raft == []
    assert downs == []
    assert await a.call(b.me.peer_id, "mesh.sync", b"") == b""


async def test_reconnect_after_a_cut(start: Start) -> None:
    a, b = await linked(start, "b")
    events: list[str] = []
    for mesh in (a, b):
        mesh.on_peers(
            lambda peer, me=mesh.me.name: events.append(f"{me} up"),
            lambda peer, me=mesh.me.name: events.append(f"{me} down"),
        )
    events.clear()
    started = time.monotonic()
    a.cut(b.me.peer_id)
    assert events == ["a down"]
    await until(lambda: events.count("a up") == 1 and events.count("b up") == 1)
    assert time.monotonic() - started < 2.0
    assert [event for event in events if event[0] == "a"] == ["a down", "a up"]
    assert [event for event in events if event[0] == "b"] == ["b down", "b up"]


async def test_learned_peers_find_each_other_again_without_the_seed(start: Start) -> None:
    seed, b, c = await linked(start, "b", "c", seed="seed")
    await seed.stop()
    b.cut(c.me.peer_id)
    await until(lambda: c.me.peer_id in b.peers and b.me.peer_id in c.peers)


async def test_a_seed_that_starts_later_is_found(start: Start) -> None:
    probe = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    b = await start(node("b", ConfiguredRoute("127.0.0.1", port)))
    assert not b.settled
    await asyncio.sleep(0.15)
    a = await start(node("a", port=port))
    await until(lambda: full(a, b))
    assert b.settled


async def test_frames_of_an_old_connection_never_follow_a_new_peer_up(start: Start) -> None:
    """Cut at random moments under load: between a peer's `up` and `down` only that connection's frames arrive."""
    a, b = await linked(start, "b")
    events: list[Any] = []
    era = 0

    def a_up(_: object) -> None:
        nonlocal era
        era += 1

    a.on_peers(a_up, lambda _: None)
    b.on_peers(lambda _: events.append("up"), lambda _: events.append("down"))
    receive(b, lambda peer, gid, entry: events.append(gid))
    rng = SystemRng()
    for _ in range(8):
        await until(lambda: full(a, b))
        for _ in range(rng.randrange(6)):
            for number in range(200):
                a.send_raft(b.me.peer_id, era, b"x" * (number * 10))
            await asyncio.sleep(0)
        (a if rng.randrange(2) else b).cut((b if a.peers else a).me.peer_id)
        a.cut(b.me.peer_id)
    await until(lambda: full(a, b))
    states = [event for event in events if isinstance(event, str)]
    assert states[:1] == ["up"]
    assert all(one != other for one, other in itertools.pairwise(states))
    current: set[int] = set()
    seen: set[int] = set()
    connected = False
    for event in events:
        if isinstance(event, str):
            seen |= current
            current = set()
            connected = event == "up"
        else:
            assert connected
            assert event not in seen
            current.add(event)
            assert len(current) == 1


@pytest.mark.parametrize("restore", [False, True])
async def test_a_silently_dead_connection_is_noticed_and_replaced(start: Start, restore: bool) -> None:
    a = await start(node("a", stale_after=1.2))
    proxy = Proxy(route_to(a))
    try:
        b = await start(node("b", await proxy.start(), stale_after=1.2, advertise=""))
        await until(lambda: full(a, b))
        for mesh in (a, b):  # or they would find each other around the proxy
            for target in list(mesh.dialer.targets.values()):
                if not target.configured:
                    target.task.cancel()  # type: ignore[union-attr]
        downs: list[float] = []
        started = time.monotonic()
        a.on_peers(lambda _: None, lambda _: downs.append(time.monotonic() - started))
        b.on_peers(lambda _: None, lambda _: downs.append(time.monotonic() - started))
        await asyncio.sleep(0.3)
        assert downs == []
        proxy.swallow = True
        await until(lambda: len(downs) == 2)
        assert max(downs) < 4.0
        assert a.counters.stale + b.counters.stale >= 1
        if restore:
            proxy.swallow = False
            await until(lambda: full(a, b))
    finally:
        await proxy.stop()


async def test_idle_links_stay_up(start: Start) -> None:
    a, b = await linked(start, "b", stale_after=1.3)
    await asyncio.sleep(1.8)
    assert full(a, b)
    assert a.counters.links_down == b.counters.links_down == 0
    assert 0 < a.links[b.me.peer_id].stats.rtt < 0.5


async def test_bytes_that_no_heartbeat_can_overtake_are_bounded(start: Start) -> None:
    a, b = await linked(start, "b")
    for link in (*a.links.values(), *b.links.values()):
        assert isinstance(link, TcpLink)
        assert link._transport is not None
        sock = link._transport.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            assert sock.getsockopt(socket.SOL_SOCKET, option) <= 2 * a.options.socket_buffer
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_requests_over_tcp(start: Start) -> None:
    a, b = await linked(start, "b")

    async def echo(peer: str, payload: bytes) -> bytes:
        return payload

    async def never(peer: str, payload: bytes) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    b.serve("echo", echo)
    b.serve("never", never)
    big = bytes(range(256)) * 20_000
    assert await a.call(b.me.peer_id, "echo", big) == big
    with pytest.raises(MeshError, match="no answer within"):
        await a.call(b.me.peer_id, "never", b"", timeout=0.05)
    waiting = asyncio.ensure_future(a.call(b.me.peer_id, "never", b"", timeout=10))
    await asyncio.sleep(0.01)
    b.cut(a.me.peer_id)
    with pytest.raises(MeshError, match="lost the connection"):
        await waiting


async def test_interest_barrier_and_messages_over_tcp(start: Start) -> None:
    boards = [FakeSwitchboard(), FakeSwitchboard(("$G", b"b.>", b"q", 2))]
    a, b = node("a"), node("b")
    loop = asyncio.get_running_loop()
    for mesh, board in zip((a, b), boards, strict=True):
        MeshInterest(mesh, board, mesh.clock, loop)
    await start(a)
    await start(b)
    b.dialer.start((route_to(a),))
    await until(lambda: full(a, b))
    await asyncio.gather(a.sync_interest(2.0), b.sync_interest(2.0))
    assert boards[0].remote == {b.me.peer_id: {("$G", b"b.>", b"q"): 2}}
    for number in range(1000):
        boards[0].change("$G", b"s.%d" % number, None, 1)
    await a.sync_interest(2.0)
    assert len(boards[1].remote[a.me.peer_id]) == 1000
    link = boards[0].links[b.me.peer_id]
    for number in range(2000):
        link.send_msg("$G", b"b.x", b"", [b"q"], b"", b"%d" % number + b"x" * 2000)
    await until(lambda: len(boards[1].messages) == 2000)
    assert [int(message[6].rstrip(b"x")) for message in boards[1].messages] == list(range(2000))
    assert boards[0].messages == []
    assert isinstance(link, TcpLink)
    assert link.stats.out_msgs == b.links[a.me.peer_id].stats.in_msgs == 2000
    assert link.stats.out_bytes > 4_000_000
    assert b.links[a.me.peer_id].stats.in_bytes > 4_000_000


def mesh_tls(authority: Authority, name: str, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> MeshTls:
    cert, key = map(str, authority.issue(name, hosts))
    tls = TlsOptions(cert_file=cert, key_file=key, ca_file=str(authority.file))
    return MeshTls(server_context(tls, mutual=True), client_context(tls))


async def test_routes_whose_certificates_are_named(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pins and known hosts: who may be a route, also after they have changed."""
    (tmp_path / "mesh").mkdir()
    authority = Authority(tmp_path / "mesh")
    plain = {name: mesh_tls(authority, name) for name in ("a", "b", "c")}
    pins = {name: pin_of(tmp_path / "mesh" / f"{name}.pem") for name in plain}
    only_b = replace(plain["a"], check=route_check([pins["b"]], ["nats://localhost:1"], None))
    a = await start(node("a", tls=only_b))
    await start(node("b", route_to(a), tls=plain["b"]))
    await start(node("c", route_to(a), tls=plain["c"]))
    await until(lambda: a.counters.refused > 0 and len(a.peers) == 1)
    assert [peer.name for peer in a.peers.values()] == ["b"]
    assert "certificate not pinned" in caplog.text
    a.set_tls(replace(plain["a"], check=route_check([pins["c"]], None, None)))
    await until(lambda: [peer.name for peer in a.peers.values()] == ["c"])
    a.set_tls(replace(plain["a"], check=route_check([], ["nats://elsewhere:1"], None)))
    await until(lambda: not a.peers)


async def test_routes_with_tls(start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    a = await start(node("a", tls=mesh_tls(authority, "a")))
    b = await start(node("b", route_to(a), tls=mesh_tls(authority, "b")))
    await until(lambda: full(a, b))
    assert "has no authorization" not in caplog.text
    frames: list[bytes] = []
    receive(a, lambda peer, gid, frame: frames.append(frame))
    large = bytes(2_000_000)
    for text in (b"one", large, b"two"):
        assert b.send_raft(a.me.peer_id, 1, text)
    await until(lambda: frames == [b"one", large, b"two"])
    await start(node("plain", route_to(a)))
    await start(node("foreign", route_to(a), tls=mesh_tls(other, "foreign")))
    misnamed = await start(node("c", tls=mesh_tls(authority, "c", ("elsewhere",))))
    await start(node("d", route_to(misnamed), tls=mesh_tls(authority, "d")))
    for told in (
        "to the cluster port: TLS handshake error: the other end does not speak TLS",
        "TLS handshake error: the other end's certificate is refused: ",
        "IP address mismatch",
    ):
        await until(lambda told=told: told in caplog.text, what=told)
    assert full(a, b)
    assert not misnamed.peers


async def test_client_urls_and_changed_info_reach_the_peers(start: Start) -> None:
    a = await start(node("a"))
    seen: list[tuple[str, ...]] = []
    a.listener = Heard(client=seen.append)
    b = await start(node("b", route_to(a), me=info("b", client_url="0.0.0.0:4222")))
    await until(lambda: seen == [("127.0.0.1:4222",)])
    await until(lambda: full(a, b))
    me = b.me
    b.update_me(type(me)(me.peer_id, me.name, me.boot_id, me.cluster_url, "", me.tags, me.jetstream))
    await until(lambda: seen == [("127.0.0.1:4222",), ()])


async def test_stop_tells_listeners_and_peers_and_sends_what_is_queued(start: Start) -> None:
    a, b = await linked(start, "b")
    notes: list[bytes] = []
    a.on_notice("bye", lambda peer, payload: notes.append(payload))
    downs: list[str] = []
    b.on_peers(lambda _: None, lambda peer: downs.append(peer.name))
    b.notify(None, "bye", b"last words")
    await b.stop()
    assert downs == ["a"]
    await until(lambda: a.peers == {})
    assert notes == [b"last words"]
    assert not b.connections


@pytest.mark.parametrize(
    ("advertise", "expected"),
    [("", "127.0.0.1:{port}"), ("node1.example", "node1.example:{port}"), ("10.0.0.1:7000", "10.0.0.1:7000")],
)
async def test_the_advertised_address(start: Start, advertise: str, expected: str) -> None:
    a = await start(node("a", advertise=advertise))
    assert a._server is not None
    assert a.me.cluster_url == expected.format(port=a._server.sockets[0].getsockname()[1])


async def test_an_address_in_use_is_an_error(start: Start) -> None:
    a = await start(node("a"))
    taken = node("b", port=route_to(a).port)
    with pytest.raises(OSError):
        await taken.start()


@pytest.mark.parametrize(
    "scenario",
    [
        test_three_nodes_form_a_full_mesh_from_one_seed_route,
        test_nodes_that_dial_each_other_at_once_keep_one_connection_and_never_flap,
        test_garbage_on_the_port_is_closed_and_harms_nobody,
        test_reconnect_after_a_cut,
        test_frames_of_an_old_connection_never_follow_a_new_peer_up,
        test_requests_over_tcp,
        test_interest_barrier_and_messages_over_tcp,
        test_stop_tells_listeners_and_peers_and_sends_what_is_queued,
    ],
    ids=lambda scenario: scenario.__name__.removeprefix("test_"),
)
def test_on_uvloop(scenario: Callable[[Start], Awaitable[None]]) -> None:
    """The loop that `jetcluster serve` runs on; the tests above run on asyncio's own."""

    async def main() -> None:
        async with starting() as start_one:
            await scenario(start_one)

    uvloop.run(main())


@pytest.mark.parametrize("ids", [(LOW, HIGH), (HIGH, LOW)])
async def test_raft_frames_sent_when_a_link_comes_up_do_not_overtake_the_handshake(
    start: Start, ids: tuple[str, str]
) -> None:
    """A group greets its peers the moment the link is up; the other side may still wait for our INFO."""
    first = await start(node("a", me=info("a", ids[0])))
    second = node("b", route_to(first), me=info("b", ids[1]))
    received: list[tuple[str, int, bytes]] = []
    for mesh in (first, second):
        receive(mesh, lambda peer, gid, frame: received.append((peer, gid, frame)))
        mesh.on_peers(lambda up, mesh=mesh: mesh.send_raft(up.peer_id, 5, b"hello") and None, lambda down: None)  # type: ignore[misc]
    await start(second)
    await until(lambda: len(received) == 2, what="both greetings")
    assert sorted(received) == [(LOW, 5, b"hello"), (HIGH, 5, b"hello")]
    assert [mesh.counters.malformed for mesh in (first, second)] == [0, 0]
    assert [mesh.counters.links_down for mesh in (first, second)] == [0, 0]
