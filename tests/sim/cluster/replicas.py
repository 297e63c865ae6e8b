"""The stores of all machines, read from inside: which replicas there are of a stream, and whether they are the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jetcluster.raft.api import Role
from jetcluster.raft.membership import decode_members, encode_config
from jetcluster.stream.ports import SIDE_MEMBERS
from tests.sim.cluster.deployment import Deployment, Violation

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica
    from jetcluster.store.api import Msg

TABLES = range(1, 32)
"""Of a stream's side rows, those not in use are empty."""
SETTLE = 90.0
"""Seconds after the last fault within which everything is led, current and the same everywhere."""
QUIET = 4.0
"""Seconds for which nothing of that changes then."""

Contents = tuple[list["Msg"], list[tuple[int, bytes, bytes]], bytes]


def jetstreams(deployment: Deployment) -> Iterator[tuple[str, JetStream]]:
    """Of the machines that run, by the name of the server."""
    for name, machine in deployment.machines.items():
        found = machine.node.jetstream if machine.node is not None else None
        if found is not None and found.jetstream is not None:
            yield name, found.jetstream


def replicas(deployment: Deployment, stream: str, cluster: str = "sim") -> dict[str, StreamReplica]:
    """By the name of the server."""
    return {
        name: replica
        for name, jetstream in jetstreams(deployment)
        for replica in jetstream.replicas.values()
        if replica.assignment.name == stream and deployment.servers[name].cluster == cluster
    }


def decided(deployment: Deployment, stream: str, consumer: str) -> int:
    """The last delivery of a consumer, in its own count, that any replica knows of."""
    found = 0
    for replica in replicas(deployment, stream).values():
        for one in replica.consumers.table.by_cid.values():
            if one.name == consumer:
                found = max(found, one.delivered_cseq)
    return found


def contents(replica: StreamReplica) -> Contents:
    """Messages, side rows (table, key, value) and the rolling hash."""
    store = replica.store
    rows = [(table, key, value) for table in TABLES if table != SIDE_MEMBERS for key, value in store.side_scan(table)]
    members = store.side_get(SIDE_MEMBERS, b"")
    if members is not None:
        # At which index of its own state a replica learned of them is its own matter: a fetched state has a later one.
        rows.append((SIDE_MEMBERS, b"", encode_config(decode_members(members).config)))
    return list(store.scan(b">", 1)), rows, replica.machine.hash


def compare(stream: str, index: int, found: Sequence[tuple[str, Contents]]) -> None:
    """`found`: what each server has at the same `index`. Raises Violation."""
    (first, one), *others = found
    for name, other in others:
        where = f"{stream} at index {index}: {first} and {name} differ"
        for mine, theirs in zip(one[0], other[0], strict=False):
            if mine != theirs:
                raise Violation(f"{where}: {mine} and {theirs}")
        if len(one[0]) != len(other[0]):
            raise Violation(f"{where}: {len(one[0])} and {len(other[0])} messages")
        rows, their_rows = set(one[1]), set(other[1])
        if rows != their_rows:
            raise Violation(f"{where}: rows {sorted(rows - their_rows)[:3]} and {sorted(their_rows - rows)[:3]}")
        if one[2] != other[2]:
            raise Violation(f"{where}: only their hashes")


def compare_all(deployment: Deployment) -> int:
    """Replicas at equal index are equal; how many were compared. Raises Violation."""
    groups: dict[tuple[str, int, int], list[tuple[str, Contents]]] = {}
    names: dict[int, str] = {}
    for name, jetstream in jetstreams(deployment):
        for gid, replica in jetstream.replicas.items():
            if replica.suspect or replica.installing:
                continue
            names[gid] = replica.assignment.name
            key = (deployment.servers[name].cluster or name, gid, replica.machine.applied_index)
            groups.setdefault(key, []).append((name, contents(replica)))
    for (_, gid, index), found in groups.items():
        compare(names[gid], index, found)
    return sum(len(found) for found in groups.values() if len(found) > 1)


def state(deployment: Deployment) -> tuple[list[str], list[tuple[object, ...]]]:
    """What is not as it is to be, and what is not to change while nothing happens."""
    wrong: list[str] = []
    still: list[tuple[object, ...]] = []
    for name in deployment.servers:
        machine = deployment.machines[name]
        if not machine.ready:
            wrong.append(f"{name} does not serve")
        still.append((name, machine.starts))
    led: dict[tuple[str, int], int] = {}
    for name, jetstream in jetstreams(deployment):
        cluster = deployment.servers[name].cluster or name
        me = jetstream.context.me
        wanted = [one for one in jetstream.meta.machine.all_assignments() if me in one.peers]
        for assignment in wanted:
            replica = jetstream.replicas.get(assignment.gid)
            what = f"{name}: {assignment.name}"
            if replica is None:
                wrong.append(f"{what} has no replica")
                continue
            led.setdefault((cluster, assignment.gid), 0)
            group = replica.group
            led[cluster, assignment.gid] += group.role is Role.LEADER
            if set(group.peers) != set(assignment.peers):
                wrong.append(f"{what} has other members than the meta group says")
            if replica.suspect or replica.doubt or replica.installing:
                wrong.append(f"{what} is not sound: {replica.suspect or replica.doubt or 'installing'}")
            if group.applied_index < group.last_index:
                wrong.append(f"{what} has not applied all it has")
            still.append((name, assignment.gid, group.term, group.role.name))
        strangers = jetstream.replicas.keys() - {one.gid for one in wanted}
        if strangers:
            wrong.append(f"{name} has replicas that belong to nobody: {sorted(strangers)}")
    wrong += [f"group {gid} of {cluster} has {count} leaders" for (cluster, gid), count in led.items() if count != 1]
    indexes: dict[tuple[str, int], set[int]] = {}
    for name, jetstream in jetstreams(deployment):
        for gid, replica in jetstream.replicas.items():
            cluster = deployment.servers[name].cluster or name
            indexes.setdefault((cluster, gid), set()).add(replica.machine.applied_index)
    wrong += [
        f"group {gid} of {cluster} stands at {sorted(at)}" for (cluster, gid), at in indexes.items() if len(at) > 1
    ]
    return wrong, still


async def settle(deployment: Deployment, seconds: float = SETTLE) -> None:
    """Returns when everything is led, current, the same everywhere, and quiet. Raises Violation."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    quiet_since = loop.time()
    wrong, still = state(deployment)
    while wrong or loop.time() - quiet_since < QUIET:
        if loop.time() > end:
            raise Violation(f"{seconds:.0f} s after the last fault: {'; '.join(wrong[:5]) or 'it is not quiet'}")
        await asyncio.sleep(0.5)
        before = still
        wrong, still = state(deployment)
        if wrong or still != before:
            quiet_since = loop.time()
    compare_all(deployment)
