"""Strangers do no harm, whatever they say, and one that is taken for a server is noticed."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from random import Random

import pytest

from jetcluster.mesh.auth import NONCE_BYTES, Greeting
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.layout import ROUTE_PORT, SECRET
from tests.sim.cluster import strangers
from tests.sim.cluster.strangers import Stranger, imposter

pytestmark = pytest.mark.sim


def _call(deployment: Deployment, who: Stranger) -> Stranger:
    """It comes to the port of routes, and stays."""
    loop = deployment.client("stranger")

    async def visit() -> None:
        await loop.create_connection(lambda: who, deployment.servers["n1"].ip, ROUTE_PORT)

    deployment.run_until_done(deployment.spawn(loop, visit()), 5.0)
    deployment.run(15.0)
    return who


def _greeting() -> Greeting:
    return Greeting("00000001", "00000002", "n9", "sim", b"x" * NONCE_BYTES, authorization=True)


@pytest.mark.parametrize("sent", strangers.JUNK, ids=range(len(strangers.JUNK)))
def test_who_says_nothing_that_makes_sense_is_sent_away(deployment: Deployment, sent: bytes) -> None:
    assert _call(deployment, Stranger([sent], lambda kind, body: b"")).gone
    assert deployment.failures == []


@pytest.mark.parametrize("secret", [SECRET, "guessed"])
def test_who_has_no_key_is_sent_away(deployment: Deployment, secret: str) -> None:
    who = _call(deployment, imposter(_greeting(), secret, Random(7)))
    assert who.gone and who.error is None
    assert deployment.failures == []


def test_a_stranger_that_is_taken_for_a_server_is_noticed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    same: Callable[[bytes, bytes], bool] = lambda one, other: True  # noqa: E731
    monkeypatch.setattr(hmac, "compare_digest", same)
    error = _call(deployment, imposter(_greeting(), "guessed", Random(7))).error
    assert isinstance(error, Violation)
