"""Commands of a client connection that the golden transcripts do not reach."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetcluster.auth.authenticator import Authenticator, AuthError, AuthResult
from jetcluster.config.account_options import AuthorizationOptions
from jetcluster.config.options import Options
from jetcluster.server.client.commands import PORTION_OUTPUT_BYTES
from jetcluster.server.fairness import MAX_QUANTUM
from testkit.server_rig import QUIET, FakePeer, ServerRig


def info_of(line: bytes) -> dict[str, Any]:
    assert line.startswith(b"INFO ")
    value: dict[str, Any] = json.loads(line[5:])
    return value


class ExpiredError(AuthError):
    text = "User Authentication Expired"


class Login(Authenticator):
    """For tests: user `bad` is refused with a text, `boom` breaks it."""

    required = True
    nonce_required = True

    def __init__(self, permissions: Any = None) -> None:
        super().__init__(Options())
        self.permissions = permissions
        self.asked: list[tuple[dict[str, Any], bytes]] = []

    def check(self, connect: dict[str, Any], nonce: bytes, *_: Any, **__: Any) -> AuthResult:
        self.asked.append((connect, nonce))
        user = connect.get("user", "")
        if user == "bad":
            raise ExpiredError("expired")
        if user == "boom":
            raise ZeroDivisionError
        return AuthResult("ACC" if user == "alice" else "$G", user, self.permissions)


class Rules:
    """alice may publish to `pub.>` and her replies, subscribe below `sub`, and never sees `sub.secret`."""

    allow_responses = (1, 10.0)

    def __init__(self) -> None:
        self.questions = 0

    def can_publish(self, subject: bytes) -> bool:
        self.questions += 1
        return subject.startswith(b"pub.")

    def can_subscribe(self, subject: bytes, queue: bytes | None) -> bool:
        return subject.startswith((b"sub.", b"_INBOX.")) and queue != b"forbidden"

    def can_deliver(self, subject: bytes, queue: bytes | None) -> bool:
        return subject != b"sub.secret"


ALICE = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"user":"alice","protocol":1}\r\n'


def test_second_info_says_where_the_client_landed() -> None:
    rig = ServerRig(Login(), cluster_name="c", jetstream=True, domain="hub", host="127.0.0.1", port=4222)
    peer = rig.client(connect=ALICE)
    first = info_of(peer.info)
    assert first["auth_required"] is True
    assert len(first["nonce"]) == 15
    assert first["connect_urls"] == ["127.0.0.1:4222"]
    assert (first["jetstream"], first["domain"], first["cluster"]) == (True, "hub", "c")
    pong, _, second = peer.ask(b"PING").partition(b"\r\n")
    assert pong == b"PONG"
    info = info_of(second)
    assert (info["connect_info"], info["remote_account"]) == (True, "ACC")
    assert "nonce" not in info
    assert peer.connection.user == "alice"
    rig.server.set_connect_urls(["10.0.0.2:4222", "10.0.0.3:4222"])
    assert info_of(peer.read())["connect_urls"] == ["127.0.0.1:4222", "10.0.0.2:4222", "10.0.0.3:4222"]
    rig.server.set_connect_urls(["10.0.0.2:4222", "10.0.0.3:4222"])
    assert peer.read() == b"", "nothing changed"


def test_half_a_surrogate_pair_in_connect_is_read_as_go_does() -> None:
    """Half a pair cannot be encoded: one client's name would make /connz fail for all."""
    name = b'"\\ud800x \\ud83d\\ude00"'
    client = ServerRig().client(connect=b'CONNECT {"verbose":false,"name":%b,"lang":%b}' % (name, name)).connection
    assert client.name == client.lang == "\ufffdx \U0001f600"


def test_the_authenticator_gets_connect_and_nonce() -> None:
    login = Login()
    rig = ServerRig(login)
    peer = rig.client(connect=ALICE)
    connect, nonce = login.asked[0]
    assert connect["user"] == "alice"
    assert nonce.decode() == info_of(peer.info)["nonce"]


@pytest.mark.parametrize(
    ("user", "text"),
    [(b"bad", b"-ERR 'User Authentication Expired'\r\n"), (b"boom", b"-ERR 'Authorization Violation'\r\n")],
)
def test_refused(user: bytes, text: bytes) -> None:
    peer = ServerRig(Login()).client(connect=b"")
    assert peer.ask(b'CONNECT {"user":"%b"}' % user, b"PING") == text
    assert peer.closed == "Authentication Failure"


def test_no_auth_user_hides_auth_required_and_serves_any_verb() -> None:
    peer = ServerRig(Login(), no_auth_user="guest").client(connect=b"")
    assert "auth_required" not in info_of(peer.info)
    assert peer.ask(b"PING") == b"PONG\r\n"


def test_authentication_timeout() -> None:
    rig = ServerRig(Login(), authorization=AuthorizationOptions(timeout=2.0))
    late, early = rig.client(connect=b""), rig.client(connect=ALICE)
    rig.time.advance(2.1)
    assert late.read().endswith(b"-ERR 'Authentication Timeout'\r\n")
    assert late.closed == "Authentication Timeout"
    assert not early.closed


def test_permissions() -> None:
    rules = Rules()
    rig = ServerRig(Login(rules))
    peer = rig.client(connect=ALICE)
    assert peer.ask(b"PUB other 1", b"x") == b"-ERR 'Permissions Violation for Publish to \"other\"'\r\n"
    assert peer.ask(b"PUB pub.a 1", b"x", b"PUB pub.a 1", b"x", b"PUB other 1", b"x").count(b"-ERR") == 1
    assert rules.questions == 2, "answers are cached"
    assert peer.ask(b"SUB other 1") == b"-ERR 'Permissions Violation for Subscription to \"other\"'\r\n"
    assert peer.ask(b"SUB sub.a forbidden 1") == (
        b'-ERR \'Permissions Violation for Subscription to "sub.a" using queue "forbidden"\'\r\n'
    )
    assert peer.ask(b"SUB sub.* 1") == b""
    router = rig.server.account("ACC")
    router.publish(b"sub.secret", b"no")
    router.publish(b"sub.open", b"yes")
    assert peer.read() == b"MSG sub.open 1 3\r\nyes\r\n"


def test_allow_responses_opens_a_reply_once_and_for_a_while() -> None:
    rig = ServerRig(Login(Rules()))
    peer = rig.client(b"SUB sub.svc 1", connect=ALICE)
    router = rig.server.account("ACC")
    router.publish(b"sub.svc", b"q", b"answers.1")
    router.publish(b"sub.svc", b"q", b"answers.2")
    peer.read()
    assert peer.ask(b"PUB answers.1 1", b"x") == b""
    assert peer.ask(b"PUB answers.1 1", b"x") == b"-ERR 'Permissions Violation for Publish to \"answers.1\"'\r\n"
    rig.time.advance(10.5)
    peer.read()
    assert peer.ask(b"PUB answers.2 1", b"x") == b"-ERR 'Permissions Violation for Publish to \"answers.2\"'\r\n"


def test_order_of_output_within_a_connection(rig: ServerRig) -> None:
    peer = rig.client(b"SUB foo 1")
    lines = [line for n in range(50) for line in (b"PUB foo 2", b"%02d" % n, b"PING")]
    got = peer.ask(*lines).replace(b"MSG foo 1 2\r\n", b"")
    got = b"\r\n".join(line for line in got.split(b"\r\n") if not line.startswith(b"INFO"))
    assert got == b"".join(b"%02d\r\nPONG\r\n" % n for n in range(50))


def test_output_of_a_turn_is_one_write(rig: ServerRig) -> None:
    peer = rig.client(b"SUB foo 1")
    writes: list[int] = []
    original = peer.transport.write
    peer.transport.write = lambda data: (writes.append(len(data)), original(data))[1]  # type: ignore[method-assign]
    publisher = rig.client()
    publisher.send(*[b"PUB foo 0\r\n\r\n"] * 100)
    rig.router.publish(b"foo")
    assert writes == []
    peer.read()
    assert len(writes) == 1


def test_no_responders_is_not_sent_when_a_peer_listens(rig: ServerRig) -> None:
    remote = FakePeer("p")
    peer = rig.client(b"SUB _INBOX.1 1")
    rig.router.peers.set_interest(remote, b"far", None, 1)
    assert peer.ask(b"PUB far _INBOX.1 0", b"") == b""
    assert len(remote.sent) == 1
    rig.router.peers.drop_peer(remote)
    assert b"503" in peer.ask(b"PUB far _INBOX.1 0", b"")


def test_a_failing_callback_costs_one_message(caplog: pytest.LogCaptureFixture, rig: ServerRig) -> None:
    seen: list[bytes] = []

    def callback(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: object) -> None:
        seen.append(payload)
        if payload == b"1":
            raise ZeroDivisionError

    rig.router.subscribe(b"js", callback)
    peer = rig.client()
    assert peer.ask(b"PUB js 1", b"1", b"PUB js 1", b"2", b"PING").startswith(b"PONG\r\n")
    assert seen == [b"1", b"2"]
    assert "ZeroDivisionError" in caplog.text


def test_counters(rig: ServerRig) -> None:
    a, b = rig.client(), rig.client(b"SUB foo 1")
    a.send(b"PUB foo 5", b"12345", b"HPUB foo 2 4", b"HHxx")
    assert (a.connection.in_msgs, a.connection.in_bytes) == (2, 9)
    assert (b.connection.out_msgs, b.connection.out_bytes) == (2, 9)
    b.connection.connection_lost(None)
    a.connection.connection_lost(ConnectionResetError())
    totals = rig.server.clients.totals()
    assert (totals.in_msgs, totals.in_bytes, totals.out_msgs, totals.out_bytes) == (2, 9, 2, 9)
    assert [(c.cid, c.reason, c.subscriptions) for c in rig.server.clients.closed] == [
        (2, "Client Closed", 1), (1, "Read Error", 0)
    ]  # fmt: skip
    assert not rig.server.clients
    assert rig.server.clients.total == 2


def test_commands_behind_a_closing_one_are_not_run(rig: ServerRig) -> None:
    other = rig.client(b"SUB foo 1")
    peer = rig.client(connect=b"")
    peer.send(b'CONNECT {"protocol":9}', b"PUB foo 1", b"x")
    assert peer.closed == "Bad Client Protocol Version"
    assert other.read() == b""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from(
    [QUIET, b"PUB foo 2\r\nhi\r\n", b"PUB foo 9\r\nhi\r\n", b"SUB foo 1\r\n", b"SUB > g 2\r\n", b"UNSUB 1 1\r\n",
     b"CONNECT {}\r\n", b"CONNECT null\r\n", b'CONNECT {"protocol":[]}\r\n', b"HPUB foo 2 3\r\nabc\r\n"]
)), max_size=10))  # fmt: skip
def test_garbage_never_harms_another_client(chunks: list[bytes]) -> None:
    rig = ServerRig()
    other = rig.client(b"SUB private 1")
    rogue = rig.client(connect=b"")
    for chunk in chunks:
        rogue.connection.data_received(chunk)
    assert rogue.closed != "Internal Error"
    third = rig.client()
    third.send(b"PUB private 2", b"ok")
    assert other.read().endswith(b"MSG private 1 2\r\nok\r\n")
    assert other.ask(b"PING").startswith(b"PONG\r\n")
    assert not other.closed


class TestPortions:
    """Commands of one client are run in portions, one per turn of the loop."""

    def test_a_long_read_is_run_in_portions_and_in_order(self, rig: ServerRig) -> None:
        reader, writer = rig.client(b"SUB n 1"), rig.client()
        count = 2 * MAX_QUANTUM + 10
        writer.send(b"".join(b"PUB n %d\r\n%d\r\n" % (len(b"%d" % n), n) for n in range(count)))
        assert reader.connection.out_msgs == MAX_QUANTUM
        reading = [writer.transport.reading]
        writer.send(b"PUB n 4\r\nlast\r\n")  # it was under way when reading was paused
        numbers = reader.read().split(b"\r\n")[1::2]
        assert numbers == [b"%d" % n for n in range(count)] + [b"last"]
        reading.append(writer.transport.reading)
        assert reading == [False, True], "no more is read than is run"
        assert writer.connection.in_msgs == count + 1

    def test_answers_go_out_between_portions(self, monkeypatch: pytest.MonkeyPatch, rig: ServerRig) -> None:
        peer = rig.client(b"SUB s 1")
        body = b"x" * (PORTION_OUTPUT_BYTES // 4)
        peer.send(b"".join(b"PUB s %d\r\n%b\r\n" % (len(body), body) for _ in range(12)))
        assert peer.connection.out_msgs == 4
        writes: list[int] = []
        keep = peer.transport.write

        def write(data: bytes) -> None:
            writes.append(len(data))
            keep(data)

        monkeypatch.setattr(peer.transport, "write", write)
        assert peer.read().count(body) == 12
        assert len(writes) == 3

    def test_what_was_read_counts_though_the_client_went_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = ServerRig()
        reader, writer = rig.client(b"SUB n 1"), rig.client()
        writer.send(b"PUB n 1\r\nx\r\n" * (3 * MAX_QUANTUM))
        monkeypatch.setattr(writer.transport, "pause_reading", _gone)
        monkeypatch.setattr(writer.transport, "resume_reading", _gone)
        writer.connection.connection_lost(None)
        assert reader.read().count(b"\r\nx\r\n") == 3 * MAX_QUANTUM
        assert writer.closed == "Client Closed"

    def test_an_error_is_sent_behind_what_came_before_it(self, rig: ServerRig) -> None:
        reader, writer = rig.client(b"SUB n 1"), rig.client()
        writer.send(b"PUB n 1\r\nx\r\n" * (MAX_QUANTUM + 1) + b"NONSENSE\r\n")
        assert not writer.closed
        assert writer.read().startswith(b"-ERR 'Unknown Protocol Operation'")
        assert reader.read().count(b"\r\nx\r\n") == MAX_QUANTUM + 1

    def test_nothing_is_run_for_a_client_that_was_closed(self, rig: ServerRig) -> None:
        reader, writer = rig.client(b"SUB n 1"), rig.client()
        writer.send(b"PUB n 1\r\nx\r\n" * (2 * MAX_QUANTUM))
        writer.connection.close("Server Shutdown")
        assert reader.read().count(b"\r\nx\r\n") == MAX_QUANTUM


def _gone() -> None:
    raise RuntimeError("the transport is closed")


def test_a_second_connect_keeps_what_it_does_not_say() -> None:
    """Options are read over those of the first CONNECT, as nats-server does."""
    client = ServerRig().client()
    client.send(b'CONNECT {"echo":false}', b"SUB in 1")
    assert b"503" in client.ask(b"PUB nobody in 0", b"")
