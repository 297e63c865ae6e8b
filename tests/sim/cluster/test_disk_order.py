"""A data store that is flushed before its journal, and a log that goes before the end of its stream, are noticed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.disk_order import DiskOrder, watched
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas
from tests.sim.cluster.run import started

pytestmark = pytest.mark.sim


async def _stored(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    for name in ("S", "T"):
        await session.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "num_replicas": 3})
        await session.js_publish(name, b"a")
    await session.api("STREAM.DELETE.T", {})
    await session.close()


@pytest.fixture(params=["three", "relaxed"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Two streams were made, and one of them deleted."""
    deployment = started(request.param)
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _stored(deployment)), 30.0)
    yield deployment
    deployment.failures.clear()
    deployment.close()


def _flush(deployment: Deployment) -> Replica:
    """The replica of S on a server that has flushed."""
    machine = deployment.machines["n1"]
    assert machine.loop is not None
    deployment.spawn(machine.loop, jetstream_of(machine).flusher.flush())
    deployment.run(2.0)
    return next(one for one in replicas(deployment) if one.stream is not None and one.machine is machine)


def test_flushes_and_ends_are_looked_at(deployment: Deployment) -> None:
    with watched(deployment) as order:
        _flush(deployment)
        assert order.flushed >= 1
        assert order.ended >= 1
    assert not deployment.failures


def test_a_flush_ahead_of_its_journal_is_noticed(deployment: Deployment) -> None:
    with watched(deployment) as order:
        replica = _flush(deployment)
        store = attrgetter("_db.store")(replica.stream.commits.kv)
        order.flushes(store)
        assert not deployment.failures
        journal, log = jetstream_of(replica.machine).network.raft.journal, replica.group.log
        batch = journal.synced + 1
        log.written_index, before = log.written_index - 1, log.written_index
        order.written(journal, _Batch(batch, [(log, (0, 0))]))
        log.written_index = before
        order.flushes(store)
        what = f"is flushed with {before}, and the disk of the journal has {before - 1}"
        assert what in deployment.failures[0]
    deployment.failures.clear()


class _Batch:
    def __init__(self, seq: int, marks: list[tuple[object, tuple[int, int]]]) -> None:
        self.seq = seq
        self.marks = marks


def test_a_log_that_goes_before_its_stream_is_noticed(deployment: Deployment) -> None:
    order = DiskOrder(deployment)
    replica = _flush(deployment)
    order.removes(jetstream_of(replica.machine).network.raft, replica.gid)
    first, second = deployment.failures
    assert f"the log of group {replica.gid} goes, and the disk still has the state of its stream" in first
    assert "and the disk does not know that its stream is gone" in second
