"""The judge of what servers keep of what is gone notices each kind of it, and finds none where all is well."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Any

import pytest

from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.replica.account_quota import AccountQuota
from jetcluster.replica.leadership import Listening
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.shared_routes import Shadows
from jetcluster.server.client.clients import Clients
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.leftovers import GOES, leftovers, settle

pytestmark = pytest.mark.sim

SECOND = 1_000_000_000
Step = Callable[[Session], Awaitable[Any]]


def done(deployment: Deployment, *steps: Step, user: str = "") -> None:
    """All of it in one session, which is closed then."""

    async def run() -> None:
        session = Session("one", deployment.addresses(), user=user)
        await session.connect()
        for step in steps:
            await step(session)
        await session.close()

    deployment.run_until_done(deployment.spawn(deployment.client("me"), run()), 30.0)


async def create(session: Session) -> None:
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "num_replicas": 3})
    config = {"durable_name": "one", "ack_policy": "explicit", "max_ack_pending_per_subject": 1}
    await session.api("CONSUMER.DURABLE.CREATE.S.one", {"stream_name": "S", "config": config})
    await session.js_publish("s.a", b"first")


async def pull(session: Session) -> None:
    """A request that gets two messages and waits for a third one."""
    inbox = session.new_inbox()
    session.subscribe(inbox, lambda msg: None)
    body = json.dumps({"batch": 3, "expires": 60 * SECOND}).encode()
    session.publish("$JS.API.CONSUMER.MSG.NEXT.S.one", body, inbox)
    await session.js_publish("s.b", b"second")


async def listen(session: Session) -> None:
    session.subscribe("in.>", lambda msg: None)
    await session.flush()


async def move(session: Session) -> None:
    await session.api("CONSUMER.LEADER.STEPDOWN.S.one")


async def lead(session: Session) -> None:
    await session.api("STREAM.LEADER.STEPDOWN.S")


async def delete(session: Session) -> None:
    await session.api("STREAM.DELETE.S")


def owners(deployment: Deployment) -> list[Any]:
    streams = [one for machine in deployment.running for one in jetstream_of(machine).replicas.values()]
    return [hosted.owner for stream in streams for hosted in stream.consumers.running.values()]


@pytest.mark.parametrize("gone", [False, True])
def test_nothing_is_left(deployment: Deployment, gone: bool) -> None:
    done(deployment, create, pull, move, lead, *([delete] if gone else []))
    done(deployment, listen, user="other")
    deployment.run(12.0)
    assert list(leftovers(deployment)) == []
    assert len(owners(deployment)) == (not gone)


@pytest.mark.parametrize(
    ("where", "name", "steps", "user", "said"),
    [
        (PullDelivery, "_tell_left", (create, pull, move), "", "waits by the log, and nowhere else"),
        (Router, "take_out", (listen,), "", "has b'in.>' for a subscription that is closed"),
        (Shadows, "remove", (listen,), "other", "for a subscription that is closed"),
        (AccountQuota, "forget", (create, delete), "", "count, and it has no replica"),
        (Listening, "end", (create, lead), "", "stream S is listened to at [b's.*']"),
    ],
)
def test_what_is_not_told_of_an_end_is_noticed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, where: type, name: str, steps: tuple[Step, ...], user: str,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(where, name, lambda *arguments, **more: None)
    done(deployment, *steps, user=user)
    deployment.run(12.0)
    found = list(leftovers(deployment))
    assert any(said in one for one in found), found


def test_a_client_that_counts_when_it_is_gone_is_noticed(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = attrgetter("_count")(Clients)
    monkeypatch.setattr(Clients, "_count", lambda clients, client, by: count(clients, client, max(by, 0)))
    done(deployment, listen)
    assert [one[2:] for one in leftovers(deployment)] == [": account APP counts 1 clients, and has 0"]


def test_messages_that_nobody_will_get_are_noticed(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    done(deployment, create, pull)
    (owner,) = owners(deployment)
    owner.selection.redelivery.parked[77] = deque([1])
    assert [one.partition("one: ")[2] for one in leftovers(deployment)] == ["1 waits for a member that is gone"]
    monkeypatch.setattr(DeliveryContext, "stored", lambda context, seq: False)
    assert "1 waits for an ack, and is not there" in next(iter(leftovers(deployment)))


def test_what_goes_in_time_is_no_violation(deployment: Deployment) -> None:
    done(deployment, create, pull)
    (owner,) = owners(deployment)
    parked = owner.selection.redelivery.parked
    parked[77] = deque([1])
    deployment.scheduler.after(GOES / 2, lambda: parked.clear())
    judged = deployment.spawn(deployment.client("judge"), settle(deployment), "judged")
    deployment.run_until_done(judged, 2 * GOES)
    parked[77] = deque([1])
    judged = deployment.spawn(deployment.client("judge"), settle(deployment), "judged")
    with pytest.raises(Violation, match=r"20 s after all is done: n\d: stream S, consumer one: 1 waits for a member"):
        deployment.run_until_done(judged, 2 * GOES)
