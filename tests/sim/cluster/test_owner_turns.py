"""Turns of a consumer's owner that should not count are noticed."""

from __future__ import annotations

import pytest

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import Op, Turn, TurnResult
from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.owner_turns import OwnerTurns, watched

pytestmark = pytest.mark.sim


async def _consumed(deployment: Deployment) -> None:
    session = Session("owner", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await session.api("CONSUMER.DURABLE.CREATE.S.c", body)
    await session.request("s", b"text")
    with session.inbox() as (inbox, got):
        session.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b'{"batch": 1, "expires": 1000000000}', inbox)
        await session.request((await got.get()).reply, b"+ACK")
    await session.close()


def _consumer(deployment: Deployment) -> tuple[Replica, ConsumerState]:
    replica = next(one for one in replicas(deployment) if one.stream is not None)
    return replica, replica.stream.table.by_name["c"]


def test_turns_of_an_owner_are_looked_at(deployment: Deployment) -> None:
    with watched(deployment) as turns:
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _consumed(deployment)), 30.0)
        deployment.run(1.0)
    assert turns.looked >= 9, "a session, a delivery and an ack, on three servers"
    assert not deployment.failures


@pytest.mark.parametrize(("came", "before"), [((5, 3, False), (5, 1)), ((4, 2, False), (5, 1)), ((5, 1, True), (5, 7))])
def test_a_turn_that_does_not_follow_is_noticed(
    deployment: Deployment, came: tuple[int, int, bool], before: tuple[int, int]
) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _consumed(deployment)), 30.0)
    replica, _ = _consumer(deployment)
    turns, table = OwnerTurns(deployment), replica.stream.table
    turns.counts(table, Turn(b"someone1", 5, 2, False, []), (5, 1))
    turns.counts(table, Turn(b"someone1", 6, 1, True, []), (5, 1))
    assert not deployment.failures
    turns.counts(table, Turn(b"someone1", *came, []), before)
    assert f"turn {came[1]} of session {came[0]} counts after {before}" in deployment.failures[0]


def test_an_op_of_who_is_no_owner_is_noticed(deployment: Deployment) -> None:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _consumed(deployment)), 30.0)
    replica, state = _consumer(deployment)
    turns, table = OwnerTurns(deployment), replica.stream.table
    other = next(peer for peer in replica.group.peers if peer != state.owner)
    ops = [Op(state.cid, state.epoch, turn.ACK, [1])]
    void, counts = TurnResult(accepted=True), TurnResult(accepted=True)
    void.outcomes, counts.outcomes = [None], [1]
    for owner, result in ((other, void), (state.owner, counts), ("nobody00", counts)):
        turns.changes(table, Turn(owner.encode(), 5, 2, False, ops), {state.cid: state.owner}, result)
    assert not deployment.failures
    turns.changes(table, Turn(other.encode(), 5, 2, False, ops), {state.cid: state.owner}, counts)
    assert f"changes consumer {state.cid}, which {state.owner} owns" in deployment.failures[0]
