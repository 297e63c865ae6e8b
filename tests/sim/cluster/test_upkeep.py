"""A server that keeps too much beside its messages, forgets or counts wrong is noticed; one that is right is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster.pages import Pages

pytestmark = pytest.mark.sim


async def _busy(deployment: Deployment) -> Session:
    """Clients of two servers that have asked each other, so that routes are cached."""
    sessions = [Session(f"client-{name}", deployment.addresses(name)) for name in ("n1", "n2")]
    for session in sessions:
        await session.connect()
    one, other = sessions
    other.subscribe("asked.*", lambda msg: other.publish(msg.reply, b"answer"))
    one.subscribe("heard.>", lambda msg: None)
    await one.flush()
    await other.flush()
    await asyncio.sleep(0.5)
    for number in range(6):
        await one.request(f"asked.{number % 2}", b"")
        other.publish(f"heard.{number % 2}", b"")
    await other.flush()
    return one


@pytest.fixture
def node(deployment: Deployment) -> Any:
    """n1, once somebody has used it."""
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _busy(deployment)), 30.0)
    deployment.run(1.0)
    return deployment.machines["n1"].node


def _said(deployment: Deployment) -> str:
    with pytest.raises(Violation) as found:
        Pages(deployment).look_at_all()
    return str(found.value)


def test_nothing_is_wrong_with_a_busy_cluster(deployment: Deployment, node: Any) -> None:
    judge = Pages(deployment)
    judge.look_at_all()
    for _ in range(24):
        judge.look()
    assert judge.looks == 24


def _client(node: Any) -> Any:
    return next(one for one in node.server.clients if one.subscriptions)


def _link(node: Any) -> Any:
    return next(iter(node.jetstream.mesh.links.values()))


def _router(node: Any) -> Any:
    return node.server.accounts["APP"]


def _write(node: Any) -> None:
    _client(node).arm("write", 10.0, lambda: None)


def _login(node: Any) -> None:
    _client(node).arm("auth", 10.0, lambda: None)


def _ping(node: Any) -> None:
    _client(node).disarm("ping")


def _stall(node: Any) -> None:
    _client(node).pause_reading("stall")


def _portion(node: Any) -> None:
    _client(node).pause_reading("portion")


def _pending(node: Any) -> None:
    _client(node).pending += 1


def _payload(node: Any) -> None:
    attrgetter("commands._parser")(_client(node)).max_payload += 1


def _watched(node: Any) -> None:
    next(iter(_client(node).subscriptions.values())).special = True


def _waiting(node: Any) -> None:
    node.server.parts.governor.waiting += 1


def _stranger(node: Any) -> None:
    node.server.crowd.strangers[99] = _client(node)


def _silent(node: Any) -> None:
    _link(node).valve.close()
    _link(node).silent = True


def _closed(node: Any) -> None:
    _link(node).valve.close()


def _bytes(node: Any) -> None:
    link = _link(node)
    setattr(link, "_ordered_bytes", 1)  # noqa: B010 - a private reach


def _count(node: Any) -> None:
    _router(node).index.count += 1


def _leaves(node: Any) -> None:
    attrgetter("_root")(_router(node).index).children[b"heard"].leaves += 1


def _literal(node: Any) -> None:
    index = _router(node).index
    index.remember(b"heard.0", attrgetter("_compiled")(index)(b"nobody.at.all")[0])


def _prefix(node: Any) -> None:
    """A subscription that no cache was told of."""
    router = _router(node)
    router.index.match(b"heard.anything")
    forget, router.index.forget = router.index.forget, lambda subject: None
    router.subscribe(b"heard.one", lambda *message: None, local_only=True)
    router.index.forget = forget


def _requests(node: Any) -> None:
    attrgetter("_of_others")(node.monitoring.services)["APP"] += 1


KEPT: dict[Callable[[Any], None], str] = {
    _write: "its write has a deadline: True", _login: "it has logged in", _ping: "it is to be pinged: False",
    _stall: "it is stalled", _portion: "it is held until its turn: True", _pending: "nothing is to be written",
    _payload: "the largest message", _watched: "is watched", _waiting: "0 connections wait for a turn",
    _stranger: "connection 99 counts as a stranger", _silent: "is silent, and publishers wait",
    _closed: "hardly anything waits", _bytes: "1 are counted", _requests: r"\{'APP': 1\} are counted",
}  # fmt: skip
COUNTED: dict[Callable[[Any], None], str] = {
    _count: "and counts", _leaves: "at a place", _literal: "it goes to other clients",
    _prefix: "all of b'heard' go one way|it goes to other callbacks",
}  # fmt: skip


@pytest.mark.parametrize("mistake", KEPT)
def test_what_is_kept_is_noticed(deployment: Deployment, node: Any, mistake: Callable[[Any], None]) -> None:
    mistake(node)
    assert re.search(KEPT[mistake], _said(deployment))


@pytest.mark.parametrize("mistake", COUNTED)
def test_a_wrong_index_is_noticed(
    deployment: Deployment, node: Any, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Any], None]
) -> None:
    monkeypatch.setattr(Pages, "look_with", _without_pages(Pages.look_with))
    mistake(node)
    assert re.search(COUNTED[mistake], _said(deployment))


def _without_pages(look_at: Callable[..., None]) -> Callable[..., None]:
    """Pages notice some of it as well."""
    return lambda judge, machine, kind: look_at(judge, machine, kind) if "upkeep" in kind.__module__ else None
