"""A member tells a node that it was left out of a rescued cluster: who is believed, and who is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from jetcluster.clock import SystemRng
from jetcluster.mesh.auth import Greeting, Handshake, Reason, encode_refused
from jetcluster.mesh.identity import NodeKey
from jetcluster.mesh.info import split_url
from jetcluster.mesh.mesh import NodeMesh
from tests.unit.cluster.fake_node import SECRET, Rogue
from tests.unit.cluster.mesh_support import Heard, admit, full, info, node, route_to, until
from tests.unit.mesh.rig import Start, starting

LOW, HIGH = "00000000", "zzzzzzzz"
MEMBER_KEY = NodeKey(SystemRng().token(32))


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with starting() as start_one:
        yield start_one


def knows_the_key(mesh: NodeMesh, *voters: str) -> None:
    admit(mesh, key_of=lambda peer: MEMBER_KEY.public, is_voter=lambda peer: peer in voters)


@pytest.mark.parametrize("ids", [(LOW, HIGH), (HIGH, LOW)])
@pytest.mark.parametrize("dials", ["the one left out", "the other one"])
async def test_a_node_that_was_left_out_is_refused_with_the_reason(
    start: Start, ids: tuple[str, str], dials: str
) -> None:
    member, old = info("member", ids[0], key=MEMBER_KEY.public), info("old", ids[1])
    said: list[tuple[int, str]] = []
    never: list[tuple[int, str]] = []
    first, second = (member, old) if dials == "the one left out" else (old, member)
    one = await start(node(first.name, me=first, sign=MEMBER_KEY.sign))
    two = node(second.name, route_to(one), me=second, sign=MEMBER_KEY.sign)
    meshes = {one.me.name: one, two.me.name: two}
    text = "rescued without öld\n" + 60 * "öld "  # longer than a refusal, cut in the middle of a character
    meshes["member"].leave_out({old.peer_id: (time.time_ns() - 7_000_000_000, text)})
    meshes["old"].listener = Heard(lambda age, text: said.append((age, text)))
    meshes["member"].listener = Heard(lambda age, text: never.append((age, text)))
    knows_the_key(meshes["old"], member.peer_id)
    await start(two)
    await until(lambda: bool(said), what="it gets the reason")
    assert said[0][0] in (7, 8) and said[0][1].startswith("rescued without öld?öld öld")
    assert not one.peers and not two.peers and not never


async def test_a_link_is_cut_when_its_peer_is_left_out(start: Start) -> None:
    one = await start(node("one", me=info("one", key=MEMBER_KEY.public), sign=MEMBER_KEY.sign))
    two = await start(node("two", route_to(one)))
    await until(lambda: full(one, two))
    said: list[str] = []
    two.listener = Heard(lambda age, text: said.append(text))
    knows_the_key(two, one.me.peer_id)
    one.leave_out({two.me.peer_id: (time.time_ns(), "rescued without two")})
    assert not one.peers
    await until(lambda: said == ["rescued without two"], what="it gets the reason when it dials again")


@pytest.mark.parametrize(
    "what", ["no signature", "another key", "of another text", "no voter", "no key is known", "a voter"]
)
async def test_who_has_the_password_alone_cannot_say_that_a_node_was_left_out(start: Start, what: str) -> None:
    """It would end the process, and its store."""
    mesh = await start(node("one", authorization=SECRET))
    said: list[tuple[int, str]] = []
    mesh.listener = Heard(lambda age, text: said.append((age, text)))
    stranger = Rogue(info("x"))
    knows_the_key(mesh, *(() if what == "no voter" else (stranger.me.peer_id,)))
    if what == "no key is known":
        admit(mesh, key_of=lambda peer: "")
    stranger.reader, stranger.writer = await asyncio.open_connection(*split_url(mesh.me.cluster_url))
    try:
        greeting = Greeting(stranger.me.peer_id, stranger.me.boot_id, "x", "test", SystemRng().token(32), True)
        handshake = Handshake(greeting, stranger.secret, dialer=True)
        stranger.writer.write(handshake.start())
        while not handshake.done:
            stranger.writer.write(handshake.receive(*await stranger.read()))
        text = "3 rescued without one"
        signed = handshake.last_word("4 rescued without one" if what == "of another text" else text, dialer=True)
        key = NodeKey(SystemRng().token(32)) if what == "another key" else MEMBER_KEY
        signature = b"" if what == "no signature" else key.sign(signed)
        stranger.writer.write(encode_refused(Reason.LEFT_OUT, text, signature))
        assert await stranger.closed()
    finally:
        stranger.close()
    assert said == ([(3, "rescued without one")] if what == "a voter" else [])
    assert mesh.counters.strangers == (what != "a voter")
