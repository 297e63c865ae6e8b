"""Servers report the same before and after a restart, and a difference is noticed."""

from __future__ import annotations

from random import Random

import pytest

from testkit.sim.deployment import Violation
from tests.sim.cluster.run import started
from tests.sim.cluster.second_look import compare, look_again
from tests.sim.cluster.workloads.churn import Churn

pytestmark = pytest.mark.sim


def test_answers_before_and_after() -> None:
    told = {"stream S": {"messages": 3}, "consumer S > c": {"num_ack_pending": 1, "delivered": {"stream_seq": 3}}}
    compare(told, {**told})
    with pytest.raises(Violation, match="consumer S > c: nothing, and before"):
        compare(told, {"stream S": told["stream S"]})
    with pytest.raises(Violation, match=r"consumer S > d: .* and before nothing"):
        compare(told, told | {"consumer S > d": {}})
    changed = {"num_ack_pending": 1, "delivered": {"stream_seq": 2}}
    with pytest.raises(Violation, match=r"consumer S > c: delivered: stream_seq: 2, and before 3"):
        compare(told, told | {"consumer S > c": changed})


def test_all_servers_start_again_and_tell_the_same() -> None:
    """Once all are killed, once all lose power."""
    deployment = started()
    churn = Churn(deployment, Random(1))

    async def fill() -> None:
        session = await churn.session("one")
        await churn.create(session, "S", subjects=["s"])
        await churn.create_consumer(session, "S", "c")
        for at in range(5):
            await churn.store(session, "s", f"{at}")
        await session.close()

    deployment.run_until_done(deployment.spawn(churn.loop, fill()), 30.0)
    for seed in (1, 2):
        deployment.run_until_done(deployment.spawn(churn.loop, look_again(deployment, Random(seed))), 200.0)
    assert [machine.starts for machine in deployment.machines.values()] == [3, 3, 3]
    assert len(deployment.power_failures) == 3
    deployment.close()
