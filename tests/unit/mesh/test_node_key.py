"""The key by which a node is known: its file, the signature of a link, and who is kept out by it."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jetcluster.clock import SystemRng
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.auth import Reason, encode_refused
from jetcluster.mesh.dialer import DialTarget
from jetcluster.mesh.frames import FrameError, Kind, encode_call, encode_notice, frame
from jetcluster.mesh.identity import KEY_FILE as FILE_NAME
from jetcluster.mesh.identity import IdentityError, NodeKey, load_identity, load_key, new_id, verify
from jetcluster.mesh.info import decode_info, decode_proof, encode_info
from jetcluster.mesh.link import is_local
from testkit.raft_frames import encode_raft
from testkit.twins.time import SeededRng
from tests.unit.cluster.fake_node import SECRET, Rogue
from tests.unit.cluster.mesh_support import admit, full, info, node, receive, route_to, stop, until

LOW, HIGH = "0" * 8, "z" * 8


def key_of(seed: int) -> NodeKey:
    return NodeKey(SeededRng(seed).token(32))


# -- the file


def test_a_key_is_made_once_and_belongs_to_its_store(tmp_path: Path) -> None:
    rng = SystemRng()
    key, identity = load_key(tmp_path, load_identity(tmp_path, "n1"), rng)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
    again, known = load_key(tmp_path, load_identity(tmp_path, "n1"), rng)
    assert again.public == key.public == identity.key == known.key
    assert verify(key.public, b"said", again.sign(b"said"))
    assert not verify(key.public, b"other", again.sign(b"said"))
    assert not verify(key.public, b"said", b"short")
    assert not verify("N" + "A" * 55, b"said", again.sign(b"said"))


@pytest.mark.parametrize("content", [None, "", "rubbish", "SUAM"])
def test_a_store_without_its_key_is_not_the_node_that_the_others_know(tmp_path: Path, content: str | None) -> None:
    load_key(tmp_path, load_identity(tmp_path, "n1"), SystemRng())
    if content is None:
        (tmp_path / FILE_NAME).unlink()
    else:
        (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(IdentityError, match="Put back what is missing, or move"):
        load_key(tmp_path, load_identity(tmp_path, "n1"), SystemRng())


def test_the_key_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        load_key(tmp_path / name, load_identity(tmp_path / name, name), SystemRng())
    (tmp_path / "a" / FILE_NAME).write_bytes((tmp_path / "b" / FILE_NAME).read_bytes())
    with pytest.raises(IdentityError, match="another store"):
        load_key(tmp_path / "a", load_identity(tmp_path / "a", "a"), SystemRng())


def test_a_crash_between_key_and_identity_makes_another_key(tmp_path: Path) -> None:
    """Nobody knows the first one yet."""
    (tmp_path / FILE_NAME).write_text("SNAM, cut off")
    key, identity = load_key(tmp_path, load_identity(tmp_path, "n1"), SystemRng())
    assert identity.key == key.public


def test_info_carries_key_and_signature_and_versions_before_are_understood() -> None:
    key = key_of(1)
    me = info("a", key=key.public)
    body = encode_info(me, key.sign(b"x"))[5:]
    assert decode_info(body, "").key == key.public
    assert decode_proof(body).signature == key.sign(b"x")
    before = encode_info(info("a"))[5:]
    assert (decode_info(before, "").key, decode_proof(before).signature) == ("", b"")
    assert b"key" not in before, "a node without a key says what it always said"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", 5),
        ("key", "NABC"),
        ("key", "U" * 56),
        ("key", "x" * 600),
        ("signature", "00"),
        ("signature", 1),
        ("bound", "00"),
        ("at", "a:1"),
        ("at", ["a:1"] * 5),
        ("at", [1]),
        ("dialled", 1),
    ],
)
def test_what_is_no_key_and_no_signature_is_refused(field: str, value: Any) -> None:
    import json

    data = json.loads(encode_info(info("a"))[5:])
    body = json.dumps({**data, field: value}).encode()
    with pytest.raises(FrameError):
        decode_info(body, "")
        decode_proof(body)


@pytest.mark.parametrize(
    ("ip", "own", "local"),
    [
        ("127.0.0.1", ("127.0.0.1", 1), True), ("127.3.2.1", None, True), ("::1", ("::1", 1, 0, 0), True),
        ("::ffff:127.0.0.1", None, True), ("192.168.1.5", ("192.168.1.5", 6222), True),
        ("192.168.1.6", ("192.168.1.5", 6222), False), ("", None, False), ("::ffff:10.0.0.1", None, False),
    ],
)  # fmt: skip
def test_who_is_on_this_machine(ip: str, own: Any, local: bool) -> None:
    assert is_local(ip, own) is local


# -- links


@pytest.fixture(autouse=True)
async def _all_closed() -> AsyncIterator[None]:
    yield
    Rogue.close_all()


class Member:
    """A node with a key, as the others know it."""

    def __init__(self, name: str, peer_id: str, seed: int, *routes: Any, **options: Any) -> None:
        self.key = key_of(seed)
        self.me = info(name, peer_id, key=self.key.public)
        options.setdefault("authorization", SECRET)
        self.mesh = node(name, *routes, me=self.me, sign=self.key.sign, **options)


@contextlib.asynccontextmanager
async def members(a_id: str, b_id: str, **options: Any) -> AsyncIterator[tuple[Member, Member]]:
    """Two that know each other's keys; B is linked with A."""
    a = Member("a", a_id, 1, **options)
    await a.mesh.start()
    b = Member("b", b_id, 2, route_to(a.mesh), **options)
    known = {a_id: a.key.public, b_id: b.key.public}
    for one in (a, b):
        admit(one.mesh, key_of=lambda peer: known.get(peer, ""))
    await b.mesh.start()
    await until(lambda: full(a.mesh, b.mesh))
    try:
        yield a, b
    finally:
        await stop(a.mesh, b.mesh)


SIDES = pytest.mark.parametrize(("a_id", "b_id"), [(LOW, HIGH), (HIGH, LOW)], ids=["decides", "follows"])
"""Which of the two says which connection is to be the link."""


@SIDES
async def test_nobody_takes_the_place_of_a_member(a_id: str, b_id: str) -> None:
    """With the password, under B's id and name: without a key, with an own one, with B's and a wrong signature."""
    async with members(a_id, b_id) as (a, b):
        link = a.mesh.links[b_id]
        attacks = [
            Rogue(info("b", b_id)),
            Rogue(info("b", b_id, key=key_of(9).public), key=key_of(9)),
            Rogue(info("b", b_id, key=b.key.public)),
            Rogue(info("b", b_id, key=b.key.public), key=key_of(9)),
        ]
        replayed = Rogue(info("b", b_id, b.me.boot_id, key=b.key.public))
        replayed.signature = b.key.sign(b"jcmesh node\0dialer\0" + b"of another link")
        for rogue in [*attacks, replayed]:
            await rogue.meet(a.mesh)
            assert await rogue.closed()
            assert not rogue.up
            assert a.mesh.links.get(b_id) is link, "the member's own link stands"
            rogue.close()
        assert [r.refused.reason for r in attacks if r.refused] == [Reason.AUTHORIZATION] * len(attacks)


@SIDES
async def test_a_member_that_restarted_takes_its_own_place(a_id: str, b_id: str) -> None:
    async with members(a_id, b_id) as (a, b):
        link = a.mesh.links[b_id]
        me = replace(b.me, boot_id=new_id(SystemRng()))
        again = await Rogue(me, key=b.key).meet(a.mesh)
        assert again.up
        assert a.mesh.links[b_id] is not link
        assert a.mesh.peers[b_id].boot_id == me.boot_id
        again.close()


@SIDES
async def test_a_signature_of_one_link_is_of_no_use_on_another(a_id: str, b_id: str) -> None:
    async with members(a_id, b_id) as (a, b):
        genuine = Rogue(replace(b.me, boot_id=new_id(SystemRng())), key=b.key)
        await genuine.meet(a.mesh)
        assert genuine.up
        replayed = Rogue(genuine.me)
        replayed.signature = b.key.sign(genuine.handshake.statement(dialer=True))
        genuine.close()
        await until(lambda: a.mesh.peers.get(b_id) is None or a.mesh.peers[b_id].boot_id != genuine.me.boot_id)
        await replayed.meet(a.mesh)
        assert await replayed.closed()
        assert not replayed.up
        reflected = Rogue(genuine.me)
        reflected.signature = b""
        await reflected.meet(a.mesh)
        assert not reflected.up


@SIDES
async def test_whoever_comes_while_a_member_is_away_is_not_taken_for_it(a_id: str, b_id: str) -> None:
    async with members(a_id, b_id) as (a, b):
        await b.mesh.dialer.stop()
        b.mesh.links[a_id].close("gone")
        await until(lambda: not a.mesh.links)
        half = Rogue(info("b", b_id))
        await asyncio.gather(half.meet(a.mesh), return_exceptions=True)
        assert not half.up
        genuine = await Rogue(replace(b.me, boot_id=new_id(SystemRng())), key=b.key).meet(a.mesh)
        assert genuine.up
        genuine.close()


@pytest.mark.parametrize("same_life", [True, False])
async def test_a_stranger_that_says_nothing_does_not_keep_a_member_out(same_life: bool) -> None:
    """Under its id and with the password it is let in so far as to be asked for a signature."""
    async with members(LOW, HIGH) as (a, b):
        await b.mesh.dialer.stop()
        b.mesh.links[LOW].close("gone")
        await until(lambda: not a.mesh.links)
        mute = Rogue(info("b", HIGH, b.me.boot_id if same_life else None))
        mute.tell = lambda: None  # type: ignore[method-assign]
        waiting = asyncio.ensure_future(mute.meet(a.mesh))
        await until(lambda: HIGH in a.mesh._chosen)
        genuine = await Rogue(b.me, key=b.key).meet(a.mesh)
        assert genuine.up
        assert not waiting.done(), "the stranger is still being waited for"
        genuine.close()
        await waiting
        assert not mute.up


async def test_of_two_connections_of_a_member_the_first_signature_counts() -> None:
    async with members(LOW, HIGH) as (a, b):
        await b.mesh.dialer.stop()
        b.mesh.links[LOW].close("gone")
        await until(lambda: not a.mesh.links)
        both = [Rogue(b.me, key=b.key) for _ in range(4)]
        await asyncio.gather(*(one.meet(a.mesh) for one in both))
        assert [one.refused.reason for one in both if one.refused] == [Reason.DUPLICATE] * 3
        link = a.mesh.links[HIGH]
        late = await Rogue(b.me, key=b.key).meet(a.mesh)
        assert late.refused is not None and late.refused.reason == Reason.DUPLICATE
        assert a.mesh.links[HIGH] is link
        assert not a.mesh.counters.malformed


@SIDES
async def test_two_members_that_dial_each_other_at_once_have_one_link(a_id: str, b_id: str) -> None:
    for _ in range(8):
        async with members(a_id, b_id) as (a, b):
            a.mesh.dialer.learn(b_id, b.mesh.me.cluster_url)
            for _ in range(4):
                for one in (a.mesh, b.mesh):
                    for link in list(one.links.values()):
                        link.close("again")
                await until(lambda: full(a.mesh, b.mesh))
            await asyncio.sleep(0.05)
            assert full(a.mesh, b.mesh)
            assert not a.mesh.counters.malformed and not b.mesh.counters.malformed


async def test_a_refusal_of_a_link_that_is_up_here_is_sent() -> None:
    async with members(HIGH, LOW) as (a, b):
        a.mesh.links[LOW].send(encode_refused(Reason.NAME, "taken"))
        link = b.mesh.links[HIGH]
        await until(lambda: link.closed)
        assert link.close_reason == "refused by the peer: taken"  # type: ignore[attr-defined]
        assert not b.mesh.counters.malformed


@SIDES
async def test_links_of_strangers_are_limited_and_members_come_in(
    a_id: str, b_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetcluster.mesh.mesh.MAX_OUTSIDERS", 3)
    async with members(a_id, b_id) as (a, b):
        admit(a.mesh, is_member=lambda peer: peer == b_id)
        strangers = [await Rogue(info(f"s{n}")).meet(a.mesh) for n in range(5)]
        assert [rogue.up for rogue in strangers] == [True] * 3 + [False] * 2
        assert strangers[3].refused is not None and strangers[3].refused.reason == Reason.BUSY
        again = await Rogue(replace(strangers[0].me, boot_id=new_id(SystemRng()))).meet(a.mesh)
        assert again.up, "one that is linked may come again"
        a.mesh.links[b_id].close("gone")
        await until(lambda: full(b.mesh, a.mesh) or b_id in a.mesh.links)
        again.close()
        await until(lambda: len(a.mesh.links) == 3)
        assert (await Rogue(info("s9")).meet(a.mesh)).up


@SIDES
async def test_a_stranger_under_the_name_of_a_member_makes_way_for_it(a_id: str, b_id: str) -> None:
    async with members(a_id, b_id) as (a, b):
        admit(a.mesh, knows=lambda peer: peer == b_id, is_member=lambda peer: peer == b_id)
        await b.mesh.dialer.stop()
        b.mesh.links[a_id].close("gone")
        await until(lambda: not a.mesh.links)
        named = await Rogue(info("b", "x" * 8)).meet(a.mesh)
        assert named.up, "a node that lost its store comes like this"
        half = await Rogue(info("b", b_id)).meet(a.mesh)
        assert not half.up
        assert "x" * 8 in a.mesh.links
        genuine = await Rogue(b.me, key=b.key).meet(a.mesh)
        assert genuine.up
        assert set(a.mesh.links) == {b_id}
        late = await Rogue(info("b", "y" * 8)).meet(a.mesh)
        assert late.refused is not None and late.refused.reason == Reason.NAME


async def test_a_new_node_comes_with_its_key_and_one_of_a_version_before_without() -> None:
    async with members(LOW, HIGH) as (a, _):
        new = await Rogue(info("c", "c" * 8, key=key_of(3).public), key=key_of(3)).meet(a.mesh)
        old = await Rogue(info("d", "d" * 8)).meet(a.mesh)
        assert new.up and old.up
        assert (a.mesh.peers["c" * 8].key, a.mesh.peers["d" * 8].key) == (key_of(3).public, "")
        liar = await Rogue(info("e", "e" * 8, key=key_of(3).public), key=key_of(4)).meet(a.mesh)
        assert not liar.up
        known = {"d" * 8: key_of(5).public}
        admit(a.mesh, key_of=lambda peer: known.get(peer, ""))
        a.mesh.check_keys()
        assert "d" * 8 not in a.mesh.links, "the cluster knows it by a key, which this one has not shown"
        assert "c" * 8 in a.mesh.links
        for rogue in (new, old, liar):
            rogue.close()


async def test_strangers_from_elsewhere_need_authorization_or_the_operators_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jetcluster.mesh.link.is_local", lambda ip, sockname: False)
    for options, may in (
        ({"authorization": None}, False),
        ({"authorization": None, "trusted_network": True}, True),
        ({"authorization": SECRET}, True),
    ):
        mesh = Member("a", LOW, 1, **options).mesh  # type: ignore[arg-type]
        await mesh.start()
        stranger = Rogue(info("x", "x" * 8), options["authorization"])  # type: ignore[arg-type]
        await stranger.meet(mesh)
        assert stranger.up is may, options
        if not may:
            assert stranger.refused is not None and "trusted_network" in str(stranger.refused)
            admit(mesh, knows=lambda peer: peer == "m" * 8)
            member = await Rogue(info("m", "m" * 8), None).meet(mesh)
            assert member.up, "a member is let in from wherever it is: this is how a cluster of before goes on"
            member.close()
        stranger.close()
        await stop(mesh)


# -- what a stranger may ask


async def test_what_is_of_the_clusters_inside_is_nothing_to_a_stranger() -> None:
    async with members(LOW, HIGH) as (a, b):
        asked: list[str] = []

        async def answer(peer: str, payload: bytes) -> bytes:
            asked.append(peer)
            return b"yes"

        admit(a.mesh, is_member=lambda peer: peer == HIGH)
        a.mesh.serve("inside", answer)
        a.mesh.serve("outside", answer, strangers=True)
        a.mesh.on_notice("told", lambda peer, payload: asked.append(f"told by {peer}"))
        a.mesh.on_notice("said", lambda peer, payload: asked.append(f"said by {peer}"), strangers=True)
        x = await Rogue(info("x", "x" * 8)).meet(a.mesh)
        assert x.up
        for name in (b"told", b"said", b"nothing"):
            x.writer.write(encode_notice(name, b""))
        x.writer.write(encode_call(1, b"inside", b"") + encode_call(2, b"outside", b""))
        answers: dict[int, bytes] = {}
        while len(answers) < 2:
            kind, body = await x.read()
            if kind in (Kind.REPLY, Kind.ERROR):
                answers[body[3]] = body[4:]
        assert b"not known as a member" in answers[1]
        assert answers[2] == b"yes"
        assert asked == [f"said by {x.me.peer_id}", x.me.peer_id]
        assert a.mesh.counters.strangers == 2
        assert await b.mesh.call(LOW, "inside", b"") == b"yes"
        b.mesh.notify(LOW, "told", b"")
        await until(lambda: asked[-1] == f"told by {HIGH}")
        admit(a.mesh, is_member=lambda peer: False)
        with pytest.raises(MeshError, match="not known as a member"):
            await b.mesh.call(LOW, "inside", b"")
        x.close()


@pytest.mark.parametrize(
    "bad",
    [
        encode_raft(1, b"\x01\x02rubbish"), encode_notice(b"told", b"rubbish"), frame(Kind.MSG, b"short"),
        frame(Kind.HELLO, b""), b"\xff\xff\xff\xff\x09", frame(Kind.GOSSIP, b"[" * 100_000),
    ],
)  # fmt: skip
async def test_rubbish_closes_its_link_with_one_line_and_harms_nobody(
    bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with members(LOW, HIGH) as (a, _):
        receive(a.mesh, lambda peer, gid, frame: "no frame" if b"rubbish" in frame else "")

        def told(peer: str, payload: bytes) -> None:
            raise FrameError("no notice")

        a.mesh.on_notice("told", told)
        link = a.mesh.links[HIGH]
        for _ in range(3):
            x = await Rogue(info("x", "x" * 8)).meet(a.mesh)
            assert x.up
            x.writer.write(bad)
            assert await x.closed()
            x.close()
        assert a.mesh.links[HIGH] is link
        assert a.mesh.counters.malformed == 3
        assert len([r for r in caplog.records if "malformed" in r.getMessage() and r.levelname == "ERROR"]) == 1
        assert not [r for r in caplog.records if r.exc_info]


async def test_two_that_know_each_other_and_dial_at_once_keep_one_link() -> None:
    """Again and again, each with its own moment."""
    async with members(LOW, HIGH) as (a, b):
        b_at, a_at = route_to(b.mesh), route_to(a.mesh)
        for turn in range(10):
            if HIGH in a.mesh.links:
                a.mesh.links[HIGH].close("again")
            await asyncio.sleep(0.002 * turn)
            await asyncio.gather(
                *(one.mesh.dialer._attempt(DialTarget(at, configured=False)) for one, at in ((a, b_at), (b, a_at)))
            )
            await until(lambda: full(a.mesh, b.mesh), 5, "one link")
        await asyncio.sleep(0.3)
        assert full(a.mesh, b.mesh)
        assert a.mesh.connections == b.mesh.connections == 1
