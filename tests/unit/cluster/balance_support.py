"""Clusters that balance: what their servers carry, and what is told of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from jetcluster.cluster import balancer, load, replica_moves, replica_rests
from testkit.sim.nodes import Cluster, Node
from tests.unit.cluster.consumers import host

REST, STEADY, BY_HAND = 12.0, 6.0, 60.0
QUIET = REST + STEADY + 10.0


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are a fifth of the usual ones, or less."""
    monkeypatch.setattr(load, "REST_SECONDS", REST)
    monkeypatch.setattr(load, "OWNED_SECONDS", REST)
    for module in (replica_moves, replica_rests):
        monkeypatch.setattr(module, "REST_SECONDS", REST)
    monkeypatch.setattr(replica_rests, "BY_HAND_SECONDS", BY_HAND)
    monkeypatch.setattr(balancer, "STEADY_SECONDS", STEADY)
    monkeypatch.setattr(balancer, "LONGEST_PAUSE", REST)


def leads(cluster: Cluster) -> Counter[str]:
    found = Counter({node.name: 0 for node in cluster})
    found.update(node.name for node in cluster for replica in node.js.replicas.values() if replica.leading)
    return found


def owns(cluster: Cluster, stream: str = "S") -> Counter[str]:
    names = {node.me: node.name for node in cluster}
    leader = cluster.leader(stream)
    return Counter(names[state.owner] for state in host(leader, stream).table.by_cid.values())


def moves(cluster: Cluster) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in cluster:
        found.update(node.js.balancer.moved)
    return found


def advisories(node: Node, account: str = "") -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    bus = node.accounts[account] if account else node.bus
    bus.subscribe(b"$JS.EVENT.ADVISORY.STREAM.BALANCED.*", lambda _s, _r, _h, body, _o: told.append(json.loads(body)))
    return told


async def all_led_by(cluster: Cluster, name: str, streams: int) -> None:
    """Streams that all have the same leader: the others were away for a moment."""
    for number in range(streams):
        await cluster.create(f"S{number}")
    for number in range(streams):
        leader = await cluster.led(f"S{number}")
        if leader.name != name:
            leader.replica(f"S{number}").group.transfer(cluster[name].me)
    await cluster.until(lambda: leads(cluster)[name] == streams, what=f"{name} leads all")
