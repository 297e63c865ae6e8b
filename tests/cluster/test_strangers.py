"""Peers on the route port that are no members, with the password of the routes and without: what they cannot do."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import stat
from typing import Any

import pytest

from jetcluster.api import relay
from jetcluster.clock import SystemRng
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.auth import Reason, RouteCredentials
from jetcluster.mesh.frames import Kind, encode_call, encode_notice, encode_ping, encode_sub
from jetcluster.mesh.identity import NodeKey, new_id
from jetcluster.raft import codec
from testkit.client import create_stream
from testkit.harness import Node, ProcessCluster, eventually
from testkit.ledger import publish_all, read_all, wait_newest
from testkit.raft_frames import encode_raft
from tests.unit.cluster.fake_node import SECRET, Rogue

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

RNG = SystemRng()
GROUPS = (1, 2)
"""The meta group, and the first stream."""


def guarded(cluster: ProcessCluster) -> ProcessCluster:
    """Its routes have a password."""
    for node in cluster.nodes:
        for flag in ("--cluster", "--routes"):
            at = node.args.index(flag) + 1
            node.args[at] = node.args[at].replace("nats://", f"nats://{SECRET.user}:{SECRET.password}@")
    return cluster


def identity(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.store / "jetstream" / "node.json").read_text())
    return found


async def meet(node: Node, name: str, credentials: RouteCredentials | None = SECRET, **more: Any) -> Rogue:
    me = NodeInfo(more.pop("peer_id", new_id(RNG)), name, new_id(RNG), "", "", key=more.pop("tells", ""))
    rogue = Rogue(me, credentials, cluster="C", **more)
    return await rogue.dial("127.0.0.1", node.cluster_port)


def forged(term: int, index: int) -> list[bytes]:
    """Messages of a peer that wants to win an election, to lead, to write, or to spoil the terms."""
    return [
        codec.encode(codec.PreVote(term, 10**9, term)),
        codec.encode(codec.Vote(term, 10**9, term)),
        codec.encode(codec.VoteReply(term, True)),
        codec.encode_append(term, index, 1, index + 1, 0, [(b"injected", term, codec.REGULAR)]),
        codec.encode_append(term, 0, 0, 10**6, 0, []),
        codec.encode(codec.Resign(term)),
        codec.encode(codec.TimeoutNow(term)),
        codec.encode_snap_offer(term, 10**6, term, codec.Config(("AAAAAAAA",))),
    ]


async def leader_since(node: Node) -> tuple[str, str]:
    async with await node.connect() as client:
        cluster = (await client.api("STREAM.INFO.S", within=10.0))["cluster"]
    return cluster["leader"], cluster["leader_since"]


async def goes_on(cluster: ProcessCluster, stored: list[bytes]) -> None:
    """All that was ever acknowledged is there, and nothing else; streams can be created."""
    async with await cluster[0].connect() as client:
        payloads = [b"m-%d" % (len(stored) + n) for n in range(20)]
        assert len((await publish_all(client, "s", payloads)).acked) == 20
        stored += payloads
        await wait_newest(client, "S")
        found = await read_all(client, "S")
        assert [found[n + 1] for n in range(len(stored))] == stored
        await create_stream(client, "T", ["t"], 3)
        await client.api("STREAM.DELETE.T")
    assert all(node.alive for node in cluster.nodes)
    for node in cluster.nodes:
        log = node.log()
        assert "Traceback" not in log
        assert "replica stopped" not in log and "stopped: " not in log, log


@pytest.mark.ours("the protocol between nodes is not nats-server's")
async def test_who_has_the_password_is_no_member_by_that(server: str) -> None:
    async with guarded(ProcessCluster(3, server, monitor=True)) as cluster:
        stored: list[bytes] = []
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
        await goes_on(cluster, stored)
        try:
            await outsiders(cluster)
            await votes_and_entries(cluster)
            await what_anybody_may_ask(cluster)
            await who_reads_nothing(cluster)
            await nobody_leads(cluster)
            await under_the_name_of_a_member(cluster)
            await rubbish(cluster)
            await goes_on(cluster, stored)
        finally:
            Rogue.close_all()
        await members_come_and_go(cluster)
        await goes_on(cluster, stored)


async def outsiders(cluster: ProcessCluster) -> None:
    for credentials in (None, RouteCredentials("route", "guess"), RouteCredentials("other", "secret")):
        rogue = await meet(cluster[0], "x", credentials)
        assert not rogue.up
        assert rogue.refused is None or rogue.refused.reason == Reason.AUTHORIZATION


async def votes_and_entries(cluster: ProcessCluster) -> None:
    before = await leader_since(cluster[0])
    rogues = [await meet(node, f"x{n}") for n, node in enumerate(cluster.nodes)]
    assert all(rogue.up for rogue in rogues), "the password lets in as a route"
    for gid in GROUPS:
        for term in (1, 2, 3, 4, 100, 2**27, 2**40):
            for index in (3, 10, 30):
                for rogue in rogues:
                    rogue.writer.write(b"".join(encode_raft(gid, frame) for frame in forged(term, index)))
    await asyncio.sleep(1.5)
    assert await leader_since(cluster[0]) == before
    delete = {"gid": 1, "kind": "stream_delete", "body": {"request": "r", "account": "$G", "name": "S"}}
    for rogue in rogues:
        rogue.writer.write(encode_notice(b"lead", codec._LED.pack(2, 2**40, 0)[:12]))
        rogue.writer.write(encode_call(7, b"meta", json.dumps(delete).encode()))
        while True:
            kind, body = await rogue.read()
            if kind == Kind.ERROR and body[3] == 7:
                break
        assert b"not known as a member" in body
    for node in cluster.nodes:
        assert node.log().count("are refused: it is not known as a member") == 1, "one line for each"


async def what_anybody_may_ask(cluster: ProcessCluster) -> None:
    """API requests are handed over for the clients of nodes without JetStream; none of them is about the cluster."""
    rogue = await meet(cluster[0], "front")
    rogue.writer.write(encode_sub("$SYS", b"answer", None, 1) + encode_sub("$G", b"answer", None, 1))
    remove = json.dumps({"peer": "n3"}).encode()
    for account, subject in (("$SYS", b"$JS.API.SERVER.REMOVE"), ("$G", b"$JS.API.STREAM.INFO.S")):
        request = relay.encode(account, subject, b"answer", b"", remove)
        rogue.writer.write(encode_notice(relay.NOTICE.encode(), request))
        while True:
            kind, body = await rogue.read()
            if kind in (Kind.MSG, Kind.MSGS, Kind.DELIVER) and b"answer" in body:
                break
        assert (b"no member of the cluster" in body) is (account == "$SYS"), body
        assert (b"stream_info_response" in body) is (account == "$G"), body
    rogue.close()


async def who_reads_nothing(cluster: ProcessCluster) -> None:
    """And says all the time that it is there."""
    rogues = [await meet(node, f"deaf{n}") for n, node in enumerate(cluster.nodes)]
    for rogue in rogues:
        rogue.writer.write(encode_sub("$G", b">", None, 1))
        rogue.writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def speak() -> None:
        while True:
            for rogue in rogues:
                rogue.writer.write(encode_ping(Kind.PONG, 1))
            await asyncio.sleep(0.2)

    speaking = asyncio.ensure_future(speak())
    async with await cluster[0].connect() as client:
        for _ in range(100):
            client.publish("unheard", b"x" * 200_000)
        await client.api("INFO", within=8.0)
    speaking.cancel()
    for rogue in rogues:
        rogue.close()


async def nobody_leads(cluster: ProcessCluster) -> None:
    """Two of three stand still: the third would be glad of a leader."""
    alone, *others = cluster.nodes
    for node in others:
        node.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(5)
        rogue = await meet(alone, "late")
        assert rogue.up
        for gid in GROUPS:
            for term in range(1, 40):
                frames = forged(term, 3 + term)
                rogue.writer.write(b"".join(encode_raft(gid, frame) for frame in frames))
        await asyncio.sleep(1)
        assert (await alone.monitor("jsz")).get("meta_cluster", {}).get("leader", "") == ""
    finally:
        for node in others:
            node.signal(signal.SIGCONT)
    await cluster.wait_meta()
    await cluster.stream_leader("S", within=20)
    await cluster.wait_current("S")


async def under_the_name_of_a_member(cluster: ProcessCluster) -> None:
    """With its peer id, which everybody knows who ever met it, and with its public key."""
    victim, other = cluster[1], cluster[0]
    known = identity(victim)
    key = victim.store / "jetstream" / "node.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = await leader_since(other)
    for more in ({}, {"tells": known["key"]}, {"tells": known["key"], "key": NodeKey(RNG.token(32))}):
        for node in (cluster[0], cluster[2]):
            rogue = await meet(node, "n2", peer_id=known["peer_id"], **more)
            assert not rogue.up
            assert rogue.refused is None or rogue.refused.reason == Reason.AUTHORIZATION
    named = await meet(other, "n2")
    assert not named.up and named.refused is not None and named.refused.reason == Reason.NAME
    assert await leader_since(other) == before
    assert "replaced by a new connection" not in other.log()


async def rubbish(cluster: ProcessCluster) -> None:
    rng = random.Random(3)
    for turn in range(60):
        rogue = await meet(cluster[turn % 3], f"r{turn}")
        for _ in range(30):
            body = rng.randbytes(rng.randrange(60))
            rogue.writer.write((len(body) + 1).to_bytes(4, "big") + bytes((rng.randrange(4, 19),)) + body)
        rogue.close()


async def members_come_and_go(cluster: ProcessCluster) -> None:
    """The twin: one restarts with its store, one without, and both belong to the cluster again."""
    cluster[1].kill9()
    await cluster[1].start()
    await cluster.wait_current("S")
    old = identity(cluster[2])
    cluster[2].kill9()
    shutil.rmtree(cluster[2].store)
    await cluster[2].start()

    async def there() -> bool:
        known = identity(cluster[2])
        return known["peer_id"] != old["peer_id"] and known["member"]

    await eventually(there, 20, "the wiped node is no member", cluster[2])
    await cluster.wait_meta()
    await cluster.wait_current("S")
    (cluster[1].store / "jetstream" / "node.key").rename(cluster.root / "kept")
    cluster[1].kill9()
    cluster[1].spawn()
    await eventually(
        lambda: "node.key is missing" in cluster[1].log(), 20, "a store without its key is used", cluster[1]
    )
    assert cluster[1].process is not None
    cluster[1].process.wait(10)
    (cluster.root / "kept").rename(cluster[1].store / "jetstream" / "node.key")
    await cluster[1].start()
    await cluster.wait_current("S")
