"""Copies of what a client pretends to have: links that trust it too much, or not at all, are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.mirror import link
from jetcluster.mirror.upstream import Start, Upstream
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEED = 980004
"""Its source comes back as it was."""


def _nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


def _always_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(upstream: Upstream, target: Any, identity: bytes, same: bytes = b"") -> Start:
        return Start(target.store.last_seq if upstream.mirror else 0)

    monkeypatch.setattr(link, "start_of", start)


@pytest.mark.parametrize(
    ("mistake", "said"), [(_nothing, ""), (_always_from_the_first, "messages of a source")], ids=["sound", "mistaken"]
)
def test_a_link_that_begins_where_it_has_been_is_noticed(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None], said: str
) -> None:
    mistake(monkeypatch)
    scenario = Scenario.of(SEED, ("foreign-copies",))
    result = run_seed(SEED, scenario=replace(scenario, layout="three", rage=replace(scenario.rage, faults=())))
    assert result.counts["foreign-copies: lies"] > 5
    assert (said in result.failure) if said else result.failure == "", result.failure
