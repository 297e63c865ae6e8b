"""Pull requests with any wishes get what they may have; a server that gives more, or never ends them, is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.consumer.owner.pull_request import PullRequest
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads import pull_wishes

pytestmark = pytest.mark.sim


def asked(seed: int = 2, seconds: float = 8.0) -> Result:
    plan = replace(
        Scenario.of(seed, ("pull-wishes",)), layout="three", rage=Rage(("clock_drift",), 1, seconds, 1.0),
        pulse=False, again=False, small=True, pace=1.0,
    )  # fmt: skip
    return run_seed(seed, scenario=plan)


@pytest.mark.parametrize("policy", sorted(set(pull_wishes.POLICIES)))
def test_each_policy_gives_what_it_may(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr(pull_wishes, "POLICIES", (policy,))
    result = asked()
    assert result.failure == ""
    assert result.counts["pull-wishes: delivered"] > 50


def test_a_server_that_gives_one_message_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_wishes, "POLICIES", ("none",))
    decode = PullRequest.decode

    def generous(reply: bytes, body: bytes) -> PullRequest:
        request = decode(reply, body)
        request.left += 1
        return request

    monkeypatch.setattr(PullRequest, "decode", generous)
    assert "got more than it asked for" in asked().failure


def test_a_server_that_ends_no_request_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_wishes, "POLICIES", ("none",))
    decode = PullRequest.decode

    def patient(reply: bytes, body: bytes) -> PullRequest:
        request = decode(reply, body)
        request.timeout = 0
        return request

    monkeypatch.setattr(PullRequest, "decode", patient)
    assert "nothing waits any more" in asked().failure
