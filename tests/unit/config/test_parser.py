from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.parser import ConfigNode, parse_text, read_text


def plain(text: str, env: dict[str, str] | None = None) -> dict[str, object]:
    return {key: node.plain() for key, node in parse_text(text, "c.conf", env or {}).items()}


GRAMMAR = [
    # pairs: three separators, three ends, quoted keys, case kept, later duplicate wins
    ("a: 1\nb = 2\nc 3\n", {"a": 1, "b": 2, "c": 3}),
    ("a: 1, b: 2; c: 3", {"a": 1, "b": 2, "c": 3}),
    ("\"a b\" = 1, 'c' = 2", {"a b": 1, "c": 2}),
    ("Key: 1", {"Key": 1}),
    ("port: 4222\nport: 4223\n", {"port": 4223}),
    # maps and arrays
    ("m { x: 1, n { y: 2 } }", {"m": {"x": 1, "n": {"y": 2}}}),
    ("m\n{ x: 1, }\n", {"m": {"x": 1}}),
    ("m {\n x:\n 1\n}", {"m": {"x": 1}}),
    ("{ a: 1 }\nb: 2", {"a": 1, "b": 2}),
    ("a: , b: }", {"a": "", "b": ""}),
    ("a: [1, two, 'three']", {"a": [1, "two", "three"]}),
    ("a: [\n a\n b # note\n c,\n]\n", {"a": ["a", "b", "c"]}),
    ("a: [[1], {b: 2}, ]", {"a": [[1], {"b": 2}]}),
    ("a: []\nm: {}\n", {"a": [], "m": {}}),
    # comments
    ("# one\na: 1 # two\n// three\nb: 2 // four\n", {"a": 1, "b": 2}),
    ("a: x#y\n", {"a": "x#y"}),
    ("a: nats://h:1/#f\n", {"a": "nats://h:1/#f"}),
    # strings
    (r'a: "\t\n\r\"\\\x41"', {"a": '\t\n\r"\\A'}),
    (r'a: "ends in \\"', {"a": "ends in \\"}),
    (r"a: 'raw \t'", {"a": r"raw \t"}),
    (r"a: b\x42c", {"a": "bBc"}),
    ("a: 127.0.0.1:4222\n", {"a": "127.0.0.1:4222"}),
    ("a: (\n  hello\n  world\n)\nb: 1\n", {"a": "\n  hello\n  world\n", "b": 1}),
    # scalars
    (
        "a: TRUE, b: yes, c: On, d: false, e: NO, f: off",
        {"a": True, "b": True, "c": True, "d": False, "e": False, "f": False},
    ),
    (
        "a: 1k, b: 1KB, c: 1KiB, d: 2m, e: 2MB, f: 64MB",
        {"a": 1000, "b": 1024, "c": 1024, "d": 2_000_000, "e": 2 << 20, "f": 64 << 20},
    ),
    (
        "a: 1g, b: 1Gi, c: 1t, d: 1TB, e: 1p, f: 1eb",
        {"a": 10**9, "b": 1 << 30, "c": 10**12, "d": 1 << 40, "e": 10**15, "f": 1 << 60},
    ),
    ("a: -1, b: 1.5, c: -2.25", {"a": -1, "b": 1.5, "c": -2.25}),
    ("a: 10.5.3, b: 12abc, d: 10s, e: 2a", {"a": "10.5.3", "b": "12abc", "d": "10s", "e": "2a"}),
    ("a: 2006-01-02T15:04:05Z", {"a": datetime(2006, 1, 2, 15, 4, 5, tzinfo=UTC)}),
    # variables and bcrypt hashes
    ("x: 5\ny: $x\n", {"x": 5, "y": 5}),
    ("x: 5\nm { x: 6, n { y: $x } }\nz: $x", {"x": 5, "m": {"x": 6, "n": {"y": 6}}, "z": 5}),
    ("p: $2a$11$abc.def/ghi", {"p": "$2a$11$abc.def/ghi"}),
    ("p: $2y$05$abc", {"p": "$2y$05$abc"}),
    # JSON
    ('{"port": 4222, "a": {"b": [1, "x", true]}}\n', {"port": 4222, "a": {"b": [1, "x", True]}}),
    ("a: 1\r\nb: [1,\r\n 2]\r\n", {"a": 1, "b": [1, 2]}),
]


@pytest.mark.parametrize(("text", "expected"), GRAMMAR)
def test_grammar(text: str, expected: dict[str, object]) -> None:
    assert plain(text) == expected


# Every text below was produced by nats-server 2.15 for the same input.
ERRORS = [
    ("a = \n", "Parse error on line 2: 'Expected value but found new line'"),
    ("a: {\n", "Parse error on line 2: 'Unexpected EOF processing map.'"),
    ('"port: 4\n', "Parse error on line 2: 'Unexpected EOF.'"),
    ("a: 'x\n", "Parse error on line 2: 'Unexpected EOF.'"),
    ("a: (\nx\n", "Parse error on line 3: 'Unexpected EOF processing block.'"),
    ("= 1\n", "Parse error on line 1: 'Unexpected key separator '=''"),
    (
        "port: 4222\nport 1 2\n",
        "Parse error on line 2: 'Expected a top-level value to end with a new line, comment or EOF, but got '2' "
        "instead.'",
    ),
    (
        "c { name: a port: 1 }\n",
        'Parse error on line 1: \'Expected a map value terminator "," or a map terminator "}", but got \'p\' '
        "instead.'",
    ),
    (
        "x: [ a b ]\n",
        'Parse error on line 1: \'Expected an array value terminator "," or an array terminator "]", but got \'b\' '
        "instead.'",
    ),
    ("x: [ , ]\n", "Parse error on line 1: 'Unexpected array value terminator ','.'"),
    (
        'a: "\\q"\n',
        "Parse error on line 1: 'Invalid escape character 'q'. Only the following escape characters are allowed: "
        "\\xXX, \\t, \\n, \\r, \\\", \\\\.'",
    ),
    ("a: -x\n", "Parse error on line 1: 'Expected a digit but got 'x'.'"),
    ("a: 1.x\n", "Parse error on line 1: 'Floats must have a digit after the '.', but got 'x' instead.'"),
    ("a: 12-34\n", "Parse error on line 1: 'All ISO8601 dates must be in full Zulu form.'"),
    ("a: 2006-13-02T15:04:05Z\n", "expected Zulu formatted DateTime, but got '2006-13-02T15:04:05Z'"),
    ("a: 99999999999999999999\n", "integer '99999999999999999999' is out of the range"),
    (
        "m { a: 1,\n, b: 2 }",
        'Parse error on line 2: \'Expected a map value terminator "," or a map terminator "}", '
        "but got '2' instead.'",
    ),
    (
        "m { a: 1",
        'Parse error on line 1: \'Expected a map value terminator "," or a map terminator "}", but got '
        "'\0' instead.'",
    ),
    ("include [x]", "Parse error on line 1: 'Expected include value but found start of an array'"),
    ("port: $NOPE\n", "variable reference for 'NOPE' on line 1 can not be found"),
    ("foo\n", "config is invalid (c.conf:2:1)"),
]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_errors_are_worded_as_by_the_real_server(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plain(text)
    assert str(caught.value) == expected


def test_variables_come_from_the_environment_as_values() -> None:
    env = {"N": "12", "S": "some-name", "L": "[a, b]", "REF": "$N", "HASH": "$2a$11$xyz", "Q": '"12"'}
    text = "n: $N, s: $S, l: $L, r: $REF, h: $HASH, q: $Q"
    assert plain(text, env) == {"n": 12, "s": "some-name", "l": ["a", "b"], "r": 12, "h": "$2a$11$xyz", "q": "12"}


def test_a_cycle_of_variables_is_an_error() -> None:
    with pytest.raises(ConfigError, match="variable reference cycle for 'A'"):
        plain("x: $A", {"A": "$B", "B": "$A"})


def test_file_definition_wins_over_environment_and_is_marked_as_used() -> None:
    pairs = parse_text("X: 3\nport: $X\ny: 1\n", "c.conf", {"X": "9"})
    assert pairs["port"].value == 3
    assert pairs["X"].used_as_variable
    assert not pairs["y"].used_as_variable


def parse_file(path: str, env: dict[str, str]) -> dict[str, ConfigNode]:
    return parse_text(read_text(path), path, env)


def test_include_splices_relative_to_the_including_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.conf").write_text("include sub/a.conf\nm { include 'sub/b.conf' }\n")
    (tmp_path / "sub" / "a.conf").write_text('include "c.conf"\na: 1\n')
    (tmp_path / "sub" / "b.conf").write_text("b: 2\n")
    (tmp_path / "sub" / "c.conf").write_text("c: 3\n")
    pairs = parse_file(str(tmp_path / "main.conf"), {})
    assert {key: node.plain() for key, node in pairs.items()} == {"a": 1, "c": 3, "m": {"b": 2}}
    assert pairs["a"].file.endswith("sub/a.conf")


def test_include_of_a_missing_file_names_both_forms(tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text("include ./x.conf\n")
    with pytest.raises(ConfigError) as caught:
        parse_file("c.conf", {})
    assert str(caught.value) == "error parsing include file './x.conf', open x.conf: no such file or directory"


def test_a_file_that_includes_itself_ends_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text("include c.conf\n")
    with pytest.raises(ConfigError, match="included more than 32 deep"):
        parse_file(str(tmp_path / "c.conf"), {})


def test_depth_is_limited() -> None:
    with pytest.raises(ConfigError, match="Maps and arrays are more than 100 deep"):
        plain("a: " + "[" * 5000)
    with pytest.raises(ConfigError, match="Maps and arrays are more than 100 deep"):
        plain("a " + "{ a " * 5000)


def test_missing_files() -> None:
    with pytest.raises(ConfigError, match=r"^open /nope/x\.conf: no such file or directory$"):
        parse_file("/nope/x.conf", {})
