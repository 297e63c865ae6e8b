"""The blocks `websocket` and `compat`: texts of nats-server 2.15 for the same file, presets, single choices, and
docs/compatibility.md's table of `compat`."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from jetcluster.config.changes import changed_fields
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import PRESETS, CompatOptions
from tests.unit.config.files import load

PAGE = (Path(__file__).parents[3] / "docs" / "compatibility.md").read_text()


def read(folder: Path, text: str) -> CompatOptions:
    path = folder / "c.conf"
    path.write_text(text)
    options, warnings = load_file(str(path), {})
    assert not warnings and not options.inert
    return options.compat


def test_without_it_stock_clients_decide(tmp_path: Path) -> None:
    stock = CompatOptions("none", "deduplicate", True, "inclusive", False, "absent", False)
    assert read(tmp_path, "port: 1") == read(tmp_path, "compat {}") == stock


def test_all_at_once(tmp_path: Path) -> None:
    assert read(tmp_path, "compat: seeds") == CompatOptions(
        "explicit", "refuse", True, "inclusive", True, "absent", True
    )
    real = CompatOptions("none", "deduplicate", False, "exclusive", False, "refuse", False)
    assert read(tmp_path, 'compat: "nats-server"') == real
    read(tmp_path, "compat: seeds").ack_policy = "none"
    assert PRESETS["seeds"].ack_policy == "explicit", "what is read is the configuration's own"


def test_single_choices(tmp_path: Path) -> None:
    text = "compat { ack_policy: explicit, auto_allow_direct: off, up_to_time: exclusive }"
    assert read(tmp_path, text) == CompatOptions("explicit", "deduplicate", False, "exclusive", False, "absent", False)
    text = "compat { batch_msg_id: refuse, seed_error_codes: on, empty_policy: refuse, duplicate_window_max: true }"
    assert read(tmp_path, text) == CompatOptions("none", "refuse", True, "inclusive", True, "refuse", True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("compat: real", 'compat must be "seeds" or "nats-server" or a map, got "real"'),
        ("compat: true", '"compat" must be a string or a map, not a boolean'),
        ("compat { ack_policy: all }", "ack_policy must be 'none' or 'explicit'"),
        ("compat { up_to_time: 1 }", '"up_to_time" must be a string, not an integer'),
        ("compat { auto_allow_direct: maybe }", '"auto_allow_direct" must be a boolean, not a string'),
        ("compat { error_codes: true }", 'unknown field "error_codes"'),
    ],
)
def test_anything_else_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, text)
    assert re.fullmatch(rf".*c\.conf:1:\d+: {re.escape(said)}\n", str(refused.value)), str(refused.value)


def test_the_page_lists_every_choice_with_its_values() -> None:
    def shown(value: object) -> str:
        return f"`{value if isinstance(value, str) else 'on' if value else 'off'}`"

    told = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].strip("`") in asdict(CompatOptions()):
            assert len(cells[4]) > 40, line
            told[cells[0].strip("`")] = cells[1:4]
    columns = CompatOptions(), PRESETS["seeds"], PRESETS["nats-server"]
    expected = {
        field.name: [shown(getattr(options, field.name)) for options in columns] for field in fields(CompatOptions)
    }
    assert told == expected


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
        ("websocket: 8080", 'c.conf:1:0: "websocket" must be a map, not an integer'),
        ("websocket { port: 8080, users: [] }", 'c.conf:1:24: unknown field "users"'),
        (
            "websocket { authorization { users: [] } }",
            'c.conf:1:28: unknown field "users"',
        ),
        ("websocket { headers { X-A: 3 } }", 'c.conf:1:22: each element of "headers" must be a string, not an integer'),
        ("websocket { compression: maybe }", 'c.conf:1:12: "compression" must be a boolean, not a string'),
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
