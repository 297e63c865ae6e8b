"""docs/configuration.md says of every flag and field whether it is honoured, inert or refused; here the page is held
against the code: names, synonyms, status, and that what is called honoured is read by something that runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cli import flags
from jetcluster.config import (
    cluster_block,
    compat_block,
    jetstream_block,
    leafnodes_block,
    server_block,
    unsupported_blocks,
    websocket_block,
)
from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from jetcluster.config.reader import INERT, Refusal

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
ROW = re.compile(r"^\| (`.+?`) \| (honoured|inert|refused) \| (.*?) ?\|$")

REFUSED_BY_FUNCTION = {
    unsupported_blocks.read_gateway: "gateway { port: 1 }",
    unsupported_blocks.read_mqtt: "mqtt { port: 1 }",
    unsupported_blocks.read_proxies: "proxies { trusted: [] }",
    unsupported_blocks.read_ocsp: "ocsp: true",
    server_block.refuse_default_domain: "default_js_domain { A: d }",
    leafnodes_block.refuse_migration: "leafnodes { remotes: [ {url: x, js_cluster_migrate: true} ] }",
}
"""Readers that look at the value first, and what they refuse."""

SECTIONS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], frozenset[str]]] = {
    "Server": (server_block.FIELDS, server_block.BLOCKS, server_block.INERT_NAMES),
    "`cluster`": (cluster_block.FIELDS, cluster_block.BLOCKS, cluster_block.INERT_NAMES),
    "`jetstream`": (jetstream_block.FIELDS, jetstream_block.BLOCKS, frozenset()),
    "`compat`": (compat_block.FIELDS, {}, frozenset()),
    "`jetstream { limits }`": (jetstream_block.LIMIT_FIELDS, {}, frozenset()),
    "`jetstream { limits { batch } }`": (jetstream_block.BATCH_FIELDS, {}, frozenset()),
    "`jetstream { limits { objects } }`": (jetstream_block.OBJECT_FIELDS, {}, frozenset()),
    "`leafnodes`": (leafnodes_block.FIELDS, leafnodes_block.BLOCKS, leafnodes_block.INERT_NAMES),
    "`leafnodes { remotes }`": (
        leafnodes_block.REMOTE_FIELDS,
        leafnodes_block.REMOTE_BLOCKS,
        frozenset(),
    ),
    "`websocket`": (websocket_block.FIELDS, websocket_block.BLOCKS, frozenset()),
}
SECTIONS = {
    section: (fields, blocks, inert | {name for name, (attribute, _) in fields.items() if attribute == INERT})
    for section, (fields, blocks, inert) in SECTIONS.items()
}


NESTING = {
    "Server": "%s",
    "`cluster`": "cluster { %s }",
    "`jetstream`": "jetstream { %s }",
    "`leafnodes`": "leafnodes { %s }",
    "`leafnodes { remotes }`": "leafnodes { remotes: [ { url: x, %s } ] }",
}


def rows(section: str) -> Iterator[tuple[list[str], str, str]]:
    """(names, status, note) of the table below a heading."""
    start = re.search(rf"^#+ {re.escape(section)}$", PAGE, re.MULTILINE)
    assert start is not None, f"docs/configuration.md has no section {section}"
    body = re.split(r"^#", PAGE[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    for line in body.splitlines():
        if line.startswith("| `"):
            found = ROW.match(line)
            assert found is not None, line
            yield re.findall(r"`([^`]+)`", found[1]), found[2], found[3]


def status_in_code(name: str, fields: Mapping[str, Any], blocks: Mapping[str, Any], inert: frozenset[str]) -> str:
    if name in inert:
        return "inert"
    if name in blocks and (isinstance(blocks[name], Refusal) or blocks[name] in REFUSED_BY_FUNCTION):
        return "refused"
    return "honoured"


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_says_what_the_code_does(section: str) -> None:
    fields, blocks, inert = SECTIONS[section]
    told: dict[str, str] = {}
    for names, status, note in rows(section):
        for name in names:
            assert name not in told, f"{name} twice"
            told[name] = status
        if status == "inert":
            assert note, f"{names}: why is it inert?"
        synonyms = {fields[name][0] for name in names if name in fields} | {blocks[n] for n in names if n in blocks}
        assert len(synonyms) == 1 or not any(name in fields or name in blocks for name in names), names
    in_code = {name: status_in_code(name, fields, blocks, inert) for name in {*fields, *blocks, *inert}}
    assert told == in_code


def test_the_page_has_every_flag() -> None:
    told: dict[str, str] = {}
    for names, status, _ in rows("Flags"):
        destinations = {flags.NAMES[name.lstrip("-")][0] for name in names}
        assert len(destinations) == 1, names
        told |= {name.lstrip("-"): status for name in names}
        assert (status == "inert") == (destinations <= set(flags.INERT)), names
    assert told.keys() == flags.NAMES.keys()


def running_code() -> str:
    """Everything but what reads the configuration."""
    package = ROOT / "jetcluster"
    files = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("config", "cli")]
    return "\n".join(path.read_text() for path in files)


def test_what_is_honoured_is_read_by_something_that_runs() -> None:
    """A field that is only parsed is none: its attribute of `Options` must be used outside the reading of files."""
    code = running_code()
    used = set(re.findall(r"\.([a-z_]+)\b", code)) | set(re.findall(r'"([a-z_]+)"', code))
    # Read where options are checked or described, or handed on under another name.
    used |= {"no_tls", "handshake_timeout", "allow_non_tls"}
    for section, (fields, _, inert) in SECTIONS.items():
        for name, (attribute, _convert) in fields.items():
            if name not in inert:
                assert attribute, (section, name)
                assert attribute in used, f"{section} {name}: nothing reads Options...{attribute}"


def test_what_is_inert_is_told_at_the_start(tmp_path: Path) -> None:
    values = {"accounts": "[A]", "compression": "s2_fast", "write_timeout": "close", "feature_flags": "{a: true}"}
    durations = ("ping_interval", "write_deadline")
    switches = {"connect_backoff", "disable_sublist_cache", "no_sublist_cache", "ocsp_cache", "meta_compact_sync"}
    switches |= {"no_system_account", "no_system", "no_sys_acc"}
    for section, (_, _, inert) in SECTIONS.items():
        for name in sorted(inert):
            value = values.get(name, "'3s'" if name in durations else "4")
            if name in switches or name.startswith(("ws_", "websocket_")):
                value = "true"
            if name in ("extension_hint",):
                value = "will_extend"
            (tmp_path / "c.conf").write_text(NESTING[section] % f"{name}: {value}")
            options, warnings = load_file(str(tmp_path / "c.conf"), {})
            assert warnings == []
            assert len(options.inert) == 1 and name in options.inert[0], (section, name, options.inert)
            options.add_start_warnings()
            assert any(name in warning and "without effect" in warning for warning in options.warnings)


def test_what_is_refused_is_refused_by_name_and_place(tmp_path: Path) -> None:
    samples = list(REFUSED_BY_FUNCTION.values())
    for section, (_, blocks, _) in SECTIONS.items():
        for name, reader in blocks.items():
            if isinstance(reader, Refusal):
                samples.append(NESTING[section] % f"{name}: true")
    assert len(samples) > 20
    for sample in samples:
        path = tmp_path / "c.conf"
        path.write_text(sample)
        with pytest.raises(ConfigError, match="not supported") as caught:
            load_file(str(path), {})
        assert re.match(rf"{re.escape(str(path))}:1:\d+: ", str(caught.value)), sample
