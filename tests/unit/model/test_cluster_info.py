from __future__ import annotations

import re

from jetcluster.model.cluster_info import DesiredOrigin, ReplicaInfo, cluster_wire, desired_wire, group_name


def test_standalone_and_r1_show_little() -> None:
    assert cluster_wire(name="", leader="N1", gid=2, replicas=1, memory=False) == {"leader": "N1"}
    single = cluster_wire(name="C", leader="N1", gid=2, replicas=1, memory=False, traffic_account="SYS")
    assert single == {"name": "C", "leader": "N1"}


def test_r3_shows_its_replicas_sorted_by_name() -> None:
    others = [
        ReplicaInfo("N3", "p3", current=False, active_ns=5, offline=True, lag=7),
        ReplicaInfo("N2", "p2", current=True, active_ns=42),
        ReplicaInfo("N4", "p4", current=False, active_ns=0, pending=True),
    ]
    cluster = cluster_wire(
        name="C", leader="N1", gid=2, replicas=3, memory=False, leader_since_ns=1_700_000_000_000_000_000,
        traffic_account="SYS", others=others,
    )  # fmt: skip
    assert list(cluster) == [
        "name", "raft_group", "leader", "leader_since", "system_account", "traffic_account", "replicas",
    ]  # fmt: skip
    assert (cluster["system_account"], cluster["traffic_account"]) == (True, "SYS")
    assert cluster["leader_since"] == "2023-11-14T22:13:20Z"
    assert cluster["replicas"] == [
        {"name": "N2", "current": True, "active": 42, "peer": "p2"},
        {"name": "N3", "current": False, "offline": True, "active": 5, "lag": 7, "peer": "p3"},
        {"name": "N4", "current": False, "active": 0, "peer": "p4", "pending": True},
    ]


def test_leaderless() -> None:
    cluster = cluster_wire(name="C", leader=None, gid=2, replicas=3, memory=True, leader_since_ns=5)
    assert set(cluster) == {"name", "raft_group"}


def test_group_names_are_stable_and_distinct() -> None:
    names = {group_name(gid, 3, False) for gid in range(2, 2002)}
    assert len(names) == 2000
    assert all(re.fullmatch(r"S-R3F-[0-9A-Za-z]{8}", name) for name in names)
    assert group_name(2, 1, True).startswith("S-R1M-")
    assert group_name(2, 1, True)[6:] == group_name(2, 3, False)[6:]


def test_desired_while_a_stream_is_moved() -> None:
    desired = desired_wire(
        name="C", since_ns=1_000_000_000, peers=[("n4", "p4", False), ("n5", "p5", True)],
        origin=DesiredOrigin(1, {"tags": ["old"]}), catching_up=True,
    )  # fmt: skip
    assert desired == {
        "created": "1970-01-01T00:00:01Z",
        "name": "C",
        "replicas": [{"name": "n4", "peer": "p4"}, {"name": "n5", "offline": True, "peer": "p5"}],
        "origin": {"replicas": 1, "placement": {"tags": ["old"]}},
        "status": {"description": "waiting for desired peers to catch up", "type": "catchup"},
    }
    wire = cluster_wire(name="C", leader="n1", gid=5, replicas=1, memory=False, desired=desired)
    assert wire == {"name": "C", "raft_group": group_name(5, 1, False), "leader": "n1", "desired": desired}
    assert "desired" not in cluster_wire(name="C", leader="n1", gid=5, replicas=3, memory=False)
    assert "desired" not in cluster_wire(name="", leader="n1", gid=5, replicas=1, memory=False, desired=desired)


def test_desired_while_replicas_only_go_and_without_an_origin() -> None:
    desired = desired_wire(name="C", since_ns=0, peers=[("n4", "p4", False)], origin=None, catching_up=False)
    assert desired["status"] == {"description": "waiting for membership change to commit", "type": "membership"}
    assert "origin" not in desired
