"""A server gets its share of replicas (cluster/replica_moves.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from jetcluster.budget import Steps
from jetcluster.cluster import load, replica_moves, replica_rests
from jetcluster.cluster.balance_news import BalanceMove
from jetcluster.cluster.balancer import BalanceRules
from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.replica_moves import ReplicaMoves, weight_of
from jetcluster.meta.balance import Choices, Unit, uneven
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.placement import PlacementRules
from jetcluster.meta.state import Assignment
from testkit.sim.nodes import Cluster, Node, NoRespondersError
from testkit.sim.shared import virtual_time
from tests.unit.cluster.balance_support import BY_HAND, QUIET, STEADY, advisories, leads, moves, shorten


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


@virtual_time
async def test_a_new_server_gets_replicas_one_after_the_other_and_then_leaders() -> None:
    async with Cluster() as cluster:
        for number in range(12):
            await cluster.create(f"S{number}", 3 if number % 4 else 1)
            await cluster["A"].publish(f"s{number}".encode(), b"kept")
        told = advisories(cluster["A"])
        cluster.network.expected = 4
        added = cluster.add("D")
        await asyncio.sleep(STEADY - 3)
        assert not added.js.replicas, "it must have been there for a while"
        total = 9 * 3 + 3
        await cluster.until(lambda: len(added.js.replicas) >= total // 4 - 1, 400, "its share of replicas")
        await cluster.until(lambda: leads(cluster)["D"] >= 2, 3 * QUIET, "its share of leaders")
        await asyncio.sleep(60)
        held = [len(node.js.replicas) for node in cluster]
        assert sum(held) == total and max(held) - min(held) <= 1, held
        assert max(leads(cluster).values()) - min(leads(cluster).values()) <= 2, leads(cluster)
        copies = [one for one in told if one["kind"] == "replica"]
        assert copies and {one["to"] for one in copies} == {"D"}
        assert "replicas of weight" in copies[0]["why"]
        for number in range(12):
            await cluster.equal(f"S{number}")
            assert cluster.leader(f"S{number}").replica(f"S{number}").store.messages == 1
        before = len(told)
        await asyncio.sleep(60)
        assert len(told) == before, told[before:]


@virtual_time
async def test_no_replica_moves_while_a_server_is_away_or_a_placement_forbids_it() -> None:
    async with Cluster("ABCDE", tags={"A": "fast", "B": "fast", "C": "fast", "D": "fast"}) as cluster:
        for node in cluster:
            node.js.balancer.rules = lambda: BalanceRules(leaders=False, replicas=False)
        for number in range(8):
            await cluster.create(f"S{number}", 3, placement={"tags": ["fast"]})
        cluster.crash("D")
        await asyncio.sleep(10)
        home = next(iter(cluster))
        for number in range(8):
            body = {"request": f"m{number}", "account": "$G", "name": f"S{number}", "peer": "D"}
            assignment = home.js.assignment("$G", f"S{number}")
            assert assignment is not None
            if cluster.nodes["D"].me in assignment.peers:
                await home.js.meta_request("stream_peer_remove", body)
        for node in cluster:
            node.js.balancer.rules = BalanceRules
        await asyncio.sleep(QUIET)
        assert not moves(cluster)[load.REPLICAS], "a server is away"
        back = cluster.restart("D")
        back.js.balancer.rules = BalanceRules
        await cluster.until(lambda: len(back.js.replicas) == 6, 600, "a fourth of 24")
        await asyncio.sleep(QUIET)
        assert not cluster["E"].js.replicas, "it is not fast"


async def grown(cluster: Cluster, streams: int, replicas: int = 3) -> Node:
    """As many streams, each with a message, and then one more server."""
    for number in range(streams):
        await cluster.create(f"S{number}", replicas)
        await cluster["A"].publish(f"s{number}".encode(), b"x" * 1000)
    cluster.network.expected = 4
    return cluster.add("D")


@virtual_time
async def test_a_server_that_is_nearly_full_gets_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Cluster() as cluster:
        added = await grown(cluster, 8)
        await cluster.until(lambda: added.js.parts.load is not None, what="it runs")
        monkeypatch.setattr(added.js.parts.load, "_rules", lambda: PlacementRules(max_storage=1800))
        await asyncio.sleep(STEADY + QUIET)
        assert not added.js.replicas, "a copy takes more than 1000 bytes, and needs twice as many"
        monkeypatch.setattr(added.js.parts.load, "_rules", lambda: PlacementRules(max_storage=100_000))
        await cluster.until(lambda: len(added.js.replicas) == 6, 200, "a fourth of 24")


@virtual_time
async def test_streams_that_must_stay_do_not_keep_others_from_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "ATTEMPTS", 1)
    monkeypatch.setattr(replica_moves, "PLACES", 2)
    async with Cluster(tags=dict.fromkeys("ABC", "fast")) as cluster:
        for number in range(12):
            await cluster.create(f"S{number}", 3, placement={"tags": ["fast"]} if number >= 4 else {})
        cluster.network.expected = 4
        added = cluster.add("D")
        await cluster.until(lambda: len(added.js.replicas) == 4, 300, "those that may be here")
        assert all(added.has(f"S{number}") for number in range(4))


async def crowded(cluster: Cluster, placed: Mapping[int, Sequence[str]], streams: int) -> Node:
    """As many streams, the later ones larger, of which some have a placement by tags, and then one more server."""
    for number in range(streams):
        await cluster.create(f"S{number}", 1, placement={"tags": list(placed[number])} if number in placed else {})
        await cluster["A"].publish(f"s{number}".encode(), b"x" * (1000 + 100 * number))
    cluster.network.expected = 4
    return cluster.add("D")


@virtual_time
@pytest.mark.parametrize(("tags", "named"), [((), 4), (("any",), 4), (("any",), 512)])
async def test_of_very_many_replicas_those_that_may_move_are_found_between_those_that_must_stay(
    tags: tuple[str, ...], named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server names some of its replicas, of which two are compared, and what was refused is forgotten."""
    monkeypatch.setattr(load, "MAX_UNITS", named)
    monkeypatch.setattr(replica_moves, "MAX_UNITS", 2)
    monkeypatch.setattr(replica_rests, "REFUSED_SECONDS", 1.0)
    free = (20, 22, 24)
    placed = dict.fromkeys(range(48), ("fast", "any")) | dict.fromkeys(free, tags)
    async with Cluster(tags=dict.fromkeys("ABC", "fast any") | {"D": "any"}) as cluster:
        added = await crowded(cluster, {number: some for number, some in placed.items() if some}, 48)
        await cluster.until(lambda: len(added.js.replicas) == len(free), 1000, "those that may be here")
        assert all(added.has(f"S{number}") for number in free)


@virtual_time
async def test_a_server_names_all_of_its_replicas_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_UNITS", 8)
    async with Cluster(tags=dict.fromkeys("ABC", "fast")) as cluster:
        node = cluster["B"]
        for number in range(40):
            await cluster.create(f"S{number}", 3, placement={"tags": ["fast"]} if number % 4 else {})
        await cluster.until(lambda: len(node.js.replicas) == 40, what="all are there")
        others = {gid for gid, replica in node.js.replicas.items() if not replica.leading}
        named: list[set[int]] = []
        for _ in range(30):
            rows = json.loads(await cluster["A"].mesh.call(node.me, load.UNITS_METHOD, b"replica", 5.0))
            named.append({gid for gid, _ in rows})
            assert len(named[-1]) == len(rows) <= 8
            assert sum(not node.js.replicas[gid].assignment.config.get("placement") for gid in named[-1]) >= 4
        assert set.union(*named) == others
        assert len(set.intersection(*named)) >= 4, "and the heaviest and the lightest each time"


@virtual_time
async def test_a_stream_whose_replica_was_removed_by_hand_does_not_get_it_back() -> None:
    async with Cluster("ABCD") as cluster:
        for number in range(8):
            await cluster.create(f"S{number}")
        await asyncio.sleep(STEADY + QUIET)
        there = [number for number in range(8) if cluster["A"].has(f"S{number}")][:3]
        for number in there:
            body = {"request": f"m{number}", "account": "$G", "name": f"S{number}", "peer": "A"}
            await cluster["B"].js.meta_request("stream_peer_remove", body)
        for _ in range(int(BY_HAND) - 10):
            await asyncio.sleep(1.0)
            for number in there:
                assignment = cluster["B"].js.assignment("$G", f"S{number}")
                assert assignment is not None and cluster["A"].me not in assignment.peers, number
        await cluster.until(lambda: len(cluster["A"].js.replicas) >= 5, 300, "its share, as before")


@virtual_time
async def test_nothing_moves_while_a_replica_anywhere_is_amiss() -> None:
    async with Cluster() as cluster:
        await cluster.create("other")
        leader = await cluster.led("other")
        amiss = next(node for node in cluster if node is not leader).replica("other")
        amiss.rejected = "by this test"
        added = await grown(cluster, 8)
        for _ in range(int(STEADY + QUIET)):
            amiss.rejected = "by this test"  # whatever mends it
            await asyncio.sleep(1.0)
        assert not added.js.replicas
        amiss.rejected = ""
        await cluster.until(lambda: len(added.js.replicas) >= 6, 300, "its share")


def test_bytes_that_differ_by_less_than_a_tenth_are_equal() -> None:
    loads = {"A": weight_of(10, 105 << 30), "B": weight_of(10, 100 << 30)}
    assert not uneven(loads, loads, load.ONE)
    loads["A"] = weight_of(10, 130 << 30)
    assert uneven(loads, loads, load.ONE)


@virtual_time
async def test_a_stream_that_has_not_caught_up_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream is asked in each round, and the first one does not answer."""
    monkeypatch.setattr(replica_moves, "ATTEMPTS", 1)
    monkeypatch.setattr(replica_moves, "MAX_UNITS", 2)
    sizes: list[int] = []
    asked: list[str] = []
    fill, members_of = Choices.fill, ReplicaMoves.members_of

    def counted(choices: Choices, units: list[Unit]) -> Steps[None]:
        sizes.append(len(units))
        return fill(choices, units)

    async def members(moves: ReplicaMoves, assignment: Assignment) -> Mapping[str, Any]:
        asked.append(assignment.name)
        return {} if assignment.name == asked[0] else await members_of(moves, assignment)

    monkeypatch.setattr(Choices, "fill", counted)
    monkeypatch.setattr(ReplicaMoves, "members_of", members)
    async with Cluster() as cluster:
        added = await grown(cluster, 4)
        await cluster.until(lambda: bool(added.js.replicas), 200, "another one moved")
        assert asked.count(asked[0]) == 1 < len(asked), "it rests"
        assert max(sizes) == 2 * 3, "two of each server"


@virtual_time
async def test_a_server_may_be_removed_during_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is known before."""
    gone = False
    told: list[BalanceMove] = []
    set_peers, nodes = MetaService.set_peers, MetaMachine.nodes

    async def removed(service: MetaService, old: Assignment, peers: Sequence[str], request: str) -> object:
        nonlocal gone
        answer = await set_peers(service, old, peers, request)
        gone = True
        return answer

    def tell(move: BalanceMove, log: object, events: object) -> None:
        nonlocal gone
        gone = False
        told.append(move)

    monkeypatch.setattr(MetaService, "set_peers", removed)
    monkeypatch.setattr(MetaMachine, "nodes", property(lambda machine: {} if gone else nodes.fget(machine)))  # type: ignore[attr-defined]
    monkeypatch.setattr(BalanceMove, "tell", tell)
    async with Cluster() as cluster:
        added = await grown(cluster, 8)
        await cluster.until(lambda: any(one.target == added.name for one in told), 200, "a move is told")


class Publishers:
    """One for each stream, at one node; each sends its message again after 0.4 s without an ack, as clients do."""

    def __init__(self, node: Node, streams: int, pause: float) -> None:
        self.longest = 0.0
        """Seconds from a message's first sending to its ack."""
        self.acked = 0
        self._node, self._pause = node, pause
        self.tasks = [asyncio.get_running_loop().create_task(self._publish(number)) for number in range(streams)]

    async def _publish(self, stream: int) -> None:
        subject, clock = f"s{stream}".encode(), self._node.cluster.loop
        await asyncio.sleep(self._pause * (stream % 17) / 17)
        while True:
            began = clock.time()
            while not await self._stored(subject):
                await asyncio.sleep(0.01)
            self.longest = max(self.longest, clock.time() - began)
            self.acked += 1
            await asyncio.sleep(self._pause)

    async def _stored(self, subject: bytes) -> bool:
        try:
            _, _, body = await self._node.request(subject, b"x", 0.4)
        except (NoRespondersError, TimeoutError):
            return False
        return b'"seq"' in body


async def grown_and_shrunk(streams: int, pause: float) -> float:
    """Three servers become six and three again; the longest time for which a message waited for its ack."""
    async with Cluster() as cluster:
        for number in range(streams):
            await cluster.create(f"S{number}", 1 if number % 6 == 5 else 3)
        total = sum(len(node.js.replicas) for node in cluster)
        load_of_all = Publishers(cluster["A"], streams, pause)
        for name in "DEF":
            cluster.add(name)

        def even() -> bool:
            held = [len(node.js.replicas) for node in cluster]
            led = leads(cluster).values()
            return max(held) - min(held) <= 1 and max(led) - min(led) <= 2 and sum(held) == total

        await cluster.until(even, 60.0 + 4.0 * streams, "all six carry as much")
        assert all(node.js.replicas for node in cluster)
        for name in "DEF":
            leaving = cluster[name]
            request = {"request": f"e{name}", "peer": name}
            await cluster["A"].js.meta_request("server_evacuate", request)
            await cluster.until(lambda node=leaving: not node.js.replicas, 30.0 + 2.0 * streams, f"{name} is empty")  # type: ignore[misc]
            await cluster["A"].js.meta_request("server_remove", {**request, "request": f"r{name}"})
            await cluster.stop(name)
        await cluster.until(even, 120.0, "all three carry as much")
        for task in load_of_all.tasks:
            task.cancel()
        assert load_of_all.acked > 10 * streams
        for number in range(streams):
            await cluster.equal(f"S{number}")
        print(streams, "streams:", load_of_all.acked, "acks, at most", round(load_of_all.longest, 3), "s")
        return load_of_all.longest


@pytest.mark.thorough
@virtual_time
async def test_three_servers_become_six_and_three_again_and_no_stream_is_without_acks_for_a_second() -> None:
    """On a virtual clock, so that only what the servers wait for counts, and not how slow this machine is."""
    assert await grown_and_shrunk(18, 0.5) < 1.0
