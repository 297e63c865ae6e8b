"""Accounts with tiers have what their tiers say; a tier that is not looked at is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.auth import operator_mode
from jetcluster.auth.operator_mode import KnownAccount, OperatorAuthenticator
from jetcluster.config.claims.account import AccountClaims
from jetcluster.config.claims.rights import Rights
from jetcluster.config.claims.token import Token
from jetcluster.model.limits import AccountLimits
from jetcluster.server.client.commands import Commands
from jetcluster.server.client.login import Login
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEEDS = (9030, 9031, 9032)
"""With tiers from the beginning, and with those that come with a reload."""


def tiered(seed: int) -> Result:
    plan = replace(Scenario.of(seed, ("tiers",)), rage=Rage((), 0, 6.0, 1.0), pulse=False, again=False)
    return run_seed(seed, scenario=plan)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_account_has_what_its_tiers_say(seed: int) -> None:
    assert tiered(seed).failure == ""


def test_streams_beyond_their_tier_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccountLimits, "tier", lambda limits, replicas: limits)
    assert "creating TIER" in tiered(SEEDS[0]).failure


MISTAKES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "who signs nothing": (OperatorAuthenticator, "_check_connection", lambda *arguments: None),
    "a token that is over": (Token, "time_problem", lambda token, now: ""),
    "a token of before": (AccountClaims, "is_revoked", lambda claims, user, issued_at: False),
    "who comes from elsewhere": (Rights, "is_from_allowed", lambda rights, address: True),
    "who comes at another time": (Rights, "seconds_left", lambda rights, now: 0.0),
    "two subscriptions": (Login, "_take_limits", lambda login, identity: None),
    "a token that a signing key has signed": (KnownAccount, "signers", lambda known, strict: {known.claims.key: None}),
    "scoped": (operator_mode, "filled_in", lambda template, user, name, tags: template),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("case", MISTAKES)
def test_a_user_who_may_more_or_less_is_noticed(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    target, name, wrong = MISTAKES[case]
    monkeypatch.setattr(target, name, wrong)
    failure = tiered(SEEDS[0]).failure
    assert failure.startswith(case), failure


@pytest.mark.thorough
def test_a_connect_in_two_reads_that_is_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Commands, "_is_early", lambda commands, data: data[:1] not in b"Cc")
    assert any("Authorization Violation" in tiered(seed).failure for seed in range(9040, 9048))
