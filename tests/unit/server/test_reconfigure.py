"""Reloads with open connections, and limits of accounts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.account_options import (
    AccountLimitOptions,
    AccountOptions,
    AuthorizationOptions,
    PermissionOptions,
    SubjectLists,
    UserOptions,
)
from jetcluster.config.options import Options
from testkit.server_rig import Peer, ServerRig


def limited(**limits: int) -> dict[str, AccountOptions]:
    return {"$G": AccountOptions("$G", limits=AccountLimitOptions(**limits))}


def users(*found: UserOptions) -> Authenticator:
    return Authenticator(Options(authorization=AuthorizationOptions(users=list(found))))


def connect(user: str = "", password: str = "", **more: Any) -> bytes:
    fields = {"verbose": False, "pedantic": False, "protocol": 1, "user": user, "pass": password, **more}
    return b"CONNECT " + json.dumps(fields).encode()


ANN, BOB = UserOptions("ann", "a"), UserOptions("bob", "b")


def client(rig: ServerRig, user: str, password: str, *lines: bytes) -> Peer:
    found = rig.client(*lines, connect=connect(user, password))
    assert not found.closed
    return found


def reload(rig: ServerRig, authenticator: Authenticator | None = None, **options: Any) -> None:
    rig.server.reconfigure(replace(rig.server.options, **options), authenticator or rig.server.authenticator)


@pytest.mark.parametrize("after", [users(BOB), users(UserOptions("ann", "new"), BOB)], ids=["gone", "password"])
def test_a_user_that_is_gone_or_has_another_password_is_closed(after: Authenticator) -> None:
    rig = ServerRig(users(ANN, BOB))
    ann, bob = client(rig, "ann", "a"), client(rig, "bob", "b", b"SUB x 1")
    reload(rig, after)
    assert ann.read() == b"-ERR 'Authorization Violation'\r\n"
    assert ann.closed == "Authentication Failure"
    assert (bob.read(), bob.closed) == (b"", "")
    assert bob.ask(b"PUB x 2", b"hi").endswith(b"MSG x 1 2\r\nhi\r\n")


def test_subscriptions_that_are_not_allowed_any_more_go() -> None:
    rig = ServerRig(users(ANN))
    ann = client(rig, "ann", "a", b"SUB no.x 1", b"SUB ok.x 2")
    only_ok = PermissionOptions(publish=SubjectLists(allow=["ok.>"]), subscribe=SubjectLists(allow=["ok.>"]))
    reload(rig, users(replace(ANN, permissions=only_ok)))
    assert ann.read() == b'-ERR \'Permissions Violation for Subscription to "no.x" (sid "1")\'\r\n'
    assert ann.ask(b"PUB no.x 0", b"") == b"-ERR 'Permissions Violation for Publish to \"no.x\"'\r\n"
    assert ann.ask(b"PUB ok.x 0", b"") == b"MSG ok.x 2 0\r\n\r\n"
    reload(rig, users(ANN))
    assert ann.ask(b"PUB no.x 0", b"") == b""  # allowed again, but that subscription is gone
    assert ann.ask(b"SUB no.x 3", b"PUB no.x 0", b"") == b"MSG no.x 3 0\r\n\r\n"


def test_a_denied_subject_is_filtered_out_of_a_wider_subscription_at_once() -> None:
    rig = ServerRig(users(ANN, BOB))
    ann, bob = client(rig, "ann", "a", b"SUB > 1"), client(rig, "bob", "b")
    bob.send(b"PUB secret 0", b"", b"PUB secret 0", b"")  # the route is cached now
    assert ann.read().count(b"MSG secret 1") == 2
    no_secret = PermissionOptions(subscribe=SubjectLists(deny=["secret"]))
    reload(rig, users(replace(ANN, permissions=no_secret), BOB))
    bob.send(b"PUB secret 0", b"", b"PUB open 0", b"")
    assert ann.read() == b"MSG open 1 0\r\n\r\n"
    reload(rig, users(ANN, BOB))
    bob.send(b"PUB secret 0", b"")
    assert ann.read() == b"MSG secret 1 0\r\n\r\n"


def test_a_user_in_another_account_is_closed_without_an_error() -> None:
    rig = ServerRig(users(ANN))
    ann = client(rig, "ann", "a")
    reload(rig, users(replace(ANN, account="B")))
    assert (ann.read(), ann.closed) == (b"", "Credentials Revoked")


def test_authorization_that_is_switched_on_closes_those_who_never_gave_credentials(rig: ServerRig) -> None:
    silent, pinged = rig.client(connect=b""), rig.client(connect=connect())
    reload(rig, users(ANN))
    assert pinged.closed == "Authentication Failure"
    assert silent.closed == ""
    rig.time.advance(rig.server.options.auth_timeout + 0.1)
    assert silent.closed == "Authentication Timeout"


def test_a_smaller_max_payload_holds_at_once_and_is_sent(rig: ServerRig) -> None:
    peer = rig.client(b"PING")
    reload(rig, max_payload=10)
    info = peer.read()
    assert json.loads(info[5:])["max_payload"] == 10
    assert peer.ask(b"PUB x 11") == b"-ERR 'Maximum Payload Violation'\r\n"


def test_nothing_is_sent_when_nothing_changed_for_clients(rig: ServerRig) -> None:
    peer = rig.client(b"PING")
    reload(rig, ping_max=5)
    assert peer.read() == b""


def test_the_newest_connections_are_too_many(rig: ServerRig) -> None:
    peers = [rig.client() for _ in range(3)]
    reload(rig, max_connections=1)
    assert [peer.closed for peer in peers] == ["", "Maximum Connections Exceeded", "Maximum Connections Exceeded"]
    assert peers[2].read() == b"-ERR 'maximum connections exceeded'\r\n"


def test_pings_follow_a_shorter_interval() -> None:
    rig = ServerRig(ping_interval=100.0)
    peer = rig.client()
    rig.time.advance(3)
    assert peer.ask(b"PONG") == b"PING\r\n"
    reload(rig, ping_interval=1.0)
    rig.time.advance(1.5)
    assert peer.read() == b"PING\r\n"


# --- limits of accounts


def test_the_newest_connections_of_an_account_are_too_many() -> None:
    rig = ServerRig(accounts=limited(max_connections=5))
    peers = [rig.client(b"PING") for _ in range(3)]
    reload(rig, accounts=limited(max_connections=1))
    assert [peer.closed for peer in peers] == ["", *["Maximum Account Connections Exceeded"] * 2]
    assert peers[2].read() == b"-ERR 'maximum account active connections exceeded'\r\n"


def test_connections_of_an_account() -> None:
    carl = UserOptions("carl", "c", account="C")
    rig = ServerRig(users(ANN, BOB, carl), accounts=limited(max_connections=1))
    first = client(rig, "ann", "a")
    second = rig.client(connect=connect("bob", "b"))
    assert second.closed == "Maximum Account Connections Exceeded"
    client(rig, "carl", "c")
    first.connection.close("Client Closed")
    client(rig, "bob", "b")


def test_the_error_of_one_connection_too_many() -> None:
    rig = ServerRig(accounts=limited(max_connections=0))
    peer = Peer(rig)
    assert peer.ask(connect()) == b"-ERR 'maximum account active connections exceeded'\r\n"


def test_subscriptions_of_a_connection_by_its_account() -> None:
    rig = ServerRig(accounts=limited(max_subscriptions=1))
    peer = rig.client(b"SUB a 1")
    assert peer.ask(b"SUB b 2") == b"-ERR 'maximum subscriptions exceeded'\r\n"
    assert peer.ask(b"UNSUB 1", b"SUB b 2", b"PUB b 0", b"") == b"MSG b 2 0\r\n\r\n"


def test_payload_of_an_account_is_in_the_second_info() -> None:
    rig = ServerRig(accounts=limited(max_payload=100))
    peer = rig.client()
    info = peer.ask(b"PING").split(b"\r\n")[1]
    assert json.loads(info[5:])["max_payload"] == 100
    assert peer.ask(b"PUB x 101") == b"-ERR 'Maximum Payload Violation'\r\n"
    huge = ServerRig(max_payload=50, accounts=limited(max_payload=100))
    assert huge.client().ask(b"PUB x 51") == b"-ERR 'Maximum Payload Violation'\r\n"
