"""A limit counts as lost only where no administrator has written the configuration without it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster.workload import SETTLE
from tests.sim.cluster.workloads import large
from tests.sim.cluster.workloads.large import STREAM, Large

pytestmark = pytest.mark.sim

Limit = Callable[[Large], Awaitable[None]]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("limit", [Large.limit, Large.limit_subjects])
def test_a_limit_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, deployment: Deployment, limit: Limit, told: bool
) -> None:
    monkeypatch.setattr(large, "COUNT", 400)
    work = Large(deployment, Random(1))

    async def lose_the_limit() -> None:
        await work.prepare()
        before = (await work.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
        await limit(work)
        await work.admin.api(f"STREAM.UPDATE.{STREAM}", before)
        if told:
            deployment.configs[STREAM] = [before]
        await work.write(401)

    deployment.run_until_done(deployment.spawn(work.loop, lose_the_limit()), 30.0)
    check = deployment.spawn(work.loop, work.check())
    if told:
        deployment.run_until_done(check, SETTLE)
    else:
        with pytest.raises(Violation, match="messages are left"):
            deployment.run_until_done(check, SETTLE + 10.0)
