"""A journal that may forget what the data store does not have on disk is noticed."""

from __future__ import annotations

import pytest

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster.flushes import Flushes
from tests.sim.cluster.invariants import jetstream_of, replicas

pytestmark = pytest.mark.sim


async def _flushed(deployment: Deployment) -> None:
    """Two messages are on disk, and a third is not."""
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    for text in (b"a", b"b"):
        await session.js_publish("s", text)
    await session.close()


def test_what_is_flushed_may_be_forgotten_and_nothing_else(deployment: Deployment) -> None:
    client = deployment.client("me")
    deployment.run_until_done(deployment.spawn(client, _flushed(deployment)), 30.0)
    deployment.run(1.0)
    flushes = Flushes(deployment)
    machine = deployment.machines["n1"]
    assert machine.loop is not None
    deployment.spawn(machine.loop, jetstream_of(machine).flusher.flush())
    deployment.run(2.0)
    flushes.look()
    assert flushes.looked >= 2, "the meta group and the stream of the server that has flushed"
    for replica in replicas(deployment):
        if replica.machine is machine:
            replica.group.log.compactable += 1
            for full in (0, 1):  # a disk that is full loses nothing
                machine.fills += full
                with pytest.raises(Violation, match=r"its journal may forget up to \d+, and the data store has \d+ on"):
                    flushes.look()
            replica.group.log.compactable -= 1
    flushes.look()


def test_a_meta_group_whose_state_is_fetched_has_none_on_disk(deployment: Deployment) -> None:
    deployment.run(3.0)
    meta = next(replica for replica in replicas(deployment) if replica.stream is None)
    meta.group.log.compactable += 1000
    flushes = Flushes(deployment)
    assert any("and the data store has" in text for text in flushes.wrong())
    meta.group.suspend()
    assert not any(text.startswith(meta.where) for text in flushes.wrong())
