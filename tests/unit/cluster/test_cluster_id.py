"""The cluster's id on one node (cluster/cluster_id.py)."""

from __future__ import annotations

import pytest

from jetcluster.cluster.cluster_id import ClusterId, founded
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop
from testkit.twins.log import ListLog


def make(cluster_id: str = "") -> tuple[SimMesh, ClusterId, list[tuple[str, bool]]]:
    mesh = MeshNetwork(VirtualLoop()).mesh("A", cluster_id=cluster_id)
    saved: list[tuple[str, bool]] = []
    return mesh, ClusterId(mesh, lambda value, member: saved.append((value, member)), ListLog()), saved


def test_founders_agree_whatever_the_order_and_others_differ() -> None:
    assert founded("C", ("A", "B", "C")) == founded("C", ("C", "A", "B"))
    assert len({founded("C", ("A", "B")), founded("C", ("A", "B", "C")), founded("D", ("A", "B"))}) == 3


def test_a_founder_keeps_it_once_the_meta_log_says_so() -> None:
    mesh, cluster, saved = make()
    cluster.found("X")
    assert mesh.me.cluster_id == cluster.value == "X"
    assert saved == []
    cluster.confirm("X")
    cluster.confirm("X")
    assert saved == [("X", True)]


def test_who_joins_keeps_it_at_once_and_as_a_member_later() -> None:
    mesh, cluster, saved = make()
    cluster.join("X")
    assert mesh.me.cluster_id == "X"
    cluster.confirm("X")
    cluster.join("X")
    assert saved == [("X", False), ("X", True)]


def test_another_id_in_the_meta_log_is_logged() -> None:
    log = ListLog()
    mesh = MeshNetwork(VirtualLoop()).mesh("A", cluster_id="X")
    ClusterId(mesh, lambda value, member: None, log).confirm("Y")
    assert mesh.me.cluster_id == "Y"
    assert log.events("error") == ["the meta group is of another cluster than node.json"]


def test_a_full_disk_does_not_end_the_node() -> None:
    def fail(value: str, member: bool) -> None:
        raise OSError(28, "No space left on device")

    log = ListLog()
    mesh = MeshNetwork(VirtualLoop()).mesh("A")
    ClusterId(mesh, fail, log).join("X")
    assert mesh.me.cluster_id == "X"
    assert log.events("error") == ["the cluster id could not be written"]


@pytest.mark.parametrize(("mine", "theirs", "linked"), [("X", "X", 1), ("X", "", 1), ("", "", 1), ("X", "Y", 0)])
def test_nodes_of_different_clusters_are_not_linked(mine: str, theirs: str, linked: int) -> None:
    time = VirtualLoop()
    network = MeshNetwork(time)
    a, b = network.mesh("A", cluster_id=mine), network.mesh("B", cluster_id=theirs)
    a.start_now()
    b.start_now()
    time.advance(0.1)
    assert len(a.peers) == len(b.peers) == linked
    assert bool(a.counters.refused + b.counters.refused) == (not linked)


def test_a_link_is_cut_when_the_nodes_turn_out_to_differ() -> None:
    time = VirtualLoop()
    network = MeshNetwork(time)
    a, b = network.mesh("A", cluster_id="X"), network.mesh("B")
    a.start_now()
    b.start_now()
    time.advance(0.1)
    assert b.me.peer_id in a.peers
    b.join_cluster("Y")
    time.advance(0.1)
    assert a.peers == b.peers == {}
