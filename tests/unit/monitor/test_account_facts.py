"""The part of an account's limits that streams reserve, and which of them (monitor/account_facts.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetcluster.model.limits import UNLIMITED
from jetcluster.monitor.account_facts import NAMED, account_facts
from tests.unit.meta.test_places import stream
from tests.unit.monitor.test_findings import Mesh, findings

GIB = 1 << 30


class Machine:
    """The part of `MetaMachine` that is asked."""

    def __init__(self, *streams: Any) -> None:
        self.streams = list(streams)
        self.listed = 0
        self.left_out: tuple[str, ...] = ()
        self.nodes: dict[str, Any] = {}

    def assignments(self, account: str) -> list[Any]:
        self.listed += 1
        return self.streams

    def without(self, there: Any) -> set[int]:
        return set()

    def assigned_to(self, peer: str) -> list[Any]:
        return []

    def usage(self, account: str) -> dict[int, tuple[int, int, int]]:
        found: dict[int, tuple[int, int, int]] = {}
        for one in self.streams:
            size = max(one.config["max_bytes"], 0)
            of_memory = one.config["storage"] == "memory"
            streams, memory, file = found.get(one.replicas, (0, 0, 0))
            found[one.replicas] = streams + 1, memory + size * of_memory, file + size * (not of_memory)
        return found


async def facts(node: Any, machine: Machine, **limits: Any) -> Any:
    node.jetstream.capacity.own_limits = lambda account: replace(UNLIMITED, **limits)
    engine = node.jetstream.jetstream
    engine.meta.machine = machine

    async def used(account: str) -> tuple[int, int, int]:
        return 0, 7, 0

    engine.used = used
    (found,) = await account_facts(node)
    return found


def many(count: int) -> list[Any]:
    return [stream(10 + number, "a", replicas=3, max_bytes=number * GIB) for number in range(count)]


async def test_the_largest_are_named_and_the_others_counted(node: Any) -> None:
    machine = Machine(*many(9), stream(2, "a", replicas=1, max_bytes=50 * GIB), stream(3, "a", replicas=3))
    found = await facts(node, machine, max_storage=160 * GIB)
    (one,) = found.reservations
    assert (one.name, one.limit, one.reserved) == ("max_file", 160 * GIB, (3 * 36 + 50) * GIB)
    assert [(s.name, s.max_bytes // GIB, s.counted) for s in one.largest] == [
        ("S2", 50, 1), ("S18", 8, 3), ("S17", 7, 3), ("S16", 6, 3), ("S15", 5, 3),
    ]  # fmt: skip
    assert len(one.largest) == NAMED and one.others == 4, "those without max_bytes reserve nothing"


async def test_of_a_limit_that_is_not_near_no_stream_is_looked_at(node: Any) -> None:
    machine = Machine(*many(9))
    found = await facts(node, machine, max_storage=1000 * GIB)
    assert found.reservations[0].largest == () and machine.listed == 1, "for the number of streams"


async def test_a_tier_counts_one_replica(node: Any) -> None:
    machine = Machine(stream(2, "a", replicas=3, max_bytes=9 * GIB), stream(3, "a", replicas=1, max_bytes=90 * GIB))
    tiers = {"R3": replace(UNLIMITED, max_storage=10 * GIB), "R1": UNLIMITED}
    found = await facts(node, machine, tiers=tiers)
    (one,) = found.reservations
    assert (one.name, one.reserved, one.largest[0]) == ("R3 max_file", 9 * GIB, ("S2", 9 * GIB, 1))
    assert len(one.largest) == 1


async def test_the_finding_has_the_arithmetic(node: Any) -> None:
    await facts(node, Machine(stream(2, "a", replicas=3, max_bytes=30 * GIB)), max_storage=100 * GIB)
    answer = await findings(node, Mesh()).answer(cluster=True)
    (one,) = [one for one in answer["findings"] if one["code"] == "JC512"]
    assert one["what"] == "max_bytes of the streams of account $G reserve 90.0 GiB of max_file 100.0 GiB"
    assert one["why"].startswith(
        "100.0 GiB less 90.0 GiB leave 10.0 GiB. Reserved by S2 90.0 GiB (3 replicas of 30.0 GiB). "
    )
    assert one["figures"]["left"] == 10 * GIB
