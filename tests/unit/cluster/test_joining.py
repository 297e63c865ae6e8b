"""A node that asks to be counted in (cluster/joining.py)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.cluster.joining import JOIN_RETRY_SECONDS, Joining
from jetcluster.cluster.meta_service import MetaService
from jetcluster.mesh.api import MeshError
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time


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
