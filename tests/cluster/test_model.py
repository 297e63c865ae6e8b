"""Random single-threaded histories get from a server, and from a cluster, what the model of JetStream says."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from testkit.harness import ProcessCluster
from tests.model.ack_history import AckWriter
from tests.model.bucket_history import BucketWriter
from tests.model.consumer_history import ConsumerWriter
from tests.model.deliver_history import DeliverWriter
from tests.model.directed import Directed
from tests.model.history import Writer
from tests.model.player import Differs
from tests.model.processes import LENIENT, Wire, explained, play, rules_of
from tests.model.read_history import ReadWriter
from tests.model.stream_history import StreamWriter

pytestmark = pytest.mark.cluster

PATIENT = 5
"""Histories with limits of a second; their waits are long."""


async def hold(cluster: ProcessCluster, seeds: range, *, timed: bool, writer: type[Writer] = Writer) -> None:
    rules = rules_of(cluster.server, len(cluster.nodes))
    async with await cluster[0].connect() as client:
        wire = Wire(client)
        asked = disturbed = 0
        for seed in seeds:
            history = writer(seed, timed=timed, replicas=len(cluster.nodes)).history(60)
            try:
                player = await play(wire, rules, history)
            except Differs as error:
                raise AssertionError(f"seed {seed}: {await explained(wire, rules, history, error)}") from None
            asked += player.asked
            disturbed += player.disturbed
        assert disturbed < len(seeds) * 0.8, (
            f"of {len(seeds)} histories {disturbed} were too slow, or cannot be predicted"
        )
        assert asked > 20 * (len(seeds) - disturbed)


@pytest.mark.parametrize("timed", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["still", "timed"])
async def test_one_server_answers_as_the_model(server: str, timed: bool) -> None:
    config = LENIENT if server == "nats-server" else ""
    async with ProcessCluster(1, server, config=config) as cluster:
        await hold(cluster, range(1000, 1000 + PATIENT) if timed else range(1, 16), timed=timed)
        seeds = range(1000, 1000 + PATIENT) if timed else range(1, 9)
        await hold(cluster, seeds, timed=timed, writer=ConsumerWriter)
        await hold(cluster, seeds, timed=timed, writer=BucketWriter)


@pytest.mark.ours("a nats-server's stream of three stands still after a refused Nats-Expected-Last-Msg-Id")
async def test_a_cluster_answers_as_the_model(shared: ProcessCluster) -> None:
    await hold(shared, range(2000, 2006), timed=False)
    await hold(shared, range(2000, 2004), timed=False, writer=ConsumerWriter)
    await hold(shared, range(2000, 2004), timed=False, writer=BucketWriter)


EXAMS = (AckWriter, DeliverWriter, ReadWriter, StreamWriter)
"""Histories that exams of the simulation play as well."""


@pytest.mark.parametrize("writer", EXAMS)
@pytest.mark.parametrize("timed", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["still", "timed"])
async def test_one_server_passes_the_exams_of_the_simulation(server: str, writer: type[Directed], timed: bool) -> None:
    config = LENIENT if server == "nats-server" else ""
    async with ProcessCluster(1, server, config=config) as cluster:
        await hold(cluster, range(3000, 3002) if timed else range(3000, 3004), timed=timed, writer=writer)


@pytest.mark.ours("exams hold a cluster of nats-server for later than its replicas know of a message")
@pytest.mark.parametrize("writer", EXAMS)
async def test_a_cluster_passes_the_exams_of_the_simulation(shared: ProcessCluster, writer: type[Directed]) -> None:
    await hold(shared, range(3000, 3002), timed=False, writer=writer)


async def test_info_shows_at_once_what_an_update_was_answered_with(tidy: ProcessCluster) -> None:
    """Through every server, whichever of them was asked for the update."""
    config = {"name": "UPDATED", "subjects": ["updated"], "num_replicas": len(tidy.nodes)}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await node.connect()) for node in tidy.nodes]
        await clients[0].api("STREAM.CREATE.UPDATED", config)
        for number in range(1, 31):
            via = clients[number % len(clients)]
            told = [await via.api("STREAM.UPDATE.UPDATED", config | {"max_msgs": number})]
            told += [await client.api("STREAM.INFO.UPDATED") for client in clients]
            assert [one["config"]["max_msgs"] for one in told] == [number] * (len(clients) + 1)
