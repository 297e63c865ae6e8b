"""Exports, imports and mappings in configuration files: what is read, and what is refused in nats-server's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.config.account_options import ExportOptions, ImportOptions, LatencyOptions, MappingDestination
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from tests.unit.config.files import load
from tests.unit.config.import_cases import CASES
from tests.unit.config.oracle_differences import without_types


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_as_the_real_server(text: str, expected: str) -> None:
    Path("c.conf").write_text(text + "\n")
    try:
        load_file("c.conf")
        told = ""
    except ConfigError as error:
        told = str(error).strip()
    assert without_types(told) == without_types(expected)


def test_exports_are_read() -> None:
    text = """
    accounts {
      A { exports: [
        { stream: "pub.>", accounts: [B] }
        { service: "req.*.x", account_token_position: 2, response_type: Stream, response_threshold: "3s" }
        { service: one, latency: { sampling: "20%", subject: lat } }
        { service: two, latency: lat }
      ] }
      B {}
    }"""
    assert load(text).accounts["A"].exports == [  # type: ignore[index]
        ExportOptions("stream", "pub.>", ["B"]),
        ExportOptions("service", "req.*.x", account_token_position=2, response_type="stream", response_threshold=3.0),
        ExportOptions("service", "one", latency=LatencyOptions("lat", 20)),
        ExportOptions("service", "two", latency=LatencyOptions("lat", 100)),
    ]


def test_imports_are_read() -> None:
    text = """
    accounts {
      A { exports: [ { stream: ">" }, { service: ">" } ] }
      B { imports: [
        { stream: { account: A, subject: "pub.x" }, prefix: imp }
        { stream: { account: A, subject: "pub.y.*" }, to: "my.$1" }
        { service: { account: A, subject: "req.*" }, to: "local.*", share: true }
        { service: { account: A, subject: "plain" } }
      ] }
    }"""
    assert load(text).accounts["B"].imports == [  # type: ignore[index]
        ImportOptions("stream", "A", "pub.x", "imp.pub.x", prefix="imp"),
        ImportOptions("stream", "A", "pub.y.*", "my.$1"),
        ImportOptions("service", "A", "req.*", "local.*", share=True),
        ImportOptions("service", "A", "plain"),
    ]


def test_mappings_are_read_in_accounts_and_at_the_top() -> None:
    text = """
    mappings { a: b }
    accounts { A { maps { "x.*": [ { dest: "y.$1", weight: 40% }, { destination: z, weight: 10, cluster: C } ] } } }
    """
    options = load(text)
    assert [(m.source, m.destinations) for m in options.mappings] == [("a", [MappingDestination("b")])]
    (mapping,) = options.accounts["A"].mappings  # type: ignore[index]
    assert mapping.destinations == [MappingDestination("y.$1", 40), MappingDestination("z", 10, "C")]


def test_system_account_may_be_named_after_the_accounts() -> None:
    text = """
    accounts {
      SYS { exports: [ { service: "$SYS.REQ.ACCOUNT.*.CONNZ", account_token_position: 4 } ] }
      B { imports: [ { service: { account: SYS, subject: "$SYS.REQ.ACCOUNT.B.CONNZ" } } ] }
    }
    system_account: SYS"""
    assert load(text).accounts["B"].imports  # type: ignore[index]


def test_allowing_traces_has_no_effect_and_says_so() -> None:
    options = load("accounts { A { exports: [ { service: a, allow_trace: true } ] } }")
    assert options.inert == ['"accounts.exports.allow_trace"']


def test_message_traces_are_refused() -> None:
    with pytest.raises(ConfigError, match="traces that a Traceparent header asks for"):
        load('accounts { A { msg_trace: "a.b" } }')


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ('{ stream: "x.>", prefix: q, to: "z.>" }', "Stream import can not have a 'prefix' and a 'to' property"),
        ("5", 'each element of "imports" must be a map, not an integer'),
    ],
)
def test_where_the_real_server_rolls_dice(item: str, why: str) -> None:
    """It reads keys in random order, and some mistakes show in one order only; and it cannot read `[5] }`."""
    if item.startswith("{"):
        item = item.replace('"x.>"', '{ account: B, subject: "x.>" }')  # of an import
    with pytest.raises(ConfigError, match=why):
        load(f'accounts {{ B {{ exports: [ {{ stream: "x.>" }} ] }}\n A {{ imports: [ {item} ] }} }}')


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("{ stream: a, service: b }", 'Detected service "b" but already saw a stream'),
        ("{ stream: a, response_threshold: 1s }", "Detected response directive on non-service"),
    ],
)
def test_where_it_rolls_dice_about_exports(item: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(f"accounts {{ A {{ exports: [ {item} ] }} }}")
