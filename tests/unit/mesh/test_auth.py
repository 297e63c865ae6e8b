"""The handshake between nodes (mesh/auth.py).

An address that others tell leads to the node that says it is there, and to nobody who only hands on
(mesh/auth.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.mesh.auth import (
    Greeting,
    Handshake,
    Reason,
    Refused,
    RouteCredentials,
    decode_refused,
    derive_key,
    encode_refused,
    own_addresses,
)
from jetcluster.mesh.frames import FrameError, FrameReader, Kind
from jetcluster.mesh.identity import NodeKey
from jetcluster.mesh.mesh import NodeMesh
from testkit.twins.time import SeededRng
from tests.unit.cluster.fake_node import SECRET
from tests.unit.cluster.mesh_support import Proxy, full, info, node, route_to, until
from tests.unit.mesh.rig import Start

GOOD = RouteCredentials("route", "s3cret")
KEY = derive_key("east", GOOD)


def greeting(name: str, *, cluster: str = "east", authorization: bool = True) -> Greeting:
    letter = name[0].upper()
    return Greeting(letter * 8, letter.lower() * 8, name, cluster, letter.encode() * 32, authorization)


DIALER, ACCEPTOR = greeting("dora"), greeting("anna")


def run(dialer: Greeting, dialer_key: bytes, acceptor: Greeting, acceptor_key: bytes) -> tuple[Handshake, Handshake]:
    """Passes frames between both sides until they are done; raises what either side raises."""
    d, a = Handshake(dialer, dialer_key, dialer=True), Handshake(acceptor, acceptor_key, dialer=False)
    assert a.start() == b""
    to_acceptor = d.start()
    while to_acceptor:
        to_dialer = feed(a, to_acceptor)
        to_acceptor = feed(d, to_dialer) if to_dialer else b""
    return d, a


def feed(side: Handshake, data: bytes) -> bytes:
    reader = FrameReader()
    answer = b"".join(side.receive(kind, reader.buffer[start:end]) for kind, start, end in reader.feed(data))
    assert reader.error is None
    return answer


def test_same_secret() -> None:
    d, a = run(DIALER, KEY, ACCEPTOR, KEY)
    assert d.done and a.done
    assert d.remote == ACCEPTOR
    assert a.remote == DIALER


@pytest.mark.parametrize(
    "other", [RouteCredentials("route", "wrong"), RouteCredentials("other", "s3cret"), RouteCredentials("", "")]
)
def test_another_secret_is_refused_by_the_acceptor_first(other: RouteCredentials) -> None:
    with pytest.raises(Refused, match="authorization violation") as refused:
        run(DIALER, derive_key("east", other), ACCEPTOR, KEY)
    assert refused.value.reason == Reason.AUTHORIZATION


def test_no_credentials_where_they_are_required() -> None:
    with pytest.raises(Refused, match="no credentials") as refused:
        run(replace(DIALER, authorization=False), b"", ACCEPTOR, KEY)
    assert refused.value.reason == Reason.AUTHORIZATION


def test_a_node_with_authorization_does_not_trust_one_without() -> None:
    with pytest.raises(Refused) as refused:
        run(DIALER, KEY, replace(ACCEPTOR, authorization=False), b"")
    assert refused.value.reason == Reason.AUTHORIZATION


def test_an_acceptor_that_only_pretends_to_need_the_secret_is_refused() -> None:
    with pytest.raises(Refused):
        run(DIALER, KEY, ACCEPTOR, derive_key("east", RouteCredentials("route", "guess")))


def test_route_credentials_without_own_authorization_join_an_open_cluster() -> None:
    d, a = run(replace(DIALER, authorization=False), KEY, replace(ACCEPTOR, authorization=False), b"")
    assert d.done and a.done


def test_other_cluster_name() -> None:
    with pytest.raises(Refused, match="west") as refused:
        run(replace(DIALER, cluster="west"), KEY, ACCEPTOR, KEY)
    assert refused.value.reason == Reason.CLUSTER


def test_itself_and_a_copied_store() -> None:
    with pytest.raises(Refused) as refused:
        run(DIALER, KEY, replace(DIALER, nonce=b"n" * 32), KEY)
    assert refused.value.reason == Reason.SELF
    with pytest.raises(Refused, match="copied") as refused:
        run(DIALER, KEY, replace(DIALER, boot_id="xxxxxxxx"), KEY)
    assert refused.value.reason == Reason.NAME


def test_a_proof_cannot_be_reflected() -> None:
    """An acceptor without the secret sends the dialer's own proof back."""
    dialer = Handshake(DIALER, KEY, dialer=True)
    proof = dialer.receive(Kind.CHALLENGE, ACCEPTOR.encode())
    with pytest.raises(Refused, match="authorization violation"):
        dialer.receive(Kind.PROOF, proof[5:])


def test_a_proof_cannot_be_replayed_to_another_nonce() -> None:
    dialer = Handshake(DIALER, KEY, dialer=True)
    proof = dialer.receive(Kind.CHALLENGE, ACCEPTOR.encode())
    acceptor = Handshake(replace(ACCEPTOR, nonce=b"z" * 32), KEY, dialer=False)
    acceptor.receive(Kind.HELLO, DIALER.encode())
    with pytest.raises(Refused, match="authorization violation"):
        acceptor.receive(Kind.PROOF, proof[5:])


@pytest.mark.parametrize("field", ["peer_id", "boot_id", "name"])
def test_a_proof_binds_who_the_dialer_is(field: str) -> None:
    dialer = Handshake(DIALER, KEY, dialer=True)
    proof = dialer.receive(Kind.CHALLENGE, ACCEPTOR.encode())
    acceptor = Handshake(ACCEPTOR, KEY, dialer=False)
    acceptor.receive(Kind.HELLO, replace(DIALER, **{field: "EEEEEEEE"}).encode())  # type: ignore[arg-type]
    with pytest.raises(Refused, match="authorization violation"):
        acceptor.receive(Kind.PROOF, proof[5:])


def test_frames_out_of_turn() -> None:
    with pytest.raises(FrameError):
        Handshake(ACCEPTOR, KEY, dialer=False).receive(Kind.PROOF, b"x" * 32)
    with pytest.raises(FrameError):
        Handshake(ACCEPTOR, KEY, dialer=False).receive(Kind.MSG, b"")
    d, _ = run(DIALER, KEY, ACCEPTOR, KEY)
    with pytest.raises(FrameError):
        d.receive(Kind.PROOF, b"x" * 32)


def test_another_version() -> None:
    body = bytearray(DIALER.encode())
    body[6] = 99
    with pytest.raises(Refused, match="version 99") as refused:
        Handshake(ACCEPTOR, KEY, dialer=False).receive(Kind.HELLO, bytes(body))
    assert refused.value.reason == Reason.VERSION


@given(st.binary(max_size=200), st.booleans())
def test_garbage_greetings(garbage: bytes, with_magic: bool) -> None:
    try:
        Greeting.decode((b"jcmesh\x01" if with_magic else b"") + garbage)
    except (FrameError, Refused):
        pass


@given(st.integers(0, 200), st.integers(1, 255))
def test_damaged_greetings(at: int, flip: int) -> None:
    body = bytearray(DIALER.encode())
    body[at % len(body)] ^= flip
    try:
        decoded = Greeting.decode(bytes(body))
    except (FrameError, Refused):
        return
    assert decoded != DIALER


def test_refusals_are_made_printable_and_short() -> None:
    encoded = encode_refused(Reason.BUSY, "line\r\n\x1b[31mred" + "x" * 1000)
    refused = decode_refused(encoded[5:])
    assert refused.by_peer
    assert refused.reason == Reason.BUSY
    assert str(refused).isprintable()
    assert len(str(refused)) <= 256
    for bad in (b"", b"\x00text", b"\xfftext"):
        with pytest.raises(FrameError):
            decode_refused(bad)


def test_keys_depend_on_cluster_user_and_password_and_passwords_are_not_shown() -> None:
    keys = {
        derive_key("a", RouteCredentials("u", "p")),
        derive_key("b", RouteCredentials("u", "p")),
        derive_key("a", RouteCredentials("v", "p")),
        derive_key("a", RouteCredentials("u", "q")),
    }
    assert len(keys) == 4
    assert "s3cret" not in repr(GOOD)


LOW, HIGH = "0" * 8, "z" * 8
SIDES = pytest.mark.parametrize(("a_id", "b_id"), [(LOW, HIGH), (HIGH, LOW)], ids=["decides", "follows"])


def member(name: str, peer_id: str, seed: int, *routes: object, **options: object) -> NodeMesh:
    key = NodeKey(SeededRng(seed).token(32))
    return node(  # type: ignore[arg-type]
        name, *routes, me=info(name, peer_id, key=key.public), sign=key.sign, authorization=SECRET, **options
    )


@SIDES
async def test_a_relay_that_is_named_as_the_address_of_a_node_links_nobody(start: Start, a_id: str, b_id: str) -> None:
    a, b = await start(member("a", a_id, 1)), await start(member("b", b_id, 2))
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
        await relay.stop()


@SIDES
@pytest.mark.parametrize("listen", [{"host": "127.0.0.1"}, {"host": "0.0.0.0"}, {"advertise": "localhost"}])
async def test_the_addresses_of_a_node_lead_to_it(start: Start, a_id: str, b_id: str, listen: dict[str, str]) -> None:
    a, b = await start(member("a", a_id, 1)), await start(member("b", b_id, 2, **listen))
    a.dialer.learn(b_id, b.me.cluster_url.replace("0.0.0.0", "127.0.0.1"))
    await until(lambda: full(a, b))


@SIDES
async def test_a_configured_route_may_lead_through_a_relay(start: Start, a_id: str, b_id: str) -> None:
    b = await start(member("b", b_id, 2))
    relay = Proxy(route_to(b))
    a = await start(member("a", a_id, 1, await relay.start()))
    try:
        await until(lambda: full(a, b))
    finally:
        await relay.stop()


def test_own_addresses() -> None:
    assert own_addresses("h:1", ("::ffff:10.0.0.1", 2)) == ("h:1", "10.0.0.1:2")
    assert own_addresses("0.0.0.0:1", ("10.0.0.1", 1)) == ("10.0.0.1:1",)
    assert own_addresses("", None) == ()
    assert own_addresses("[::]:1", ("fd00::1", 1)) == ("[fd00::1]:1",)
