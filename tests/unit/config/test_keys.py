"""Every key of every block keeps its meaning: honoured, inert, or refused by its name; every flag is on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jetcluster.cli import flags
from jetcluster.config.keys import KEYS
from jetcluster.config.reader import HONOURED, INERT, REFUSED, Key
from testkit.certificates import make_certificate
from tests.unit.config.key_cases import BLOCKS, load, outcome

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
OUTCOMES: dict[str, dict[str, dict[str, str | list[str]]]] = json.loads(
    Path(__file__).with_name("key_outcomes.json").read_text()
)
SILENT = {"cluster_traffic"}
"""Inert keys that no warning names: both of their values mean the same here."""
EACH = [(block, key) for block, table in KEYS.items() for key in table.keys]


def pinned(block: str, key: Key) -> list[dict[str, str | list[str]]]:
    return [found for pair, found in OUTCOMES[block].items() if pair.partition(":")[0] in key.names]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_certificate(folder)
    return folder


@pytest.mark.parametrize("block", OUTCOMES)
def test_a_key_does_what_it_did(block: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    for pair, found in OUTCOMES[block].items():
        assert outcome(block, pair) == found, pair


def test_what_a_reload_refuses_is_in_the_row() -> None:
    for block, key in EACH:
        if block.startswith("leafnodes.authorization"):
            continue  # the row of the whole block says so
        told = key.fixed or key.bound or "elow" in key.note
        assert told or not any("fixed" in found for found in pinned(block, key)), (block, key.names)


def test_each_key_is_pinned_under_each_of_its_names() -> None:
    assert OUTCOMES.keys() == BLOCKS.keys()
    for block, key in EACH:
        assert len(pinned(block, key)) == len(key.names), (block, key.names)
    assert len({(block, name) for block, key in EACH for name in key.names}) == sum(len(key.names) for _, key in EACH)


def test_an_inert_key_is_named_at_the_start() -> None:
    for block, key in EACH:
        for found in pinned(block, key) if key.status == INERT else ():
            assert found.get("inert") or SILENT & set(key.names), (block, key.names)
    options, _ = load("cluster { name: c, pool_size: 3 }")
    options.add_start_warnings()
    assert options.warnings[0] == 'Accepted, but without effect in this version: "cluster.pool_size"'


def test_a_refused_key_is_refused_with_its_place() -> None:
    for block, key in EACH:
        for found in pinned(block, key) if key.status == REFUSED else ():
            assert re.match(r"c\.conf:1:\d+: .*(?:not supported|Detected \w+ directive)", str(found["refused"])), (
                key.names
            )


def test_a_key_without_effect_says_why() -> None:
    assert [key.names for _, key in EACH if key.status == INERT and not key.note] == []


def test_the_page_has_every_flag() -> None:
    told: dict[str, str] = {}
    start = PAGE.index("## Flags")
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \| .*\|$", PAGE[start : PAGE.index("\n## ", start)], re.MULTILINE)
    for cell, status in rows:
        names = [name.lstrip("-") for name in re.findall(r"`([^`]+)`", cell)]
        destinations = {flags.NAMES[name][0] for name in names}
        assert len(destinations) == 1, names
        assert (status == INERT) == (destinations <= set(flags.INERT)), names
        told |= dict.fromkeys(names, status)
    assert told.keys() == flags.NAMES.keys()


def test_an_honoured_key_is_read_by_something_that_runs() -> None:
    """A key that is only parsed is none: its attribute of the options must be used outside the reading of files."""
    package = ROOT / "jetcluster"
    paths = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("config", "cli")]
    paths += [package / "config" / "tls.py", package / "config" / "import_rules.py"]
    code = "\n".join(path.read_text() for path in paths)
    used = set(re.findall(r"\.([a-z_]+)\b", code)) | set(re.findall(r'"([a-z_]+)"', code))
    # Read where options are checked or described, or handed on under another name.
    used |= {"no_tls", "handshake_timeout", "allow_non_tls", "allow_insecure_cipher_suites", "response_threshold"}
    honoured = [(block, key) for block, key in EACH if key.status == HONOURED and key.convert is not None]
    unread = [(block, key.names) for block, key in honoured if key.attribute not in used]
    assert unread == []
