"""A half state that somebody reads or keeps is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from jetcluster.store import keys
from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.half_states import HalfStates, lives_of, watched
from tests.sim.cluster.invariants import replicas

pytestmark = pytest.mark.sim


async def _stored(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3, "allow_direct": True})
    for _ in range(50):
        await session.js_publish("s", bytes(4_000))
    await session.close()


@pytest.fixture
def half(deployment: Deployment) -> Iterator[HalfStates]:
    with watched(deployment) as found:
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _stored(deployment)), 30.0)
        deployment.run(2.0)
        yield found
        deployment.failures.clear()


def _stream(deployment: Deployment) -> Any:
    return next(one.stream for one in replicas(deployment) if one.stream is not None and one.machine.name == "n2")


def test_a_state_that_is_replaced_is_read_by_nobody(deployment: Deployment, half: HalfStates) -> None:
    stream = _stream(deployment)
    lives = lives_of(stream)
    assert any(member.joined for member in stream.reads.memberships)
    half.begins(stream, lives)
    going_on, taken = deployment.failures
    assert "S on n2 is replaced: batches of before would go on" in going_on
    assert "S on n2 is replaced: 0 reads are under way, 0 wait, and more are taken: True" in taken
    deployment.failures.clear()
    stream.reads.abort()
    half.begins(stream, lives)
    assert not deployment.failures


def test_states_that_are_fetched_are_looked_at(deployment: Deployment, half: HalfStates) -> None:
    machine = deployment.machines["n2"]
    machine.kill()
    machine.new_disk()
    machine.start()
    deployment.run(20.0)
    _stream(deployment).snapshot_begin()
    assert half.replaced >= 1
    assert not deployment.failures


def test_what_damage_leaves_in_memory_is_noticed(deployment: Deployment, half: HalfStates) -> None:
    stream = _stream(deployment)
    half.stops(stream)
    assert not deployment.failures
    stream.machine.applied_index += 1
    half.stops(stream)
    stream.machine.applied_index -= 1
    assert half.set_aside == 2
    assert "S on n2 has applied" in deployment.failures[0]


def test_half_a_state_in_a_renewed_store_is_noticed(deployment: Deployment, half: HalfStates) -> None:
    stream = _stream(deployment)
    kv, gid = stream.commits.kv, stream.assignment.gid
    half.copied(kv, gid)
    assert not deployment.failures
    attrgetter("_db.store.values")(kv)[keys.stream_prefix(keys.INSTALLING, gid)] = b""
    half.copied(kv, gid)
    del attrgetter("_db.store.values")(kv)[keys.stream_prefix(keys.INSTALLING, gid)]
    assert half.renewed == 2
    assert f"is renewed with stream {gid}, whose state was on its way" in deployment.failures[0]
