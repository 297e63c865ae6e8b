"""The `cluster` object of STREAM.INFO."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from jetcluster.model.times import rfc3339
from jetcluster.records import NamedTuple

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class ReplicaInfo(NamedTuple):
    """One peer of a stream's group, in the view of the leader."""

    name: str
    peer: str
    current: bool
    """It has all entries and was in contact within 10 s."""
    active_ns: int
    """Nanoseconds since the last contact."""
    offline: bool = False
    lag: int = 0
    pending: bool = False
    """The stream is to have it, and it is no voter of its group yet."""


def cluster_wire(
    *,
    name: str,
    leader: str | None,
    gid: int,
    replicas: int,
    memory: bool,
    leader_since_ns: int = 0,
    traffic_account: str = "",
    others: Sequence[ReplicaInfo] = (),
    desired: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the `cluster` object. `leader` is a server name; `others` are all peers except the answering leader;
    `traffic_account` is the system account, to which a group's traffic is accounted. A standalone server has the `name`
    "", and only the leader is shown; R1 in a cluster shows name and leader, unless it is to change."""
    cluster: dict[str, Any] = {"name": name} if name else {}
    if name and (replicas > 1 or desired):
        cluster["raft_group"] = group_name(gid, replicas, memory)
    if leader:
        cluster["leader"] = leader
    if not name or (replicas == 1 and not desired):
        return cluster
    if leader and leader_since_ns:
        cluster["leader_since"] = rfc3339(leader_since_ns)
    if traffic_account:
        cluster |= {"system_account": True, "traffic_account": traffic_account}
    if others:
        cluster["replicas"] = [replica_wire(other) for other in sorted(others)]
    if desired:
        cluster["desired"] = desired
    return cluster


class DesiredOrigin(NamedTuple):
    """The state that a cancelled change goes back to."""

    replicas: int
    placement: Mapping[str, Any] | None


def desired_wire(
    *, name: str, since_ns: int, peers: Sequence[tuple[str, str, bool]], origin: DesiredOrigin | None, catching_up: bool
) -> dict[str, Any]:
    """Returns the `desired` object while replicas are moved, or their number changes; `peers` are (server name, peer
    id, offline)."""
    desired: dict[str, Any] = {
        "created": rfc3339(since_ns),
        "name": name,
        "replicas": [
            {"name": server, **({"offline": True} if offline else {}), "peer": peer} for server, peer, offline in peers
        ],
    }
    if origin is not None:
        placement = {"placement": origin.placement} if origin.placement else {}
        desired["origin"] = {"replicas": origin.replicas, **placement}
    if catching_up:
        desired["status"] = {"description": "waiting for desired peers to catch up", "type": "catchup"}
    else:
        desired["status"] = {"description": "waiting for membership change to commit", "type": "membership"}
    return desired


def replica_wire(info: ReplicaInfo) -> dict[str, Any]:
    replica: dict[str, Any] = {"name": info.name, "current": info.current}
    if info.offline:
        replica["offline"] = True
    replica["active"] = info.active_ns
    if info.lag:
        replica["lag"] = info.lag
    replica["peer"] = info.peer
    if info.pending:
        replica["pending"] = True
    return replica


def group_name(gid: int, replicas: int, memory: bool) -> str:
    """Returns `S-R3F-<8 characters>`; the characters are constant for a group."""
    number = int.from_bytes(hashlib.blake2b(b"%d" % gid, digest_size=8).digest())
    digits = []
    for _ in range(8):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return f"S-R{replicas}{'M' if memory else 'F'}-{''.join(digits)}"
