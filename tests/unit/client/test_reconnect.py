"""A connection that is opened again, and what it says."""

from __future__ import annotations

import pytest

from jetcluster.client.reconnect import NotReachedError, Reconnecting
from jetcluster.client.reply import ConnectionLostError, ServerError
from jetcluster.client.servers import ServerOptions
from tests.unit.client.fake_server import Peer, msg

NOBODY = "nats://127.0.0.1:1"


def test_servers_that_are_not_there_from_the_start_on_are_an_error_at_once() -> None:
    said: list[str] = []
    with pytest.raises(NotReachedError, match=f"no server could be reached: {NOBODY}: .*refused"):
        Reconnecting(ServerOptions((NOBODY,)), said.append).connection(1.0)
    assert said == []


def test_each_change_is_said_once() -> None:
    said: list[str] = []
    with Peer(lambda _s, r, _h, _p: msg(r, b"x")) as peer:
        options = ServerOptions((peer.url, NOBODY))
        link = Reconnecting(options, said.append)
        assert link.connection(1.0) is link.connection(1.0)
        assert link.connection(1.0).request("a").data == b"x" and said == []
    for _ in range(3):
        link.next()
        with pytest.raises(ConnectionLostError):
            link.connection(1.0)
    assert len(said) == 1 and said[0].startswith("no server could be reached") and said[0].endswith("; trying on")


def test_the_patient_one_waits_for_servers_that_start() -> None:
    said: list[str] = []
    with Peer(greeting=b"HTTP/1.1 400\r\n") as peer:
        link = Reconnecting(ServerOptions((NOBODY, peer.url)), said.append, patient=True)
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                link.connection(1.0)
        peer.greeting = b"INFO {}\r\n"
        link.connection(1.0)
        link.close()
    assert [text.split(":")[0] for text in said] == ["no server could be reached", "connected to nats"]


def test_after_a_failure_the_next_server_comes_first() -> None:
    with Peer() as first, Peer() as second:
        link = Reconnecting(ServerOptions((first.url, second.url)), print)
        assert link.connection(1.0).url == first.url
        link.next()
        assert link.connection(1.0).url == second.url
        link.close()


def test_a_refused_user_is_refused_for_good() -> None:
    with Peer(greeting=b"INFO {}\r\n-ERR 'Authorization Violation'\r\n") as peer:
        for patient in (True, False):
            with pytest.raises(ServerError, match="Authorization Violation"):
                Reconnecting(ServerOptions((peer.url,)), print, patient=patient).connection(1.0)
