"""A server says to another one what no server says, on the link that both have: it must close the link, or answer that
it cannot, and nothing else may come of it."""

from __future__ import annotations

import asyncio
import json
import struct
from random import Random
from typing import Any, get_args

from jetcluster.mesh.api import MeshError
from jetcluster.mesh.core import SYNC_METHOD
from jetcluster.mesh.frames import Kind, encode_call, encode_notice, frame
from jetcluster.raft import codec
from jetcluster.raft.api import META_GROUP
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import Machine
from tests.sim.cluster.invariants import jetstream_of

PATIENCE = 3.0
"""Seconds for an answer that shows whether the link is still there."""
NOBODY = 4_000_000_000
"""A group that nobody has."""
CONTROL = 0
GROUP = struct.Struct("!I")
_V, _HUGE = codec.VERSION, (1 << 63) - 1


def group_frames() -> list[bytes]:
    """Return frames of Raft of each kind: too short, too long, or saying what cannot be."""
    found = [b"", bytes((_V,)), bytes((9, codec.ACK)) + bytes(8), bytes((_V, 99)) + bytes(8)]
    for message in get_args(codec.Numbers):
        fields = message.__annotations__
        whole = codec.encode(message(*[0] * len(fields)))
        found += [whole[:-1], whole + b"x"]
        found += [whole[:2] + struct.pack("<Q", term) + whole[10:] for term in (_HUGE, codec.MAX_TERM + 1)]
        if list(fields.values())[-1] == "bool":
            found.append(whole[:-1] + b"\7")
    found.append(struct.pack("<BBQQQB", _V, codec.VOTE, 1, 5, 9, 0))
    offer = struct.pack("<BBQQQ", _V, codec.SNAP_OFFER, 1, 1, 1)
    found += [offer[:-1], offer + b"{", offer + b"\xff" * 30]
    ack = codec.encode_ack(1, 1, 0, recovering=False)
    found += [ack[:-1], ack[:-5] + b"\x07" + ack[-4:], struct.pack("<BBQQIBI", _V, codec.ACK, _HUGE, 1, 0, 0, 0)]
    return found + _appends()


def _appends() -> list[bytes]:
    head = struct.Struct("<BBQQQQII")
    entry = struct.Struct("<QBI")

    def append(*entries: bytes, term: int = 3, prev: int = 1, commit: int = 0, count: int = -1) -> bytes:
        number = len(entries) if count < 0 else count
        return head.pack(_V, codec.APPEND, term, 0, prev, commit, 0, number) + b"".join(entries)

    good = entry.pack(2, codec.REGULAR, 1) + b"x"
    return [
        append()[:-1],
        append(term=_HUGE),
        append(commit=_HUGE),
        append(prev=9),
        append(count=codec.MAX_ENTRIES + 1),
        append(good, count=2),
        append(good, b"more", count=1),
        append(good, good[:-1]),
        append(entry.pack(2, 9, 1) + b"x"),
        append(entry.pack(2, codec.REGULAR, codec.MAX_ENTRY_BYTES + 1)),
        append(good, entry.pack(1, codec.REGULAR, 0)),
        append(entry.pack(9, codec.REGULAR, 0)),
        append(entry.pack(2, codec.CONFIG, 3) + b"abc"),
    ]


def control_frames() -> list[bytes]:
    beat = codec.encode_heartbeat(1, 0, 0, well=True)
    digest = codec.encode_digest([(META_GROUP, 1, 1)])
    return [
        b"", b"\x09\x20", bytes((_V, 99)), beat[:-1], beat[:-2] + b"\x07\x00", digest[:-1], digest[:4],
        codec.encode_digest([(META_GROUP, codec.MAX_TERM + 1, 1)]), codec.encode_digest([(META_GROUP, 1, _HUGE)]),
    ]  # fmt: skip


def _wrong_infos() -> list[bytes]:
    """Return what a server may not say of itself: another peer, or one field of a wrong kind."""
    other = {"peer_id": "00000001", "boot_id": "00000002", "name": "n9", "cluster_url": "10.0.0.9:6222",
             "client_url": "10.0.0.9:4222", "tags": [], "jetstream": True}  # fmt: skip
    wrong: list[tuple[str, Any]] = [
        ("name", "n9"), ("name", "a\nb"), ("name", 7), ("tags", {}), ("tags", [7]), ("tags", ["a"] * 100),
        ("jetstream", 1), ("peer_id", "x"), ("boot_id", ""), ("key", "x"), ("sync_interval", "1s"),
        ("sync_interval", -1), ("cluster_url", "nowhere"), ("cluster_url", "[::1:6222"), ("cluster_url", "a:b:6222"),
        ("client_url", "a b:4222"), ("client_url", "a:99999"), ("cluster_id", []),
    ]  # fmt: skip
    return [json.dumps(other | {field: value}).encode() for field, value in wrong]


def _wrong_news() -> list[bytes]:
    """Return announcements of who founds a cluster that nobody makes."""
    wrong: list[dict[str, Any]] = [
        {"known": 7}, {"known": ["x" * 100]}, {"known": [], "meta_peers": 7}, {"known": [], "cluster_id": 7},
        {"known": [], "cluster_id": "x" * 100}, {"known": [], "keys": 7}, {"known": [], "keys": [7]},
        {"known": [], "keys": [["x", "y"]]}, {"known": [], "keys": [["00000001", 7]]}, {"known": [], "wall_ns": "now"},
    ]  # fmt: skip
    return [json.dumps(one).encode() for one in wrong]


BODIES = {
    Kind.MSG: (b"", b"\0" * 12, b"\xff" * 12, b"\0\1\0\1\0\0\0\1\0\0\0\0ab\0", b"\0\1\0\1\0\0\0\1\0\0\0\0ab\0\5c",
               b"\0\1\0\1\0\0\0\0\0\0\0\0\xffb", b"\0\1\0\1\0\0\0\0\0\0\0\x09ab"),
    Kind.DELIVER: (b"", b"\0" * 10, b"\xff" * 10, b"\0\1\0\1\0\0\0\0\0\1ab", b"\0\1\0\1\0\1\0\0\0\1ab\0\2c"),
    Kind.MSGS: (b"", b"\0\1\0\0\0\0a", b"\0\1\xff\xff\xff\xffa", b"\0\1\0\0\0\1a", b"\0\1\0\0\0\1a" + b"\1\0\0\0\7" * 4,
                b"\0\1\0\0\0\2a" + b"\0\0\0\0\7" * 4, b"\0\1\0\0\0\1a" + b"\2" * 20),
    Kind.SUB: (b"", b"\0\1\0\0\xff\xff\0\0\0\1a", b"\0\1\0\1\xff\xff\0\0\0\1a", b"\0\1\0\1\xff\xff\0\0\0\1\xffb",
               b"\0\0\0\1\xff\xff\0\0\0\1b", b"\4\1\0\1\xff\xff\0\0\0\1" + b"a" * 1025 + b"b"),
    Kind.CALL: (b"", b"\0\0\0\1\0\5a", b"\0\0\0\1\0\1\xff"),
    Kind.REPLY: (b"", b"\0\0\0"),
    Kind.ERROR: (b"", b"\0\0\0"),
    Kind.NOTICE: (b"", b"\0\5a", b"\0\1\xff"),
    Kind.PING: (b"", b"\0" * 9),
    Kind.PONG: (b"",),
    Kind.ASK_BACKLOG: (b"", b"\0\1" + bytes(16), b"\0\1" + bytes(16) + b"a", b"\0\0" + bytes(16) + b"a"),
    Kind.BACKLOG: (b"", b"\0\1" + bytes(16) + b"\xffb"),
    Kind.INFO: (b"", b"{}", b"[]", b"{", b"\xff", *_wrong_infos()),
    Kind.GOSSIP: (b"{}", b"{", b"[[1, 2]]", b"\xff", b'{"nodes": [7]}', b'{"nodes": [["x", "a:1"]]}',
                  b'{"nodes": [["00000001", 7]]}', b'{"nodes": [["00000001", "nowhere"]]}'),
    Kind.RAFT: (b"", b"\0\0\0"),
    Kind.HELLO: (b"",),
    Kind.CHALLENGE: (b"x",),
    Kind.PROOF: (b"x" * 32,),
}  # fmt: skip
"""Bodies of frames that nobody understands, or that do not come once a link is up."""
NOTICES = {
    "lead": (b"x",), "lead?": (b"x",), "valve": (b"",), "used": (b"{", b"[[1]]", b"7", b'[["a", 1, "x", 2]]'),
    "hash": (b"x",), "consumer.refused": (b"x",), "consumer.leave": (b"",), "consumer.answered": (b"x",),
    "boot": (b"", b"{", b"[]", *_wrong_news()), "api_relay": (b"", b"\xff" * 9),
}  # fmt: skip
CALLS: dict[str, tuple[bytes, ...]] = {
    "nobody.serves.this": (b"",),
    "snapshot.open.2": (json.dumps({"gid": NOBODY, "index": 0}).encode(), b'{"gid": 1, "index": 4611686018427387904}'),
    "snapshot.ranges": (bytes(24), bytes(24) + b"\0", bytes(24) + b"\xff"),
    "snapshot.read": (bytes(20), bytes(20) + b"x", bytes(20) + b"\0\1a\0\1b"),
    "consumer.ask": (json.dumps({"gid": NOBODY, "kind": "live"}).encode(), b'{"gid": 1, "kind": "?"}'),
    "hash.at": (b"", b"x", struct.pack("<I", NOBODY)),
    "stream.rest": (b"{", b"{}", b"[]", json.dumps({"gid": NOBODY, "revision": 1}).encode()),
    "balance.units": (b"nothing",),
    "balance.fit": (json.dumps({"gid": NOBODY}).encode(),),
    "balance.move": (json.dumps({"gid": NOBODY, "to": "?"}).encode(),),
    "group.standing": (b"%d" % NOBODY,),
}
"""Requests that have no answer but an error, or that there is nothing. They end no link."""
QUIET = {"consumer.turn": (b"", b"x" * 40), "snapshot.close": (b"", b"x" * 16), "nobody.knows.this": (b"x",)}
"""Notices of which nobody takes notice."""


def wrong(rng: Random) -> bytes:
    """A frame upon which a server closes the link."""
    way = rng.randrange(8)
    if way < 3:
        kind = rng.choice(list(BODIES))
        return frame(kind, rng.choice(BODIES[kind]))
    if way == 3:
        name = rng.choice(list(NOTICES))
        return encode_notice(name.encode(), rng.choice(NOTICES[name]))
    if way == 4:
        return frame(Kind.RAFT, GROUP.pack(CONTROL) + rng.choice(control_frames()))
    if way == 5:
        return rng.choice([b"\0\0\0\0\7", b"\xff\xff\xff\xff\7", b"\0\0\0\1\xee", b"\0\0\0\1\0"])
    return frame(Kind.RAFT, GROUP.pack(META_GROUP) + rng.choice(group_frames()))


def useless(rng: Random) -> bytes:
    """A frame that is understood, and leads to nothing."""
    if rng.random() < 0.2:
        name = rng.choice(list(QUIET))
        return encode_notice(name.encode(), rng.choice(QUIET[name]))
    if rng.random() < 0.1:
        return frame(rng.choice([Kind.REPLY, Kind.ERROR]), b"\xff\xff\xff\xffnobody asked")
    name = rng.choice(list(CALLS))
    return encode_call(0xFFFF_FFFF, name.encode(), rng.choice(CALLS[name]))


async def confused(deployment: Deployment, rng: Random) -> None:
    """Some times: one server to another. Raises Violation where a link goes on behind what nobody understands. One that
    ends for what is understood is `Invariants`' to notice."""
    for _ in range(rng.choice([1, 4, 12])):
        ready = [machine for machine in deployment.running if machine.ready and not machine.paused]
        found = [(one, other) for one in ready for other in ready if link_of(one, other) is not None]
        if found:
            one, other = rng.choice(found)
            is_wrong = rng.random() < 0.6
            await say(deployment, one, other, wrong(rng) if is_wrong else useless(rng), closes=is_wrong)
        await asyncio.sleep(rng.uniform(0.0, 1.0))


def link_of(one: Machine, other: Machine) -> Any:
    """The link from one server to another; None where there is none, or where its other end is not known to vote."""
    mine, its = jetstream_of(one), jetstream_of(other)
    if mine is None or its is None or mine.network.me not in its.network.mesh.links:
        return None
    group = its.network.raft.groups.get(META_GROUP)
    voter = group is not None and mine.network.me in group.log.config.voters and not group.stopped
    return mine.network.mesh.links.get(its.network.me) if voter else None


async def say(deployment: Deployment, one: Machine, other: Machine, said: bytes, *, closes: bool) -> None:
    """`one` says this to `other`, and then asks whether it has heard all of that."""
    link, its = link_of(one, other), jetstream_of(other)
    there = its.network.mesh.links[jetstream_of(one).network.me]
    deployment.trace.add("nemesis", f"{one.name} says to {other.name}: {said[:60].hex()}")
    if closes:
        deployment.strangers[other.name] = deployment.strangers.get(other.name, 0) + 1
        deployment.vows.nonsense.add(said)
    heard: list[bool] = []
    loop = one.loop
    assert loop is not None
    loop.from_outside(lambda: _send(loop, jetstream_of(one).network.mesh, link, said, heard))
    end = deployment.scheduler.now + PATIENCE
    while not heard and deployment.scheduler.now < end:
        await asyncio.sleep(0.05)
    if closes and heard == [True] and not there.closed:
        raise Violation(f"{other.name} goes on behind what no server says: {said[:60].hex()}")


def _send(loop: Any, mesh: Any, link: Any, said: bytes, heard: list[bool]) -> None:
    async def ask() -> None:
        try:
            await mesh.call(link.peer_id, SYNC_METHOD, b"", PATIENCE)
            heard.append(True)
        except MeshError:
            heard.append(False)

    link.send(said)
    loop.create_task(ask())
