"""The `cluster` object of STREAM.INFO: plain values in, a wire dict out (shared/reference/streams.md 6.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from jetcluster.model.times import rfc3339

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class ReplicaInfo(NamedTuple):
    """One peer of a stream's group as the leader sees it."""

    name: str
    peer: str
    current: bool
    """Nothing missing and seen within 10 s."""
    active_ns: int
    """Nanoseconds since last contact."""
    offline: bool = False
    lag: int = 0


def cluster_wire(
    *,
    name: str,
    leader: str | None,
    gid: int,
    replicas: int,
    memory: bool,
    leader_since_ns: int = 0,
    others: Sequence[ReplicaInfo] = (),
) -> dict[str, Any]:
    """The `cluster` object. `leader` is a server name; `others` are all peers but the answering leader. A standalone
    server gives `name` "" and only the leader is shown; R1 in a cluster shows name and leader."""
    cluster: dict[str, Any] = {"name": name} if name else {}
    if name and replicas > 1:
        cluster["raft_group"] = group_name(gid, replicas, memory)
    if leader:
        cluster["leader"] = leader
    if not name or replicas == 1:
        return cluster
    if leader and leader_since_ns:
        cluster["leader_since"] = rfc3339(leader_since_ns)
    if others:
        cluster["replicas"] = [replica_wire(other) for other in sorted(others)]
    return cluster


def replica_wire(info: ReplicaInfo) -> dict[str, Any]:
    replica: dict[str, Any] = {"name": info.name, "current": info.current}
    if info.offline:
        replica["offline"] = True
    replica["active"] = info.active_ns
    if info.lag:
        replica["lag"] = info.lag
    replica["peer"] = info.peer
    return replica


def group_name(gid: int, replicas: int, memory: bool) -> str:
    """`S-R3F-<8 characters>`, the same for a group's whole life."""
    number = int.from_bytes(hashlib.blake2b(b"%d" % gid, digest_size=8).digest())
    digits = []
    for _ in range(8):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return f"S-R{replicas}{'M' if memory else 'F'}-{''.join(digits)}"
