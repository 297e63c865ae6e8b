"""Questions to all servers, of which nobody knows the number."""

from __future__ import annotations

import json
import time

import pytest

from jetcluster.client.connection import Connection
from jetcluster.client.reply import RequestTimeoutError
from jetcluster.client.survey import NoSystemUserError, servers_told, survey
from tests.unit.client.fake_server import Peer, hmsg, msg


def answer(name: str, told: int = 0) -> bytes:
    return json.dumps({"server": {"name": name}, "statsz": {"active_servers": told}}).encode()


def names(answers: list[dict[str, dict[str, str]]]) -> list[str]:
    return [one["server"]["name"] for one in answers]


def test_it_ends_when_as_many_have_answered_as_the_answers_say() -> None:
    with Peer(lambda _s, r, _h, _p: msg(r, answer("a", 2)) + msg(r, answer("b", 2))) as peer:
        with Connection([peer.url]) as connection:
            begun = time.monotonic()
            (found,) = survey(connection, [("$SYS.REQ.SERVER.PING", {"x": 1})], 5.0)
            assert names(found) == ["a", "b"] and servers_told(found) == 2
            assert time.monotonic() - begun < 0.5
        assert [(subject, body) for subject, _, _, body in peer.published] == [(b"$SYS.REQ.SERVER.PING", b'{"x": 1}')]


def test_several_questions_wait_together_and_a_silent_server_is_not_waited_for_long() -> None:
    def reply(subject: bytes, to: bytes, _h: bytes, _p: bytes) -> bytes:
        return msg(to, answer("a")) + (msg(to, answer("b")) if subject == b"X" else b"")

    with Peer(reply) as peer, Connection([peer.url]) as connection:
        begun = time.monotonic()
        x, y = survey(connection, [("X", {}), ("Y", {})], 0.2, lambda _: 2)
        assert (names(x), names(y)) == (["a", "b"], ["a"])
        assert 0.15 < time.monotonic() - begun < 1.0
        assert connection.request("X").data == answer("a")  # what is left of a survey is no answer to this


def test_without_any_answer_it_times_out() -> None:
    with Peer() as peer, Connection([peer.url]) as connection, pytest.raises(RequestTimeoutError):
        survey(connection, [("X", {})], 0.1)


def test_a_user_of_another_account_is_told_what_is_missing() -> None:
    def reply(subject: bytes, to: bytes, _h: bytes, _p: bytes) -> bytes:
        if subject == b"$SYS.REQ.USER.INFO":
            return msg(to, b'{"data":{"user":"joe","account":"APP"}}')
        return hmsg(to, b"NATS/1.0 503\r\n\r\n")

    asks(Peer(reply), "user 'joe' is of account 'APP'", "`system_account`", "--creds")
    asks(Peer(lambda _s, r, _h, _p: hmsg(r, b"NATS/1.0 503\r\n\r\n")), "the user is not of the system account")


def test_a_refusal_by_permission_is_told_the_same_way() -> None:
    refusal = b"-ERR 'Permissions Violation for Publish to \"X\"'\r\n"
    asks(Peer(lambda *_: refusal), "may not ask the servers (Permissions Violation")


def asks(peer: Peer, *told: str) -> None:
    with peer, Connection([peer.url]) as connection, pytest.raises(NoSystemUserError) as refused:
        survey(connection, [("X", {})], 1.0)
    assert all(text in str(refused.value) for text in told), refused.value
