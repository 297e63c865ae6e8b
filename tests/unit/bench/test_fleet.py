"""The placing of the simulated fleet, in small; tests/unit/cluster/test_meta_voters.py has its nodes."""

from __future__ import annotations

from collections import Counter

from bench.scenarios.fleet import REPLICAS, Placing


async def test_no_machine_of_a_fleet_has_two_replicas_of_a_stream() -> None:
    placing = Placing(machines=6, workers=4)
    await placing.register()
    for number in range(200):
        await placing.create(number)
    spread = Counter(peer for stream in placing.machine.all_assignments() for peer in stream.peers)
    assert max(spread.values()) - min(spread.values()) <= 2, "the nodes are not equally loaded"
    assert min(placing.lose(1)) == REPLICAS - 1
    assert await placing.heal() > 0
    for stream in placing.machine.all_assignments():
        assert len({placing.names[peer] for peer in stream.peers}) == REPLICAS
    assert min(placing.lose(2)) >= 1
