"""An exam begins once every server may lead, and does not wait for longer than it has to."""

from __future__ import annotations

from random import Random

import pytest

from tests.sim.cluster.exam import AGREE
from tests.sim.cluster.run import started
from tests.sim.cluster.workload import found

pytestmark = pytest.mark.sim


def test_it_waits_for_a_server_that_hands_over_and_not_for_ever() -> None:
    deployment = started()
    exam = found()["exam-api"](deployment, Random(1))
    machine = deployment.machines["n1"]

    waiting = deployment.spawn(exam.loop, exam.until_all_lead())
    deployment.run(0.1)
    assert waiting.done()
    machine.memory_trouble = "hardly any is left"
    deployment.run(2.0)
    waiting = deployment.spawn(exam.loop, exam.until_all_lead())
    deployment.run(5.0)
    assert not waiting.done()
    machine.memory_trouble = ""
    deployment.run(2.0)
    assert waiting.done()
    machine.memory_trouble = "hardly any is left"
    deployment.run(2.0)
    waiting = deployment.spawn(exam.loop, exam.until_all_lead())
    deployment.run(AGREE + 1.0)
    assert waiting.done()
    deployment.close()


def test_it_waits_until_a_clock_that_was_set_is_gone_by() -> None:
    deployment = started()
    exam = found()["exam-api"](deployment, Random(1))
    for machine in deployment.machines.values():
        machine.clock.wall_ahead = 30.0
    deployment.run(2.0)
    waiting = deployment.spawn(exam.loop, exam.until_all_lead())
    deployment.run(20.0)
    assert not waiting.done()
    deployment.run(14.0)
    assert waiting.done()
    deployment.close()
