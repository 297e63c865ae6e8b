"""Configuration files that nobody has written by hand: the answer is options, or a `ConfigError`; never another
exception, never a wait."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from tests.unit.config import oracle_cases

HUGE = "9" * 5000
PLACES = [
    "port: %s",
    "max_payload: %s",
    "ping_interval: %s",
    "lame_duck_duration: %s",
    "listen: %s",
    "x: %s",
    "jetstream { max_mem: %s, sync_interval: %s }",
    "tls { timeout: %s }",
    "cluster { port: %s }",
    "leafnodes { port: %s }",
    "websocket { port: %s, no_tls: true }",
    "authorization { timeout: %s }",
    'resolver { type: full, dir: "/tmp/x", interval: %s, limit: %s }',
    "accounts { A { limits { max_payload: %s } } }",
    "mappings { a: [ {dest: b, weight: %s} ] }",
    "accounts { A { exports: [ {service: x, response_threshold: %s} ] } }",
]
VALUES = [
    HUGE,
    "-" + HUGE,
    HUGE + "h",
    HUGE + "gb",
    HUGE + "%",
    HUGE + ".5",
    f'"{HUGE}s"',
    "1e999",
    "9" * 18 + "h",
    "[]",
    "{}",
    "[[]]",
    "true",
    '""',
    "2026-13-99T99:99:99Z",
    "$x",
    "\\x",
    '"\\u0000"',
    "(",
    "(\n)",
    "'",
]


def answer(folder: Path, text: str | bytes, env: dict[str, str] | None = None) -> str:
    """The problem of a configuration file; "" when it has none. Raises whatever is no ConfigError."""
    path = folder / "c.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        options, _ = load_file(str(path), env or {})
        return problem_of(options) or ""
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("place", PLACES)
def test_odd_values_in_every_kind_of_place(tmp_path: Path, place: str) -> None:
    for value in VALUES:
        answer(tmp_path, place.replace("%s", value))


def test_a_number_of_any_length_is_out_of_range(tmp_path: Path) -> None:
    for value, shown in ((HUGE, HUGE), ("-" + HUGE, "-" + HUGE), (HUGE + "kb", HUGE + "kb"), ("9" * 19, "9" * 19)):
        assert answer(tmp_path, f"max_payload: {value}") == f"integer '{shown}' is out of the range"
    assert "integer" not in answer(tmp_path, "max_payload: " + "0" * 5000 + "1048576")


WORDS = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b'"',
    b"'",
    b"#",
    b"//",
    b"=",
    b":",
    b",",
    b";",
    b"\n",
    b"$",
    b"$x",
    b"include ",
    b"include a.conf\n",
    b"\xff\xfe",
    b"\x00",
    b"9" * 400,
    b"-1",
    b"1e400",
    b"0x",
    b"99999999tb",
    b"9h",
    b"true",
    b"\\",
    b"\\xff",
    b"(\n",
    b"\n)",
    b"2026-01-01T00:00:00Z",
    b".",
    b"*",
    b">",
    b"%",
    b"tls",
    b"accounts",
    b"users",
    b"jetstream",
    b"permissions",
    b"cluster",
    b"leafnodes",
    b"websocket",
    b"authorization",
    b"operator",
    b"resolver",
    b"mappings",
]


def mutated(rng: random.Random, text: bytes) -> bytes:
    found = bytearray(text)
    for _ in range(rng.randrange(1, 6)):
        at, what = rng.randrange(len(found) + 1), rng.random()
        if what < 0.35:
            found[at:at] = rng.choice(WORDS)
        elif what < 0.6:
            del found[at : at + rng.randrange(1, 20)]
        elif what < 0.75:
            found[at:at] = found[rng.randrange(len(found) + 1) :][: rng.randrange(60)]
        elif what < 0.9 and (values := list(re.finditer(rb"[:=]\s*([^\s,}\]]+)", bytes(found)))):
            place = rng.choice(values)
            found[place.start(1) : place.end(1)] = rng.choice(WORDS)
        else:
            found = found[:at]
    return bytes(found)


def test_mutated_configurations_and_noise(tmp_path: Path) -> None:
    """A thousand here; 22,000 were tried once."""
    rng = random.Random(7)
    (tmp_path / "a.conf").write_text("y: 1\n")
    texts = [case.encode() for case in oracle_cases.CASES]
    for turn in range(1000):
        if turn % 7 == 0:
            text = rng.randbytes(rng.randrange(200))
        elif turn % 7 == 1:
            text = b" ".join(rng.choice(WORDS) for _ in range(rng.randrange(60)))
        else:
            text = mutated(rng, rng.choice(texts))
        try:
            answer(tmp_path, text)
        except Exception as error:
            raise AssertionError(text) from error


@pytest.mark.parametrize(
    ("text", "files", "env", "said"),
    [
        ("a: " + "[" * 1_000_000, {}, {}, "more than 100 deep"),
        ("a: " + "{a " * 300_000, {}, {}, "more than 100 deep"),
        ("include c.conf", {}, {}, "included more than 32 deep"),
        (
            "include f0",
            {f"f{n}": f"include f{n + 1}\ninclude f{n + 1}\n" for n in range(30)} | {"f30": ""},
            {},
            "more than 1000 includes",
        ),
        ("include /../../../../../../../../../../../../dev/zero", {}, {}, "/dev/zero: more than 67108864 bytes"),
        (
            "v0: [1,1,1,1]\n" + "".join(f"v{n + 1}: [$v{n},$v{n},$v{n},$v{n}]\n" for n in range(60)),
            {},
            {},
            "on line 10: variables",
        ),
        ("v0: [1]\n" + "".join(f"v{n + 1}: [[[$v{n}]]]\n" for n in range(1200)), {}, {}, "more than 100 deep"),
        ("a: $A", {}, {"A": "[$A]"}, "included more than 32 deep"),
        ("a: $A", {}, {"A": "$B", "B": "$A"}, "variable reference cycle for 'A'"),
        ("a: $A0", {}, {f"A{n}": f"[$A{n + 1},$A{n + 1}]" for n in range(30)} | {"A30": "1"}, "more than 20000 uses"),
        ("a: $a", {}, {}, "variable reference for 'a' on line 1 can not be found"),
    ],
    ids=range(11),
)
def test_what_has_no_end_is_refused_soon(
    tmp_path: Path, text: str, files: dict[str, str], env: dict[str, str], said: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    began = time.process_time()
    found = answer(tmp_path, text, env)
    assert said in found and len(found) < 2000, found[:500]
    assert time.process_time() - began < 10


def test_what_is_only_large_is_read(tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / f"f{n}").write_text(f"# {n}\n")
    users = ",".join(f"{{user: u{n}, password: $P, permissions: $may}}" for n in range(2000))
    routes = ",".join(f"nats://h{n}:1" for n in range(5000))
    text = "".join(f"include f{n}\n" for n in range(200)) + "may: {publish: [a, b, c], subscribe: {deny: [x]}}\n"
    text += f"authorization {{ users: [{users}] }}\ncluster {{ name: c, port: -1, routes: [{routes}] }}\n"
    began = time.process_time()
    assert answer(tmp_path, text, {"P": "secret"}) in ("", "x")
    assert time.process_time() - began < 20
