"""The judge of balance notices leaders that bounce, and the product's do not."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from jetcluster.cluster import balancer, load
from jetcluster.meta import balance
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster import small
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.moves import Moves
from tests.sim.cluster.run import started
from tests.sim.cluster.workloads.churn import Churn

pytestmark = pytest.mark.sim
STREAMS = 7


@pytest.fixture
def uneven() -> Iterator[Deployment]:
    """With small limits: one server leads all of its streams."""
    with small.scaled(small=True):
        deployment = started()
        churn = Churn(deployment, Random(1))

        async def fill() -> None:
            session = await churn.session("one")
            for number in range(STREAMS):
                await churn.create(session, f"S{number}", subjects=[f"s{number}"])
            await session.close()

        deployment.run_until_done(deployment.spawn(churn.loop, fill()), 30.0)
        me = next(one.group.me for one in replicas(deployment) if one.machine.name == "n1")
        for one in replicas(deployment):
            if one.stream is not None and one.stream.leading and one.group.me != me:
                one.group.transfer(me)
        yield deployment
        deployment.close()


def led(deployment: Deployment) -> list[int]:
    names = [one.machine.name for one in replicas(deployment) if one.stream is not None and one.stream.leading]
    return sorted(names.count(name) for name in deployment.machines)


def watched(deployment: Deployment, seconds: float) -> Moves:
    moves = Moves(deployment)
    moves.calm()
    end = deployment.scheduler.now + seconds
    while deployment.scheduler.now < end:
        moves.look()
        deployment.run(0.25)
    return moves


def test_leaders_are_spread_and_then_stay(uneven: Deployment) -> None:
    uneven.run(2.0)
    assert led(uneven) == [0, 0, STREAMS]
    moves = watched(uneven, 40.0)
    assert led(uneven) == [2, 2, 3]
    assert moves.seen == 4


def test_leaders_that_bounce_are_noticed(uneven: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a move needed no more than that one server carries more, and it could go back at once."""
    monkeypatch.setattr(balance, "needed_gap", lambda weight, noise: 1)
    monkeypatch.setattr(balancer, "BACK_SECONDS", 0.0)
    with pytest.raises(Violation, match=r"for balance the leader of group \d+ goes back to n\d again"):
        watched(uneven, 200.0)


def test_nothing_goes_back_soon_even_where_each_move_makes_the_other_way_uneven(
    uneven: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "needed_gap", lambda weight, noise: 1)
    moves = watched(uneven, 200.0)
    assert 4 <= moves.seen <= 2 * STREAMS, "each leader has two other servers to go to"


def test_a_leader_that_does_not_rest_is_noticed(uneven: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "needed_gap", lambda weight, noise: 1)
    moves = Moves(uneven)
    moves.note(("C", load.LEADERS, 2, ""), "n1", "n2")
    with pytest.raises(Violation, match=r"the leader of group 2 moves from n2 to n1 0\.0 s after it has moved"):
        moves.note(("C", load.LEADERS, 2, ""), "n2", "n1")
