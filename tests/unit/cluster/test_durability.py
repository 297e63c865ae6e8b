"""Servers that wait for different things before they acknowledge (cluster/durability.py)."""

from __future__ import annotations

from dataclasses import replace

from jetcluster.cluster.durability import Durability, said
from testkit.twins.mesh_memory import MemoryNetwork
from testkit.twins.time import ManualTime
from tests.unit.cluster.nodes import ListLog


def test_servers_that_differ_are_told_of_once() -> None:
    time, log = ManualTime(), ListLog()
    network = MemoryNetwork(time)
    meshes = [network.mesh(name, sync_interval=seconds) for name, seconds in (("A", 0.0), ("B", 0.0), ("C", 10.0))]
    of_before = network.mesh("D")
    durability = Durability(meshes[0], log)
    for mesh in (*meshes, of_before):
        mesh.start_now()
    time.advance(1.0)
    assert durability.differing == ["C"]
    assert len(log.events("warning")) == 1
    a, c = meshes[0].me.peer_id, meshes[2].me.peer_id
    for _ in range(3):
        network.cut(a, c)
        network.heal(a, c)
        time.advance(1.0)
    assert len(log.events("warning")) == 1
    meshes[2].me = replace(meshes[2].me, sync_interval=0.0)
    network.cut(a, c)
    network.heal(a, c)
    time.advance(1.0)
    assert durability.differing == []
    assert (said(None), said(0.0), said(10.0)) == ("always", "always", "10s")
