"""Judges excuse what a loss of power may take, and nothing else."""

from __future__ import annotations

import math

import pytest

from testkit.sim.deployment import Violation
from tests.sim.cluster import judges

pytestmark = pytest.mark.sim


def test_a_loss_of_power_excuses_what_it_may_take_and_nothing_else() -> None:
    for window, lost, fine in ((math.inf, 1, True), (1.5, 1, True), (0.5, 1, False), (1.5, 3, True)):
        history = judges.Log([10.0], window)
        history.send("a")
        history.ack(lost, "a", 9.0)
        assert (lost in history.kept) is not fine
    late = judges.Log([10.0], math.inf)
    late.send("a")
    late.ack(1, "a", 11.5)
    with pytest.raises(Violation):
        late.stored("n1", {})


def relaxed(acked_at: float) -> judges.Deliveries:
    """1 came and was acknowledged then; power was lost at 10 s, and may have taken what was not older than 1.5 s."""
    history = judges.Deliveries(0, 2, [10.0], 1.5)
    history.take(1, "a", 1, 1, acked_at)
    history.acking(1)
    history.confirm(1, 1, acked_at)
    return history


def test_a_loss_of_power_excuses_deliveries_and_acks_right_before_it_and_no_other() -> None:
    again = relaxed(9.0)
    again.take(1, "a", 1, 1, 12.0)  # under the same numbers, as the consumer knows nothing of the first time
    again.confirm(1, 1, 12.0)
    with pytest.raises(Violation, match="after its ack"):
        again.take(1, "a", 2, 2, 13.0)
    relaxed(9.0).take(1, "x", 1, 1, 12.0)  # the message was lost as well
    for late, plant in ((8.0, (1, "a", 2, 2)), (11.5, (1, "a", 2, 2)), (8.0, (1, "x", 2, 1)), (8.0, (2, "b", 1, 1))):
        with pytest.raises(Violation):
            relaxed(late).take(*plant, 12.0)
