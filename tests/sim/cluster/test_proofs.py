"""Proofs of how fresh a replica is are looked at, and those that say too much are found."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jetcluster.replica.reads.confirm import ReadConfirmations
from tests.sim.cluster.proofs import Proofs
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim


def _fails(monkeypatch: pytest.MonkeyPatch, name: str, mistake: Callable[..., Any]) -> str:
    """Return how a seed fails with a mistake in ReadConfirmations; "" where it does not."""
    usual = getattr(ReadConfirmations, name)
    monkeypatch.setattr(ReadConfirmations, name, functools.wraps(usual)(lambda *given: mistake(usual, *given)))
    return run_seed(20000, scenario=Scenario.of(20000, ["freshness"], faults=["clock_drift"])).failure


def test_proofs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Proofs] = []
    usual = Proofs.tells

    def tells(self: Proofs, of: ReadConfirmations, began: float, told: float) -> None:
        usual(self, of, began, told)
        seen.append(self)

    monkeypatch.setattr(Proofs, "tells", tells)
    assert not run_seed(20000, scenario=Scenario.of(20000, ["freshness"])).failure
    assert seen[0].looked > 100


def test_an_age_of_a_slow_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def since(usual: Callable[..., float], self: ReadConfirmations, began: float) -> float:
        return usual(self, began) * 0.9

    assert "tells an age of" in _fails(monkeypatch, "since", since)


def test_a_proof_that_leaves_something_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def question(usual: Callable[..., Awaitable[int | None]], self: ReadConfirmations) -> int | None:
        found = await usual(self)
        return None if found is None else found - 1

    assert "for all that was committed" in _fails(monkeypatch, "_question", question)


def test_an_answer_by_a_question_of_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def turn(usual: Callable[..., Awaitable[None]], self: ReadConfirmations) -> None:
        asked = self._confirmed

        def confirmed(reads: list[Any], wanted: int) -> None:
            self._coming, come = [], self._coming
            asked(reads + come, wanted)

        self._confirmed = confirmed  # type: ignore[method-assign]
        try:
            await usual(self)
        finally:
            del self._confirmed

    assert "by a question of before" in _fails(monkeypatch, "_turn", turn)
