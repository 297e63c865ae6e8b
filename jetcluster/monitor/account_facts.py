"""The facts of accounts for the rules of `jetcluster.doctor`: what is used and reserved of their limits."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from jetcluster.doctor.config_rules import NEARLY
from jetcluster.doctor.facts import AccountFacts, ReservationFacts, ReservingStream
from jetcluster.meta.places import claim
from jetcluster.model.limits import AccountLimits, tier_replicas
from jetcluster.monitor.view import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetcluster.meta.machine import MetaMachine
    from jetcluster.node.node import Node

MAX_ACCOUNTS: Final = 200
"""Accounts with limits whose use is looked at."""
NAMED: Final = 5
"""Streams of an account that are named, those that reserve the most."""
KINDS: Final = (("file", "max_file"), ("memory", "max_mem"))
"""(storage, name of the limit)"""


async def account_facts(node: Node) -> list[AccountFacts]:
    """Returns the accounts with limits. Their use is counted over all servers."""
    engine, found = engine_of(node), []
    if engine is None or node.jetstream is None or node.jetstream.capacity is None:
        return []
    for account in list(node.jetstream.apis)[:MAX_ACCOUNTS]:
        limits = node.jetstream.capacity.own_limits(account)
        tiers = (limits.tiers or {}).values()
        if all(max(one.max_memory, one.max_storage, one.max_streams) <= 0 for one in (limits, *tiers)):
            continue
        memory, storage, _ = await engine.used(account)
        machine = engine.meta.machine
        found.append(
            AccountFacts(
                node.server.name, account, storage, limits.max_storage, memory, limits.max_memory,
                len(machine.assignments(account)), limits.max_streams, tuple(_reservations(machine, account, limits)),
            )
        )  # fmt: skip
    return found


def _reservations(machine: MetaMachine, account: str, limits: AccountLimits) -> Iterator[ReservationFacts]:
    usage, tiers = machine.usage(account), limits.tiers or {}
    rows = [(replicas, tiers[name]) for name in sorted(tiers) if (replicas := tier_replicas(name))]
    for replicas, of in rows or [(0, limits)]:
        for storage, name in KINDS:
            limit = of.max_storage if storage == "file" else of.max_memory
            if limit <= 0:
                continue
            sizes = {count: memory if storage == "memory" else file for count, (_, memory, file) in usage.items()}
            # Of a tier a stream's bytes count once.
            reserved = sizes.get(replicas, 0) if replicas else sum(count * size for count, size in sizes.items())
            shown = f"R{replicas} {name}" if replicas else name
            yield _reservation(machine, account, storage, shown, limit, reserved, replicas)


def _reservation(
    machine: MetaMachine, account: str, storage: str, name: str, limit: int, reserved: int, replicas: int
) -> ReservationFacts:
    """`replicas`: the tier's; 0 for the account as a whole. Streams are looked at where the limit is near."""
    if reserved <= NEARLY * limit:
        return ReservationFacts(name, limit, reserved)
    streams = [
        ReservingStream(one.name, claim(one.config), 1 if replicas else one.replicas)
        for one in machine.assignments(account)
        if one.config["storage"] == storage and claim(one.config) and replicas in {0, one.replicas}
    ]
    largest = heapq.nlargest(NAMED, streams, key=lambda one: one.max_bytes * one.counted)
    return ReservationFacts(name, limit, reserved, tuple(largest), len(streams) - len(largest))
