"""Pages that tell what is not so are noticed, and those of a cluster with streams and clients are right."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import pytest

from jetcluster.monitor import accstatz, connz, healthz, jsz, metrics, pages, subsz, varz
from jetcluster.server.client.clients import Clients, Totals
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster.pages import Pages

pytestmark = pytest.mark.sim


async def _used(deployment: Deployment) -> list[Session]:
    """Streams of two accounts, and clients of each server, of which some have gone. Returns those that stay."""
    stay = []
    for number, name in enumerate(("n1", "n2", "n3", "n1", "n1")):
        session = Session(f"client-{number}", deployment.addresses(name), user="other" if number == 4 else "")
        await session.connect()
        for at in range(number + 1):
            session.subscribe(f"heard.{at}", lambda msg: None)
        stay.append(session)
    other = stay[-1]
    for session, stream in ((stay[0], "ONE"), (stay[1], "TWO"), (other, "THREE"), (other, "FOUR")):
        config: dict[str, Any] = {"name": stream, "subjects": [stream.lower()], "num_replicas": 3}
        if session is other:
            config |= {"num_replicas": 1, "max_bytes": 1000}
        await session.api(f"STREAM.CREATE.{stream}", config)
        for number in range(3):
            await session.js_publish(stream.lower(), b"%d" % number)
    for session in (stay.pop(0), stay.pop(0)):
        for number in range(5):
            session.publish("heard.0", b"x" * number)
        await session.flush()
        await session.close()
    return stay


@pytest.fixture
def looked_at(deployment: Deployment) -> Pages:
    """After a first look, since which clients have come and gone."""
    judge = Pages(deployment)
    judge.look_at_all()
    loop = deployment.client("me")
    deployment.run_until_done(deployment.spawn(loop, _used(deployment)), 30.0)
    deployment.run(2.0)
    return judge


def test_all_pages_are_right(looked_at: Pages) -> None:
    for _ in range(2 * len(looked_at.kinds())):
        looked_at.look()
    looked_at.look_at_all()


def _without(found: Any, key: str, value: Any) -> Any:
    return {**found, key: value}


def _none() -> Generator[None, None, dict[str, Any]]:
    """Steps of a list that has nothing."""
    yield
    return {}


def _changed(target: Any, name: str, change: Callable[[Any], Any]) -> tuple[Any, str, Callable[..., Any]]:
    """The function that this object has, with its result changed."""
    right = getattr(target, name)
    return target, name, lambda *arguments, **named: change(right(*arguments, **named))


MISTAKES: dict[str, tuple[Callable[[], tuple[Any, str, Any]], str]] = {
    "the bytes of clients": (
        lambda: _changed(varz, "traffic", lambda one: _without(one, "in_client_bytes", one["out_client_bytes"])),
        "/varz: .*in_client_bytes",
    ),
    "connections with those in their handshake": (
        lambda: _changed(varz, "traffic", lambda one: _without(one, "connections", one["connections"] + 1)),
        "/varz: .*connections",
    ),
    "no closed connections among all": (
        lambda: (
            connz, "_select",
            lambda node, state, account: list(node.server.clients.closed if state == "closed" else node.server.clients),
        ),
        "all of them",
    ),
    "a page that begins one later": (
        lambda: (
            connz, "number",
            lambda query, name, default: int(query.get(name, default)) + (name == "offset" and "offset" in query),
        ),
        "connections from|the page's head",
    ),
    "health without a leader's word": (
        lambda: (healthz, "_replica_error", lambda replica: "has no leader"), "/healthz says 503"
    ),
    "bytes that nobody has reserved": (
        lambda: _changed(jsz, "_usage", lambda one: _without(one, "reserved_storage", one["reserved_storage"] - 1)),
        "reserved_storage",
    ),
    "streams of memory among files": (
        lambda: _changed(jsz, "_usage", lambda one: _without(one, "memory", one["storage"])), "/jsz: .*memory"
    ),
    "consumers of mirrors among others": (lambda: (jsz, "consumer_count", lambda replica: 1), "/jsz: .*consumers"),
    "a leader that is another one": (lambda: (jsz, "stream_cluster", lambda engine, replica: {}), "leader of "),
    "all who lag": (
        lambda: _changed(jsz, "_meta_replica", lambda one: _without(one, "offline", True)), "is offline: True"
    ),
    "subscriptions of accounts": (
        lambda: _changed(accstatz, "account_stats", lambda rows: [_without(row, "conns", 0) for row in rows]),
        "account .*conns",
    ),
    "subscriptions without their queue": (
        lambda: _changed(subsz, "detail", lambda one: _without(one, "subject", "x")), "subscriptions of "
    ),
    "routes without interest": (
        lambda: (pages, "_listed", lambda interests, rid, *, detailed: _none()), "list of route"
    ),
    "what a group has applied": (
        lambda: _changed(pages, "_group", lambda one: _without(one, "applied", one["applied"] + 1)), "group .*applied"
    ),
    "metrics of a stream": (
        lambda: (metrics, "stream_leader", lambda engine, replica: "nobody"), "metrics: leader of"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_page_is_noticed(looked_at: Pages, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    make, said = MISTAKES[mistake]
    monkeypatch.setattr(*make())
    with pytest.raises(Violation) as found:
        looked_at.look_at_all()
    assert re.search(said, str(found.value))


def test_room_that_is_not_there_is_noticed(deployment: Deployment, looked_at: Pages) -> None:
    looked_at.look_at_all()
    capacity: Any = deployment.machines["n2"].node.jetstream.capacity  # type: ignore[union-attr]
    setattr(capacity, "_disk", capacity.max_storage * 2)  # noqa: B010 - a private reach
    with pytest.raises(Violation, match="n2: it says that it has room for"):
        looked_at.look_at_all()


def test_traffic_that_is_forgotten_is_noticed(looked_at: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at.look_at_all()
    monkeypatch.setattr(Totals, "add", lambda totals, other: None)
    with pytest.raises(Violation, match="/varz"):
        looked_at.look_at_all()


def test_a_closed_connection_with_another_s_name_is_noticed(
    deployment: Deployment, looked_at: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at.look_at_all()
    forget = Clients.forget

    def wrong(clients: Clients, client: Any) -> None:
        client.lang = "nothing"
        forget(clients, client)

    monkeypatch.setattr(Clients, "forget", wrong)
    for client in deployment.machines["n1"].node.server.clients:  # type: ignore[union-attr]
        client.close("Kicked")
    with pytest.raises(Violation, match=r"lang of connection \d+ was"):
        looked_at.look_at_all()
