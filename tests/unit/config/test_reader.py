"""Values as the reader takes them, and variable definitions among a block's keys. Texts are nats-server's."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.reader import parse_duration, parse_storage_size


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10),
        ("2m", 120),
        ("100ms", 0.1),
        ("1h2m3.5s", 3723.5),
        ("-1s", -1),
        ("0", 0),
        ("1µs", 1e-6),
        ("5ns", 5e-9),
        (".5s", 0.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2x", 'time: unknown unit "x" in duration "2x"'),
        ("2", 'time: missing unit in duration "2"'),
        ("", 'time: invalid duration ""'),
        ("s", 'time: invalid duration "s"'),
        ("1h-2m", 'time: invalid duration "1h-2m"'),
        ("-1h2", 'time: missing unit in duration "-1h2"'),
        ("2562048h", 'time: invalid duration "2562048h"'),
    ],
)
def test_bad_durations_are_worded_as_by_go(text: str, error: str) -> None:
    with pytest.raises(ValueError, match="time: ") as caught:
        parse_duration(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("1G", 1 << 30),
        ("512M", 512 << 20),
        ("1k", 1024),
        ("2T", 2 << 40),
        ("1GB", 1 << 30),
        (77, 77),
        ("77", 77),
        ("-1", -1),
        (-1, -1),
        ("", 0),
    ],
)
def test_storage_sizes(value: object, size: int) -> None:
    assert parse_storage_size("max_file", value) == size


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("10X", "sizes defined as strings must end in K, M, G, T"),
        ("abc", "sizes defined as strings must end in K, M, G, T"),
        ("G", 'strconv.ParseInt: parsing "": invalid syntax'),
        ("1.5G", 'strconv.ParseInt: parsing "1.5": invalid syntax'),
        (1.5, "must be int64 or string"),
        (True, "must be int64 or string"),
    ],
)
def test_bad_storage_sizes(value: object, why: str) -> None:
    with pytest.raises(ValueError, match=f"^max_file {why}$"):
        parse_storage_size("max_file", value)
