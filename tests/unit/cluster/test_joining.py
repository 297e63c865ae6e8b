"""A node that asks to be counted in (cluster/joining.py)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.bootstrap import Announcement
from jetcluster.cluster.joining import BOOT_NOTICE, JOIN_RETRY_SECONDS, REFUSED_SECONDS, Joining, _Refusal
from jetcluster.cluster.meta_members import REMOVED, MetaMembers
from jetcluster.cluster.meta_service import MetaService
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.raft.api import MembershipError
from jetcluster.raft.membership import Config
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime


class Mesh:
    """Many peers say nothing; the last one counts the node in."""

    def __init__(self, group: Any) -> None:
        self.peers = {f"x{n}": None for n in range(50)} | {"leader": None}
        self.group = group

    async def call(self, peer: str, method: str, payload: bytes, timeout: float) -> bytes:
        if peer != "leader":
            await asyncio.sleep(timeout)
            raise MeshError("timed out")
        self.group.peers, self.group.leader = ("me", "leader"), "leader"
        self.group.members = frozenset(self.group.peers)
        return b""


@virtual_time
async def test_peers_that_say_nothing_do_not_delay_who_asks_to_be_counted_in() -> None:
    group = SimpleNamespace(peers=("leader",), members=frozenset({"leader"}), leader=None)
    joining = object.__new__(Joining)
    joining._meta = SimpleNamespace(group=group)  # type: ignore[assignment]
    joining._network = SimpleNamespace(mesh=Mesh(group), me="me")  # type: ignore[assignment]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await joining._join()
    assert loop.time() - began < 5


@virtual_time
async def test_a_voter_that_was_lost_before_it_was_listed_gives_its_place_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody who leads has met it, so its name tells nothing; with both the group would have four voters of three."""
    listed = MetaService.handle

    async def not_c(service: MetaService, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        return {} if kind == "node" and body["name"] == "C" else await listed(service, kind, body)

    monkeypatch.setattr(MetaService, "handle", not_c)
    cluster = Cluster()
    await cluster.until(lambda: cluster.meta_leader() is not None, what="a meta leader")
    await cluster.until(lambda: len(cluster["A"].js.meta.machine.nodes) == 2, what="A and B are listed")
    old = cluster["C"].me
    cluster.crash("CAB")
    cluster.restart("AB")
    monkeypatch.undo()
    cluster.add("C")
    members = {node.me for node in cluster}
    group = cluster["A"].js.meta.group
    assert group is not None and old in group.peers
    await cluster.until(lambda: set(group.peers) == members, 60, "the three that are there are its voters")
    for node in cluster:
        await cluster.stop(node.name)


@virtual_time
async def test_many_that_join_at_once_do_not_wait_until_they_ask_again() -> None:
    """One change of members is made at a time, and each asks every half second."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with Cluster("ABC", workers=5):
        assert loop.time() - began < 12 * JOIN_RETRY_SECONDS / 2


@virtual_time
async def test_a_node_that_comes_to_a_cluster_at_rest_is_told_of_it() -> None:
    """Nobody announces anything else then, and it founds nothing."""
    async with Cluster() as cluster:
        await asyncio.sleep(2.0)
        late = cluster.add("D")
        await cluster.until(lambda: late.me in cluster["A"].js.meta.group.peers, what="it votes")  # type: ignore[union-attr]


@virtual_time
async def test_a_member_that_hears_too_early_that_it_is_out_asks_once_it_has_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One voter's word may come before the leader falls silent, and nobody has to say it again."""
    async with Cluster("ABCD") as cluster:
        leader = cluster.meta_leader()
        assert leader is not None and leader.js.meta.group is not None
        group = leader.js.meta.group
        out, other = [node for node in cluster if node is not leader][:2]
        rest = tuple(node.me for node in cluster if node is not out)
        monkeypatch.setattr(Joining, "announce", lambda joining: None)
        other.mesh.notify(out.me, BOOT_NOTICE, Announcement(rest, settled=True, meta_peers=rest).encode())
        await cluster.never(lambda: out.me not in group.peers, 1.0, "a change")
        group.remove_peer(out.me)
        await cluster.until(lambda: out.me not in group.members, what="it is out")
        await cluster.until(lambda: out.me in group.peers, what="it is a member again")


class RefusingMesh:
    """Its peer leads the meta group, which has removed this node."""

    reason = REMOVED

    async def call(self, peer: str, method: str, payload: bytes, timeout: float) -> bytes:
        raise MeshRefusedError(self.reason)


@pytest.mark.parametrize("followed", [True, False])
async def test_only_a_server_that_comes_back_gives_its_store_up(*, followed: bool) -> None:
    """One that was removed while it ran is about to be stopped: it must not come back by itself."""
    group = SimpleNamespace(members=frozenset({"me"}), leader="leader" if followed else None)
    log, back = ListLog(), []
    joining = object.__new__(Joining)
    joining.removed, joining._followed, joining._boot = "", False, None
    joining._without = ()  # type: ignore[assignment]
    joining._meta = SimpleNamespace(group=group)  # type: ignore[assignment]
    joining._runtime = SimpleNamespace(log=log)  # type: ignore[assignment]
    joining._network = SimpleNamespace(mesh=RefusingMesh(), me="me")  # type: ignore[assignment]
    joining._came_back = lambda: back.append(1)
    joining.tick()
    for _ in range(3):
        await joining._ask("leader")
    assert joining.removed == REMOVED and len(log.lines) == 1
    assert back == ([] if followed else [1])


async def test_a_refusal_that_lasts_is_logged_once_and_another_one_again() -> None:
    log, time, mesh = ListLog(), ManualTime(), RefusingMesh()
    joining = object.__new__(Joining)
    joining.removed, joining._refused = "", _Refusal("", 0.0)
    joining._runtime = SimpleNamespace(log=log, clock=time)  # type: ignore[assignment]
    joining._network = SimpleNamespace(mesh=mesh, me="me")  # type: ignore[assignment]
    for mesh.reason in ("another change is under way", "too old", "another change is under way"):
        for _ in range(int(REFUSED_SECONDS / JOIN_RETRY_SECONDS)):
            await joining._ask("leader")
            time.advance(JOIN_RETRY_SECONDS)
    assert not log.lines, "each of them was over in time"
    for mesh.reason in ("too old", "another one"):
        for _ in range(3 * int(REFUSED_SECONDS / JOIN_RETRY_SECONDS)):
            await joining._ask("leader")
            time.advance(JOIN_RETRY_SECONDS)
    assert [values for _, _, values in log.lines] == [{"reason": "too old"}, {"reason": "another one"}]


def test_a_server_is_told_of_its_removal_once_that_is_decided() -> None:
    """It gives its store up then, and of two voters the other one may yet lose the end of the change, and need it."""
    joint, left = Config(("me",), outgoing=("me", "gone")), Config(("me",))
    group: Any = SimpleNamespace(peers=("me",), members={"me"}, commit_index=1, members_at={1: joint, 2: left}.get)
    meta: Any = SimpleNamespace(group=group, leading=True, machine=SimpleNamespace(removed={"gone": "n2"}, nodes={}))
    runtime: Any = SimpleNamespace(clock=ManualTime())
    unused: Any = None
    members = MetaMembers(runtime, unused, meta, unused, unused)
    members.admit("gone")
    group.commit_index = 2
    with pytest.raises(MembershipError, match=REMOVED):
        members.admit("gone")
