"""Answers for clients that do not ask, by the stream's `read_consistency`."""

from __future__ import annotations

import pytest

from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time
from tests.unit.replica.test_demands import GET, stream, timed


@virtual_time
@pytest.mark.parametrize(("consistency", "answered"), [("default", True), ("weak", True), ("strong", False)])
async def test_a_stream_says_what_clients_get_that_do_not_ask(consistency: str, answered: bool) -> None:
    """At a follower that is cut off from the others."""
    async with Cluster() as cluster:
        _, follower, _ = await stream(cluster, read_consistency=consistency)
        assert (await follower.request(GET, b'{"seq":3}'))[2] == b"2"
        cluster.isolate(follower.name)
        for subject, body in ((GET, b'{"seq":3}'), (GET + b".s", b""), (GET, b'{"seq":3,"min_last_seq":2}')):
            head, payload, _ = await timed(cluster, follower, subject, body)
            assert (payload == b"2") is answered, head
        assert (await follower.request(GET, b'{"seq":3,"consistency":"eventual"}', 5.0))[2] == b"2", "who asks gets it"
        cluster.heal()
        await cluster.equal("S")


@virtual_time
async def test_a_weak_stream_is_read_from_another_node_without_asking_its_leader() -> None:
    async with Cluster("ABCD") as cluster:
        leader, _, _ = await stream(cluster, read_consistency="weak")
        (client,) = [node for node in cluster if not node.has("S")]
        cluster.crash(leader.name)
        head, payload, seconds = await timed(cluster, client, GET, b'{"seq":3}')
        assert payload == b"2" and seconds < 0.2, head


@virtual_time
async def test_an_update_of_the_configuration_counts_at_once() -> None:
    async with Cluster() as cluster:
        _, follower, _ = await stream(cluster)
        await cluster.update("S", read_consistency="strong")
        await cluster.equal("S")
        cluster.isolate(follower.name)
        head, _, _ = await timed(cluster, follower, GET, b'{"seq":3}')
        assert head.startswith(b"NATS/1.0 503"), head
        cluster.heal()
        await cluster.equal("S")
