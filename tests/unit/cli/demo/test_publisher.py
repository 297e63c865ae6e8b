"""The demo's publisher, with connections that break, stay silent, or know an order already."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from jetcluster.cli.demo import publisher
from jetcluster.cli.demo.copies import DemoError
from jetcluster.cli.demo.orders import make_orders
from jetcluster.cli.demo.publisher import PatientPublisher
from jetcluster.client.reply import ConnectionLostError, Reply, RequestTimeoutError
from jetcluster.client.servers import ServerOptions


class Server:
    """Stores by Nats-Msg-Id. `plan`: what becomes of each connection's chunk, in turn: the number of acks that come
    before it breaks or is silent; None: all of them."""

    def __init__(self, *plan: tuple[int, Exception] | None) -> None:
        self.plan = list(plan)
        self.stored: dict[str, int] = {}
        self.sent: list[str] = []

    def connect(self, _first: int = 0) -> Any:
        return Link(self, self.plan.pop(0) if self.plan else None)


class Link:
    """One connection to it."""

    def __init__(self, server: Server, fate: tuple[int, Exception] | None) -> None:
        self.server, self.fate, self.url = server, fate, "nats://test"
        self.numbers = itertools.count()
        self.waiting: list[tuple[int, Reply]] = []

    def publish_acked(self, _subject: str, _payload: bytes, headers: dict[str, str]) -> int:
        number, stored, name = next(self.numbers), self.server.stored, headers["Nats-Msg-Id"]
        ack = {"stream": "ORDERS", "seq": stored.get(name, len(stored) + 1), "duplicate": name in stored}
        stored.setdefault(name, len(stored) + 1)
        self.server.sent.append(name)
        self.waiting.append((number, Reply(0, "", b"", json.dumps(ack).encode())))
        return number

    def acks(self, down_to: int, timeout: float) -> list[tuple[int, Reply]]:
        if self.fate is not None:
            count, error = self.fate
            if count == 0:
                raise error
            self.fate = (count - 1, error)
        return [self.waiting.pop(0)]

    def close(self) -> None:
        pass


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(server: Server, count: int) -> PatientPublisher:
        monkeypatch.setattr(ServerOptions, "connect", lambda _self, first=0: server.connect(first))
        return PatientPublisher(ServerOptions(("nats://test",)), make_orders(count))

    return make


def test_every_order_gets_its_sequence(made: Any) -> None:
    server = Server()
    one = made(server, 600)
    one.publish(range(600))
    assert one.seqs == list(range(1, 601))
    assert (one.resent, one.duplicates, one.resumed) == (set(), 0, 0.0)


@pytest.mark.parametrize("error", [ConnectionLostError("gone"), RequestTimeoutError("silent")])
def test_what_got_no_ack_is_sent_again_and_stored_once(made: Any, error: Exception) -> None:
    server, disturbed = Server((3, error)), []
    one = made(server, 10)
    one.publish(range(10), lambda: disturbed.append(len(server.sent)))
    assert disturbed == [10], "once, with all of the chunk under way"
    assert one.seqs == list(range(1, 11))
    assert one.resent == set(range(3, 10))
    assert one.duplicates == 7
    assert one.resumed > 0


def test_without_a_leader_one_order_asks_for_all(made: Any) -> None:
    lost = ConnectionLostError("gone")
    server = Server((0, lost), (0, lost), (0, lost))
    one = made(server, 10)
    one.publish(range(10))
    assert len(server.sent) == 10 + 1 + 1 + 1 + 9
    assert sorted(one.seqs) == list(range(1, 11))


def test_it_gives_up(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "GIVE_UP_SECONDS", 0.05)
    with pytest.raises(DemoError, match="5 orders got no ack"):
        made(Server(*[(0, ConnectionLostError("gone"))] * 1000), 5).publish(range(5))
