"""The pauses between a workload's turns."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.cluster.workload import MAX_PAUSE, Turns


async def test_no_turn_is_so_far_off_that_a_run_waits_for_it_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 777000073: with a tenth of a turn in a second, one of 400 pauses is longer than a minute."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    waits = iter((0.5, 64.0))
    workload: Any = SimpleNamespace(stopping=False, rng=SimpleNamespace(expovariate=lambda pace: next(waits)))
    turns = Turns(workload, 0.1)
    assert [await anext(turns), await anext(turns)] == [1, 2]
    assert slept == [0.5, MAX_PAUSE]
