"""Questions to one server after the other."""

from __future__ import annotations

import time

import pytest

from jetcluster.client.reply import ConnectionLostError
from jetcluster.client.servers import ServerOptions, ask
from jetcluster.errors import ApiError
from tests.unit.client.fake_server import Peer, msg


def test_a_question_is_repeated_while_nobody_leads() -> None:
    answers = [b'{"error":{"code":503,"err_code":10008,"description":"unavailable"}}', b'{"ok":true}']
    with Peer(lambda _s, r, _h, _p: msg(r, answers.pop(0))) as peer:
        server = ServerOptions((peer.url,))
        assert ask(server, lambda link: link.api("X")) == {"ok": True}
        answers.append(b'{"error":{"code":400,"err_code":10003,"description":"bad request"}}')
        with pytest.raises(ApiError, match="bad request"):
            ask(server, lambda link: link.api("X"))
    with pytest.raises(ConnectionLostError):
        ask(server, lambda link: link.api("X"), patience=0.1)


def test_a_server_that_is_paused_is_waited_for_once_not_every_time() -> None:
    with Peer(greeting=b"INF") as paused, Peer(lambda _s, r, _h, _p: msg(r, b"{}")) as good:
        server = ServerOptions((paused.url, good.url), connect_timeout=0.2)
        for _ in range(3):
            ask(server, lambda link: link.api("X"))
        assert len(good.connects) == 3 and paused.accepted == 1


def test_a_server_that_never_was_there_is_given_up_soon_and_one_that_was_is_waited_for() -> None:
    answers = [b'{"error":{"code":503,"err_code":10008,"description":"unavailable"}}'] * 3 + [b'{"ok":true}']
    with Peer(lambda _s, r, _h, _p: msg(r, answers.pop(0))) as peer:
        server = ServerOptions((peer.url,))
        assert ask(server, lambda link: link.api("X"), reach=0.1) == {"ok": True}, "three pauses of 0.35 s together"
    begun = time.monotonic()
    with pytest.raises(ConnectionLostError, match="no server could be reached"):
        ask(server, lambda link: link.api("X"), reach=0.3)
    assert time.monotonic() - begun < 10.0


def test_servers_that_accept_and_say_nothing_share_the_time_in_which_one_must_be_found() -> None:
    with Peer(greeting=b"INF") as one, Peer(greeting=b"INF") as other, Peer(greeting=b"INF") as third:
        server = ServerOptions((one.url, other.url, third.url))
        begun = time.monotonic()
        with pytest.raises(ConnectionLostError, match="no server could be reached"):
            ask(server, lambda link: link.api("X"), reach=1.0)
        assert time.monotonic() - begun < server.connect_timeout
        assert one.accepted and other.accepted and third.accepted
        with Peer(lambda _s, r, _h, _p: msg(r, b"{}")) as good:
            server = ServerOptions((one.url, other.url, good.url))
            assert ask(server, lambda link: link.api("X"), reach=2.0) == {}


def test_a_job_looks_for_a_server_for_five_seconds() -> None:
    assert ServerOptions(("nats://n1",)).reach_timeout == 5.0
