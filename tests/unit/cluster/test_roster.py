"""Members of the cluster: by which keys they are known, who speaks for new ones, what strangers cannot do."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetcluster.cluster.bootstrap import Announcement
from jetcluster.cluster.joining import Roster
from jetcluster.cluster.meta_members import TAKEN_AFTER_SECONDS
from jetcluster.config.nkeys import encode_key
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.identity import NodeKey
from jetcluster.meta.machine import MetaMachine
from jetcluster.raft import codec
from jetcluster.raft.api import META_GROUP, Role
from jetcluster.raft.membership import Config
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import SimMesh, virtual_time

OTHER = NodeKey(b"x" * 32)
OTHER_KEY = OTHER.public


def keys(node: Node) -> dict[str, str]:
    return {peer: known.key for peer, known in node.js.meta.machine.nodes.items()}


async def all_known(cluster: Cluster) -> None:
    wanted = {node.me: node.mesh.me.key for node in cluster}
    await cluster.until(lambda: all(keys(node) == wanted for node in cluster), what="all keys")


async def stranger(cluster: Cluster, name: str = "x", peer_id: str | None = None, key: str = "") -> SimMesh:
    """Linked with everybody, and nothing else."""
    mesh = cluster.network.mesh(name, peer_id, key=key, sign=OTHER.sign if key else None)
    mesh.start_now()
    await asyncio.sleep(0.1)
    return mesh


# -- keys


@virtual_time
async def test_the_key_with_which_a_member_came_is_kept_by_all() -> None:
    async with Cluster() as cluster:
        await all_known(cluster)
        new = cluster.add("D")
        await all_known(cluster)
        assert keys(cluster["A"])[new.me] == new.mesh.me.key
        cluster.crash("B")
        cluster.restart("B")
        await all_known(cluster)
        await cluster.until(lambda: len(cluster["B"].mesh.links) == 3)


@virtual_time
async def test_nobody_comes_under_the_id_of_a_member_that_is_away() -> None:
    async with Cluster() as cluster:
        await all_known(cluster)
        lost = cluster["C"]
        cluster.crash("C")
        impostor = await stranger(cluster, "C", lost.me, OTHER_KEY)
        assert impostor.links == {}
        impostor.stop_now()
        keyless = await stranger(cluster, "C", lost.me)
        assert keyless.links == {}
        keyless.stop_now()
        cluster.restart("C")
        await cluster.until(lambda: len(cluster["C"].mesh.links) == 2, what="the genuine one")


@virtual_time
async def test_a_link_that_stands_is_cut_when_its_peer_turns_out_to_have_another_key() -> None:
    async with Cluster() as cluster:
        await all_known(cluster)
        liar = await stranger(cluster, "liar", "LIARLIAR", OTHER_KEY)
        a = cluster["A"]
        assert "LIARLIAR" in a.mesh.links
        told = Announcement((), True, tuple(sorted([*keys(a), "LIARLIAR"])), keys=(("LIARLIAR", a.mesh.me.key),))
        cluster["B"].mesh.notify(a.me, "boot", told.encode())
        await asyncio.sleep(0.1)
        assert "LIARLIAR" not in a.mesh.links
        liar.stop_now()


def test_a_known_key_stays() -> None:
    machine = MetaMachine()

    def apply(index: int, **more: object) -> dict[str, object]:
        command = {"kind": "node", "request": str(index), "peer": "p", "name": "n", "tags": [], "jetstream": True}
        return machine.apply(index, 1, json.dumps({**command, **more}).encode())[0]

    mine = encode_key("N", b"m" * 32)
    apply(1)
    assert machine.nodes["p"].key == ""
    apply(2, key=mine)
    assert machine.nodes["p"].key == mine
    assert "error" in apply(3, key=OTHER_KEY)
    for number, bad in enumerate((5, "N", "U" * 56, None, ["x"], {"a": 1})):
        assert "error" in apply(10 + number, key=bad), bad
    apply(30, tags=["t"])
    assert (machine.nodes["p"].key, machine.nodes["p"].tags) == (mine, ("t",)), "a version before tells none"
    again = MetaMachine()
    again.restore(machine.snapshot())
    assert (again.snapshot(), again.nodes["p"].key) == (machine.snapshot(), mine)


# -- who speaks for whom


@virtual_time
async def test_a_node_that_was_away_finds_a_leader_that_joined_meanwhile() -> None:
    """Also over a restart; what it missed comes from that leader alone."""
    async with Cluster() as cluster:
        await all_known(cluster)
        cluster.crash("C")
        new = cluster.add("D")
        await cluster.until(lambda: new.js.meta.group is not None and new.me in new.js.meta.group.peers)
        leader = cluster.meta_leader()
        assert leader is not None

        def taken_over() -> bool:
            """A node that has just started campaigns for nobody for half a second: it is asked again."""
            if not new.js.meta.leading and leader.js.meta.group is not None:
                leader.js.meta.group.transfer(new.me)
            return new.js.meta.leading

        await cluster.until(taken_over, what="the new one leads")
        streams = [f"S{number}" for number in range(6)]
        for stream in streams:
            await cluster.create(stream, 1, ask="A")
        assert any(new.has(stream) for stream in streams)
        for name in "AB":
            cluster.network.cut(cluster["C"].me, cluster[name].me)
        late = cluster.restart("C")
        await cluster.never(lambda: late.raft.groups[META_GROUP].leader is not None, 3, "a leader nobody speaks for")
        cluster.heal()
        assert new.me not in late.raft.groups[META_GROUP].members
        await cluster.until(lambda: late.js.assignment("$G", streams[-1]) is not None, what="news from the new leader")
        assert late.raft.groups[META_GROUP].leader == new.me
        await asyncio.sleep(1)
        for stream in streams:
            leader = cluster.leader(stream)
            assert late.services.network.leaders.get(leader.replica(stream).assignment.gid) == leader.me, (
                "it was sent again"
            )
            assert (await late.publish(stream.lower().encode()))["seq"] == 1


@virtual_time
async def test_a_stranger_speaks_for_nobody() -> None:
    async with Cluster() as cluster:
        await all_known(cluster)
        a = cluster["A"]
        rogue = await stranger(cluster)
        told = Announcement((), True, tuple(sorted([*keys(a), rogue.me.peer_id])), a.mesh.me.cluster_id)
        for node in cluster:
            rogue.notify(node.me, "boot", told.encode())
        await asyncio.sleep(0.5)
        for node in cluster:
            assert not node.raft.admission.is_member(rogue.me.peer_id)
        cluster["B"].mesh.notify(a.me, "boot", told.encode())
        await asyncio.sleep(0.1)
        assert a.raft.admission.is_member(rogue.me.peer_id), "a member's word counts"
        rogue.stop_now()


@virtual_time
async def test_who_has_asked_to_join_and_has_no_vote_speaks_for_nobody() -> None:
    async with Cluster() as cluster:
        await all_known(cluster)
        rogue = await stranger(cluster)
        for node in cluster:
            await rogue.call(node.me, "meta.join", rogue.me.peer_id.encode())
        groups = [node.raft.groups[META_GROUP] for node in cluster]
        await cluster.until(lambda: all(rogue.me.peer_id in group.log.config.learners for group in groups))
        told = Announcement((), True, tuple(sorted([rogue.me.peer_id, "NOBODY00"])), cluster["A"].mesh.me.cluster_id)
        body = json.dumps({"step": "promise", "term": 10**6, "candidate": rogue.me.peer_id}).encode()
        for node in cluster:
            rogue.notify(node.me, "boot", told.encode())
            answer = await rogue.call(node.me, "meta.rescue", body)
            assert json.loads(answer) == {"refused": "only a voter of the meta group may rescue it"}
        await asyncio.sleep(0.5)
        for node in cluster:
            assert node.raft.admission.is_member(rogue.me.peer_id)
            assert not node.raft.admission.is_voter(rogue.me.peer_id)
            assert not node.raft.admission.is_member("NOBODY00")
        rogue.stop_now()


@virtual_time
async def test_voters_name_new_ones_as_soon_as_they_know() -> None:
    async with Cluster() as cluster:
        await all_known(cluster)
        new = cluster.add("D")
        await cluster.until(lambda: all(new.me in node.raft.groups[META_GROUP].peers for node in cluster))
        await asyncio.sleep(0.5)
        for node in cluster:
            said = {peer: told.meta_peers for peer, told in node.js.parts.roster._told.items()}
            others = {other.me for other in cluster if other is not node}
            assert others == {peer for peer, named in said.items() if new.me in named}


def test_who_joins_hears_those_it_joined_while_its_log_comes_by_servers_that_are_all_gone() -> None:
    log = SimpleNamespace(joining=True, configs=[(0, Config(("V", "W"))), (16, Config(("OLD1", "OLD2")))])
    log.config = log.configs[-1][1]
    mesh = SimpleNamespace(on_peers=lambda up, down: None)
    journal = SimpleNamespace(groups={META_GROUP: log})
    roster = Roster(cast(Any, mesh), cast(Any, journal), MetaMachine(), lambda peer: None)
    roster.told("X", Announcement((), True, ("X", "Y")))
    roster.told("V", Announcement((), True, ("V", "W")))
    assert [peer for peer in "VWXY" if roster.vouched(peer)] == ["V", "W"]
    log.configs = [(16, log.config)]  # the beginning was compacted meanwhile
    roster.told("V", Announcement((), True, ("V", "Z")))
    assert roster.vouched("Z"), "whom it has heard from the first on"
    log.joining = False
    roster.told("OLD1", Announcement((), True, ("OLD1", "OLD2")))
    assert not roster.vouched("Z"), "once it has caught up its own log says who votes"


@virtual_time
async def test_another_node_takes_a_members_place_by_its_name_only_after_a_while() -> None:
    """The member may just restart. A node that lost its store has to wait as long."""
    async with Cluster() as cluster:
        await all_known(cluster)
        old = next(node for node in cluster if not node.js.meta.leading)
        cluster.crash(old.name)
        new = cluster.add(old.name)
        a = cluster.meta_leader()
        assert a is not None

        def members() -> tuple[str, ...]:
            assert a.js.meta.group is not None
            return a.js.meta.group.peers

        await cluster.never(lambda: old.me not in members(), TAKEN_AFTER_SECONDS - 1, "its place is taken")
        await cluster.until(lambda: old.me not in members() and new.me in members(), what="the place of the lost one")


# -- strangers


@virtual_time
async def test_a_stranger_takes_no_part_in_anything() -> None:
    """All of Raft, and every request and notice that nodes have for each other, with plausible contents."""
    async with Cluster() as cluster:
        await all_known(cluster)
        assignment = await cluster.create("S")
        await cluster["A"].publish(b"s")
        leader = cluster.leader("S")
        rogue = await stranger(cluster)
        groups = [node.raft.groups[gid] for node in cluster for gid in (META_GROUP, assignment.gid)]
        before = [(group.term, group.leader, group.last_index) for group in groups]
        for group in groups:
            entry = (b"injected", group.term + 1, codec.REGULAR)
            for frame in (
                codec.encode(codec.Vote(group.term + 1, 10**6, group.term)),
                codec.encode_append(group.term + 1, group.last_index, group.log.last_term, 10**6, 0, [entry]),
                codec.encode(codec.Resign(group.term)), codec.encode(codec.TimeoutNow(group.term)),
                codec.encode_ack(group.term + 1, 1, 0, False),
            ):  # fmt: skip
                rogue.send_raft(group.me, group.gid, frame)
        for node in cluster:
            rogue.notify(node.me, "lead", struct.pack("<IQ", assignment.gid, 10**9))
            rogue.notify(node.me, "used", json.dumps([["$G", False, 10**15]]).encode())
            rogue.notify(node.me, "hash", struct.pack("<IQ16s", assignment.gid, 1, b"?" * 16))
        await asyncio.sleep(1)
        assert [(group.term, group.leader, group.last_index) for group in groups] == before
        assert all(node.services.network.leaders.get(assignment.gid) == leader.me for node in cluster)
        delete = {"gid": META_GROUP, "kind": "stream_delete", "body": {"request": "r", "account": "$G", "name": "S"}}
        for node in cluster:
            served = set(node.mesh._rpc._handlers) - node.mesh._open
            assert {"meta", "stream", "snapshot.open.2", "groups.without", "hash.at", "consumer.ask"} <= served
            for method in served:
                with pytest.raises(MeshError, match="not known as a member"):
                    await rogue.call(node.me, method, json.dumps(delete).encode())
        assert cluster["A"].js.assignment("$G", "S") is not None
        assert (await cluster["B"].publish(b"s"))["seq"] == 2
        assert leader.replica("S").group.role is Role.LEADER
        rogue.stop_now()


@virtual_time
async def test_rubbish_of_strangers_and_members_stops_nothing() -> None:
    """Frames of every kind with random bodies: a link may be closed, nobody raises, all goes on."""
    rng = random.Random(11)
    async with Cluster() as cluster:
        await all_known(cluster)
        await cluster.create("S")
        a = cluster["A"]
        notices = [*a.mesh._notices, "nothing"]
        methods = [*a.mesh._rpc._handlers, "nothing"]
        for turn in range(400):
            if turn % 40 == 0:
                rogue = await stranger(cluster, f"x{turn}")
            link = rogue.links.get(a.me)
            if link is None:
                cluster.network.dial(rogue.me.peer_id, a.me)
                await asyncio.sleep(0.005)
                continue
            body = rng.randbytes(rng.randrange(80)) if turn % 3 else b"[" * 2000
            kind = turn % 4
            if kind == 0:
                rogue.notify(a.me, rng.choice(notices), body)
            elif kind == 1:
                rogue.send_raft(a.me, rng.choice((0, 1, 2, 77)), b"\x01" + body)
            elif kind == 2:
                link.send(struct.pack("!IB", len(body) + 1, rng.randrange(4, 19)) + body)
            else:
                with pytest.raises(MeshError):
                    await rogue.call(a.me, rng.choice([m for m in methods if m not in a.mesh._open]), body, 0.5)
            await asyncio.sleep(0.005)
        assert a.mesh.counters.callback_errors == 0
        assert not any(group.stopped for node in cluster for group in node.raft.groups.values())
        assert (await a.publish(b"s"))["seq"] == 1
        b = cluster["B"]
        for notice in ("lead", "used", "hash", "boot", "consumer.leave"):
            b.mesh.notify(a.me, notice, b"[" * 2001)
            await asyncio.sleep(0.01)
            cluster.heal()
            await asyncio.sleep(0.01)
        assert a.mesh.counters.callback_errors == 0
        assert a.mesh.counters.malformed >= 4
        await cluster.until(lambda: b.me in a.mesh.links)
        for mesh in list(cluster.network.meshes.values()):
            if mesh.me.name.startswith("x"):
                mesh.stop_now()


def test_announcements_hold_keys_and_nothing_else() -> None:
    mine = Announcement(("A" * 8,), True, ("A" * 8,), "c", (("A" * 8, OTHER_KEY),))
    assert Announcement.decode(mine.encode()) == mine
    assert b"keys" not in Announcement((), True).encode()
    for bad in (5, [5], [["A" * 8]], [["A" * 8, "x"]], [["short", OTHER_KEY]], [["A" * 8, OTHER_KEY]] * 2000):
        with pytest.raises(ValueError, match="announcement"):
            Announcement.decode(json.dumps({"known": [], "keys": bad}).encode())
    with pytest.raises(ValueError, match="announcement"):
        Announcement.decode(b"[" * 100_000)
