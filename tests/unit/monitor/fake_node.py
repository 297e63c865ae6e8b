"""A node for the monitor to look at: the real `Server`, and a JetStream of plain values."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from jetcluster.cluster.balancer import BalanceRules
from jetcluster.config.options import JetStreamOptions, Options
from jetcluster.health.node_health import NodeHealth
from jetcluster.health.usage import PageCounters
from jetcluster.mesh.peer_link import RouteTraffic
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.state import Assignment
from jetcluster.model.limits import UNLIMITED
from jetcluster.model.stream import StreamConfig
from jetcluster.monitor.lag import LagNotes
from jetcluster.raft.api import GroupStatus, PeerStatus, Role
from jetcluster.raft.journal.writer import DiskWaits
from jetcluster.raft.membership import Config
from jetcluster.replica.replica_info import ReplicaInfos

NO_LIMITS = {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1}
CONFIG = {"name": "S", "subjects": ["s.>"], "storage": "file", "num_replicas": 3, "max_bytes": 1000}


class FakeGroup:
    def __init__(self, gid: int, peers: tuple[str, ...], me: str, leader: str | None) -> None:
        self.gid, self.peers, self.members, self.leader = gid, peers, frozenset(peers), leader
        self.role = Role.LEADER if leader == me else Role.FOLLOWER
        self.ready = leader == me
        self.commit_index = self.applied_index = self.last_index = 10
        self.refused = ""
        self.overrun, self.overrun_count = False, 0
        self._me = me

    def members_at(self, index: int) -> Config:
        return Config(self.peers)

    def status(self) -> GroupStatus:
        peers = [PeerStatus(peer, 10, 995.0, True, True, acked_index=10) for peer in self.peers if peer != self._me]
        return GroupStatus(
            self.gid, self.role, 1, self.leader, 1, self.last_index, self.commit_index, self.applied_index, 10, peers,
            overrun=self.overrun, overrun_count=self.overrun_count,
        )  # fmt: skip


class FakeLink:
    """`PeerLink`, as the router's key and as /routez reads it."""

    pending = 5

    def __init__(self, peer_id: str, name: str, stats: SimpleNamespace) -> None:
        self.peer_id, self.info, self.stats = peer_id, SimpleNamespace(name=name, server_id=""), stats


class FakeRaft:
    def __init__(self, clock: Any, others: tuple[str, ...]) -> None:
        self.health = NodeHealth(clock)
        self.peers = FakePeers(self.health, set(others))
        self.losses: list[str] = []
        self.levels = SimpleNamespace(own=2)
        self.journal = SimpleNamespace(free=1 << 30, disk_size=1 << 40, missing="")


class FakePeers:
    def __init__(self, health: NodeHealth, others_well: set[str]) -> None:
        self.health = health
        self.others_well = others_well
        self.silent: set[str] = set()
        """Peers that are not heard."""

    def last_seen(self, peer: str) -> float:
        return 0.0 if peer in self.silent else 995.0

    def may_lead(self, voters: tuple[str, ...]) -> bool:
        return self.health.well or self.others_well.isdisjoint(voters)

    def is_alive(self, peer: str) -> bool:
        return peer not in self.silent

    def is_well(self, peer: str) -> bool:
        return peer in self.others_well and self.is_alive(peer)


def state(messages: int, size: int) -> SimpleNamespace:
    return SimpleNamespace(
        messages=messages, bytes=size, first_seq=1, last_seq=messages, first_ts=1_700_000_000_000_000_000,
        last_ts=1_700_000_001_000_000_000, num_subjects=1, num_deleted=0,
    )  # fmt: skip


def engine(clock: Any, leader: str | None = "AAAAAAAA", replicas: int = 3) -> SimpleNamespace:
    """JetStream of node AAAAAAAA in a cluster of three, with one stream `S` of account `$G`."""
    peers = ("AAAAAAAA", "BBBBBBBB", "CCCCCCCC")[:replicas]
    names = {peer: SimpleNamespace(name=f"n{number}", tags=()) for number, peer in enumerate(peers, 1)}
    services = {
        "runtime": SimpleNamespace(clock=clock),
        "network": SimpleNamespace(
            me="AAAAAAAA",
            name="n1",
            cluster_name="c1",
            mesh=SimpleNamespace(peers={peer: names[peer] for peer in peers[1:]}, refused_members={}),
            raft=FakeRaft(clock, peers[1:]),
            catchup=SimpleNamespace(
                missing=lambda gid, peer: None,
                progress=lambda: [(SimpleNamespace(gid=7, compared=300, fetched=200, size=900, missing=20), 1.55)],
            ),
        ),
        "known": SimpleNamespace(current=True, machine=SimpleNamespace(nodes=names)),
    }
    config = {**CONFIG, "num_replicas": replicas}
    assignment = Assignment(7, "$G", "S", config, peers, 1_700_000_000_000_000_000, peers[0], 3)
    replica = SimpleNamespace(
        **services, assignment=assignment,
        group=FakeGroup(7, peers, "AAAAAAAA", leader), leading=leader == "AAAAAAAA", failed="",
        repair=SimpleNamespace(found=3, repaired=2),
        damaged="", rejected="", disputed="", divergences=1, applying=SimpleNamespace(refusals=1),
        installing=False, leader_since_ns=0, placed_ns=0, scaled_ns=0,
        store=SimpleNamespace(state=state(5, 500)),
        machine=SimpleNamespace(
            rules=SimpleNamespace(memory=False),
            consumer_count=0,
            guard=SimpleNamespace(rules=SimpleNamespace(guard=None)),
        ),
        objects=SimpleNamespace(open_uploads=2),
        mirrors=SimpleNamespace(links=SimpleNamespace(info=lambda **_: {})),
        consumers=SimpleNamespace(
            table=SimpleNamespace(by_cid={}, by_name={}), owner=lambda cid: None, owns=0, hosted=0, running={}
        ),
    )  # fmt: skip
    replica.infos = ReplicaInfos(replica, "$SYS")  # type: ignore[arg-type]
    return SimpleNamespace(
        **services,
        services=SimpleNamespace(settings=SimpleNamespace(system_account="$SYS")),
        clustered=True,
        replicas={7: replica},
        broken={},
        refusals=None,
        scrubber=SimpleNamespace(passes=4, bytes=1000),
        drift=SimpleNamespace(compared=7, votes=SimpleNamespace(undecided=[7])),
        balancer=SimpleNamespace(moved=Counter(leader=2), last=[], rules=BalanceRules),
        durability=SimpleNamespace(differing=["B"]),
        consumer_watch=SimpleNamespace(stuck={(7, 1): None}),
        unassigned=(),
        joining=SimpleNamespace(removed=""),
        meta=SimpleNamespace(
            group=FakeGroup(1, peers, "AAAAAAAA", leader), leading=leader == "AAAAAAAA", machine=MetaMachine()
        ),
        assignment=lambda account, name: assignment if (account, name) == ("$G", "S") else None,
    )


def placed(nodes: Mapping[str, str], **streams: tuple[str, ...]) -> MetaMachine:
    """The state of a meta group with these nodes (peer id: name), and streams of `$G` (name: their peers)."""
    machine, commands = MetaMachine(), []
    for peer, name in nodes.items():
        commands.append({"kind": "node", "peer": peer, "name": name, "tags": [], "jetstream": True})
    for name, peers in streams.items():
        config = StreamConfig(name=name, subjects=[name], num_replicas=len(peers)).normalised().to_wire()
        body = {
            "account": "$G",
            "config": config,
            "peers": peers,
            "leader": peers[0],
            "created": 1,
            "limits": NO_LIMITS,
        }
        commands.append({"kind": "stream_create", **body, "limits": NO_LIMITS})
    for index, command in enumerate(commands, 1):
        result, _ = machine.apply(index, 1, json.dumps({"request": str(index), **command}).encode())
        assert "error" not in result, result
    return machine


def node(server: Any, clock: Any, jetstream: Any = None) -> SimpleNamespace:
    options = Options(server_name="n1", host="127.0.0.1", http_port=-1)
    if jetstream is not None:
        options.jetstream = JetStreamOptions(enabled=True, store_dir="/data", domain="hub")
        options.cluster.name, options.cluster.port = "c1", -1
        options.cluster.routes = ["nats://user:secret@127.0.0.1:6222"]
        counters = SimpleNamespace(total=9, errors=2)
        jetstream = SimpleNamespace(
            jetstream=jetstream,
            mesh=SimpleNamespace(links={}, counters=SimpleNamespace(slow=0, stale=0), traffic=RouteTraffic()),
            cluster_port=6222, apis={"$G": SimpleNamespace(counters=counters, waiting=lambda: (5, 2))},
            disk_waits=DiskWaits(), store_dir="/data/jetstream", renewed_at=1_795_941_829,
            capacity=SimpleNamespace(max_memory=1 << 30, max_storage=1 << 40, own_limits=lambda account: UNLIMITED),
        )  # fmt: skip
    found = SimpleNamespace(
        options=options,
        clock=clock,
        server=server,
        jetstream=jetstream,
        monitor=None,
        page_counters=PageCounters(),
        monitor_port=0,
        leafnodes=None,
        operator=None,
        config_load_ns=0,
        refused_reload=None,
        platform=SimpleNamespace(physical_memory=lambda: 1 << 40, files=os),
    )
    found.monitoring = SimpleNamespace(notes=LagNotes(found), parts={})  # type: ignore[arg-type]
    return found
