"""Which keys a block takes that no field names: variable definitions. Texts are those of `nats-server -t` 2.15."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, **included: str) -> str:
    """ "" when the file is valid, else the error. `included` holds the texts of b.conf and c.conf."""
    Path("a.conf").write_text(text)
    for name, body in included.items():
        Path(f"{name}.conf").write_text(body)
    try:
        load_file("a.conf", {})
    except ConfigError as error:
        return str(error).rstrip("\n")
    return ""


@pytest.mark.parametrize(
    "text",
    [
        "PW = x\nserver_name: $PW\n",
        "P = x\nQ = $P\nserver_name: $Q\n",
        "authorization { PW = x\n users=[{user:a,password:$PW}] }\n",
        "authorization { users=[{U=a, user:$U,password:b}] }\n",
        "cluster { P = 1234\n port: $P }\n",
        "cluster { port: 1234, authorization { T = x\n user: $T, password: y} }\n",
        'jetstream { D = "/tmp/x"\n store_dir: $D }\n',
        "jetstream { limits { D = 3\n max_ha_assets: $D } }\n",
        "jetstream { limits { batch { D = 3\n max_msgs: $D } } }\n",
        "accounts { P=x\n A { users=[{user:a,password:$P}] } }\n",
        "accounts { A { P=x\n users=[{user:a,password:$P}] } }\n",
        "accounts { A { jetstream { P=3\n max_streams: $P } } }\n",
        "accounts { A { limits { P=3\n max_conn: $P } } }\n",
        'authorization { users=[{user:a,password:b, permissions { P="x"\n publish: $P }}] }\n',
        'authorization { users=[{user:a,password:b, permissions { publish { P="x"\n allow: $P }}}] }\n',
        "authorization { users=[{user:a,password:b, permissions { allow_responses { P=3\n max: $P }}}] }\n",
        "websocket { T = 3333\n port: $T\n no_tls: true }\n",
        "leafnodes { T = 3333\n port: $T }\n",
    ],
)
def test_a_key_that_serves_as_a_variable_is_known_at_every_level(text: str) -> None:
    assert load(text) == ""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("PW = x\nserver_name: y\n", 'a.conf:1:0: unknown field "PW"'),
        ("P = x\nQ = $P\nserver_name: z\n", 'a.conf:2:1: unknown field "Q"'),
        ("PW = x\nserver_name: $PW\nPW = y\n", 'a.conf:3:1: unknown field "PW"'),
        # The nearer definition is the one that is used, so the outer one is a key like any other.
        (
            "PW=x\nauthorization { PW=y\n users=[{user:a,password:$PW}] }\n",
            'a.conf:1:0: unknown field "PW"',
        ),
        ("PW { a: 1 }\nauthorization: $PW\n", 'a.conf:1:5: unknown field "a"'),
        # The one block where the real server allows no definitions.
        ("tls { T = 3\n timeout: $T }\n", 'a.conf:1:6: error parsing tls config, unknown field "T"'),
    ],
)
def test_a_key_that_nothing_uses_is_unknown(text: str, error: str) -> None:
    assert load(text) == error


AUTH = "authorization { include b.conf\n }\n"
USERS = "users=[{user:a,password:$PW}]\n"


@pytest.mark.parametrize(
    ("text", "b", "c", "error"),
    [
        ("include b.conf\n", "PW=x\nserver_name: $PW\n", "", ""),
        (AUTH, "PW=x\n" + USERS, "", ""),
        (AUTH, "include c.conf\n" + USERS, "PW=x\n", ""),
        # What an included file defines, the including one may use,
        ("include b.conf\nserver_name: $PW\n", "PW=x\n", "", ""),
        (f"authorization {{ include b.conf\n {USERS} }}\n", "PW=x\n", "", ""),
        # ... but not the other way round.
        (
            "PW=x\n" + AUTH,
            USERS,
            "",
            "error parsing include file 'b.conf', variable reference for 'PW' on line 1 can not be found",
        ),
        (AUTH, "PW=x\nusers=[{user:a,password:b}]\n", "", 'b.conf:1:0: unknown field "PW"'),
        (AUTH, "include c.conf\n", "PW=x\ntimeout: 1\nuser2: $PW\n", 'c.conf:3:1: unknown field "user2"'),
    ],
)
def test_variables_of_included_files(text: str, b: str, c: str, error: str) -> None:
    assert load(text, b=b, c=c) == error
