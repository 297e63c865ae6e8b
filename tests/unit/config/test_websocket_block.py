"""The `websocket` block (config/websocket_block.py). Error texts are those of nats-server 2.15 for the same file."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.changes import changed_fields
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import Options


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str) -> Options:
    Path("c.conf").write_text(text + "\n")
    return load_file("c.conf", {})[0]


def test_every_field() -> None:
    websocket = load("""
        websocket {
          listen: "127.0.0.1:8080", no_tls: true, same_origin: true, allowed_origins: ["http://a.b", "https://c"]
          handshake_timeout: "3s", compression: true, authorization { user: a, password: b, timeout: 4 }
          no_auth_user: x, user_cookie: u, pass_cookie: p, token_cookie: t, jwt_cookie: j
          headers { X-A: b }, advertise: "h:1", ping_interval: "30s"
        }""").websocket
    assert (websocket.host, websocket.port, websocket.no_tls, websocket.same_origin) == ("127.0.0.1", 8080, True, True)
    assert websocket.allowed_origins == ["http://a.b", "https://c"]
    assert (websocket.handshake_timeout, websocket.compression, websocket.ping_interval) == (3.0, True, 30.0)
    login = websocket.authorization
    assert (login.user, login.password, login.timeout, websocket.no_auth_user) == ("a", "b", 4.0, "x")
    cookies = (websocket.user_cookie, websocket.pass_cookie, websocket.token_cookie, websocket.jwt_cookie)
    assert cookies == ("u", "p", "t", "j")
    assert (websocket.headers, websocket.advertise, websocket.overrides_login) == ({"X-A": "b"}, "h:1", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("websocket: 8080", "c.conf:1:0: Expected websocket to be a map, got int64"),
        ("websocket { port: 8080, users: [] }", 'c.conf:1:24: unknown field "users"'),
        (
            "websocket { authorization { users: [] } }",
            'c.conf:1:28: unknown field "users"',
        ),
        ("websocket { headers { X-A: 3 } }", "c.conf:1:22: error parsing header key X-A: unsupported type int64"),
        ("websocket { compression: maybe }", "c.conf:1:12: interface conversion: interface {} is string, not bool"),
    ],
)
def test_errors(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert str(caught.value).rstrip() == expected


USERS = "authorization { users: [ {user: a, password: b} ] }\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("websocket { port: -1 }", "websocket requires TLS configuration"),
        ("websocket { no_tls: true, headers { Upgrade: x } }", None),
        (
            "websocket { port: 1, no_tls: true, headers { Upgrade: x } }",
            'websocket: invalid header "Upgrade" not allowed',
        ),
        (
            "websocket { port: 1, no_tls: true, jwt_cookie: j }",
            'trusted operators or trusted keys configuration is required for JWT authentication via cookie "j"',
        ),
        (
            "websocket { port: 1, no_tls: true, no_auth_user: x }",
            'no_auth_user: "x" present, but users/nkeys are not defined',
        ),
        (
            USERS + "websocket { port: 1, no_tls: true, authorization { user: a } }",
            "websocket authentication username not compatible with presence of users/nkeys",
        ),
        (
            USERS + "websocket { port: 1, no_tls: true, authorization { token: a } }",
            "websocket authentication token not compatible with presence of users/nkeys",
        ),
        (USERS + "websocket { port: 1, no_tls: true, no_auth_user: a }", None),
    ],
)
def test_what_keeps_a_server_from_starting(text: str, problem: str | None) -> None:
    assert problem_of(load(text)) == problem


def test_an_origin_that_is_no_url_keeps_a_server_from_starting() -> None:
    found = problem_of(load('websocket { port: 1, no_tls: true, allowed_origins: ["http://a.b:%zz"] }'))
    assert found is not None
    assert found.startswith('unable to parse allowed origin: parse "http://a.b:%zz": ')


def test_what_a_reload_may_change() -> None:
    old = load("websocket { port: 8080, no_tls: true }")
    assert changed_fields(old, load("websocket { port: 8080, no_tls: true, compression: true }")) == ["websocket"]
    with pytest.raises(ConfigError, match="config reload not supported for websocket port: old=8080, new=8081"):
        changed_fields(old, load("websocket { port: 8081, no_tls: true }"))
