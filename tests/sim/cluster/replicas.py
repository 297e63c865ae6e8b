"""The stores of all machines, read from inside: which replicas there are of a stream, and whether they are the same."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvDamagedError
from jetcluster.stream.ports import SIDE_MEMBERS
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import DATA
from tests.sim.cluster import invariants, liveness, reckoning, reread

if TYPE_CHECKING:
    from jetcluster.cluster.jetstream import JetStream
    from jetcluster.replica.stream_replica import StreamReplica
    from jetcluster.store.api import Msg

TABLES = [table for table in range(1, 32) if table != SIDE_MEMBERS]
"""Tables of a stream's side rows. Members are kept with the index at which a replica learnt of them, by a command or a
state that it fetched; `liveness` compares who they are."""
SETTLE = 60.0
"""Seconds within which all is well and quiet, once it was well (`liveness`)."""
UNDER_WAY = 6.0
"""Seconds after which what is wrong is not under way any more: a request, a subscription, a consumer's move."""
QUIET = 4.0
"""Seconds for which nothing of that changes then."""
SHORT = 1.0
"""The same where another look follows that takes QUIET."""

Contents = tuple[list["Msg"], list[tuple[int, bytes, bytes]], bytes]


def jetstreams(deployment: Deployment) -> Iterator[tuple[str, JetStream]]:
    """The JetStreams of the machines that run, by the name of the server."""
    for name, machine in deployment.machines.items():
        found = machine.node.jetstream if machine.node is not None else None
        if found is not None and found.jetstream is not None:
            yield name, found.jetstream


def replicas(deployment: Deployment, stream: str, cluster: str = "sim") -> dict[str, StreamReplica]:
    """The replicas of a stream, by the name of the server."""
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
    rows = [(table, key, value) for table in TABLES for key, value in store.side_scan(table)]
    return list(store.queries.scan(b">", 1)), rows, replica.machine.hash


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
            if replica.rejected or replica.installing:
                continue
            names[gid] = replica.assignment.name
            key = (deployment.servers[name].cluster or name, gid, replica.machine.applied_index)
            try:
                own = contents(replica)
            except KvDamagedError:
                if not deployment.machines[name].disk_troubled(DATA):
                    raise
                continue  # rot that its server has not come upon yet
            groups.setdefault(key, []).append((name, own))
    for (_, gid, index), found in groups.items():
        compare(names[gid], index, found)
    return sum(len(found) for found in groups.values() if len(found) > 1)


def read_again(deployment: Deployment) -> None:
    """Compare the memory of servers with their stores. Raises Violation."""
    for name, jetstream in jetstreams(deployment):
        try:
            wrong = next(reread.server(jetstream), "")
        except (DamagedError, KvDamagedError):
            if not deployment.machines[name].disk_troubled(DATA):
                raise
            continue  # rot that its server has not come upon yet
        if wrong:
            raise Violation(f"{name}, {wrong}")


async def reckon(deployment: Deployment) -> None:
    """Check that what servers count and know is so: nothing is wrong for longer than something may be under way. Raises
    Violation."""
    still = set(reckoning.wrong(deployment))
    end = deployment.scheduler.now + UNDER_WAY
    while still and deployment.scheduler.now < end:
        await asyncio.sleep(0.5)
        still &= set(reckoning.wrong(deployment))
    if still:
        raise Violation(f"for {UNDER_WAY:g} s: {min(still)}")


def strangers(deployment: Deployment) -> Iterator[str]:
    """Replicas of streams that are not there, or not on that server."""
    for name, jetstream in jetstreams(deployment):
        me = jetstream.network.me
        own = {one.gid for one in jetstream.meta.machine.all_assignments() if me in one.peers}
        if rest := jetstream.replicas.keys() - own:
            yield f"{name} has replicas that belong to nobody: {sorted(rest)}"


def standing(deployment: Deployment) -> list[tuple[object, ...]]:
    """All that is not to change while nothing happens."""
    found: list[tuple[object, ...]] = [(name, machine.starts) for name, machine in deployment.machines.items()]
    for one in invariants.replicas(deployment):
        found.append((one.machine.name, one.gid, one.group.term, one.group.role.name))
    return found


async def settle(deployment: Deployment, seconds: float = SETTLE, quiet: float = QUIET) -> None:
    """Returns when all is well (`liveness`), quiet, and the same everywhere. Raises Violation."""
    end = deployment.scheduler.now + seconds
    since, still = deployment.scheduler.now, standing(deployment)
    while deployment.scheduler.now < since + quiet:
        await asyncio.sleep(0.5)
        wrong = next(itertools.chain(liveness.wanting(deployment), strangers(deployment)), "")
        before, still = still, standing(deployment)
        if wrong or still != before:
            since = deployment.scheduler.now
        if deployment.scheduler.now > end:
            raise Violation(f"{seconds:g} s later: {wrong or 'it is not quiet'}")
    while any(jetstream.services.commits.waiting for _, jetstream in jetstreams(deployment)):
        await asyncio.sleep(0.05)  # rows of consumers, which links make at any time, are written with their commit
    compare_all(deployment)
    read_again(deployment)
    await reckon(deployment)
