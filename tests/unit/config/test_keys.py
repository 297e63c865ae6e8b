"""Every key of every block keeps its meaning: honoured, inert, or refused by its name; every flag is on the page."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from jetcluster.cli import flags
from jetcluster.config.changes import changed_fields, described
from jetcluster.config.keys import KEYS
from jetcluster.config.reader import HONOURED, INERT, REFUSED, Key
from scripts.config_page import NO, YES, reload_of
from testkit.certificates import make_certificate
from tests.unit.config.key_cases import BLOCKS, CHANGED, load, outcome

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
    for name in ("cert", "key"):
        shutil.copy(folder / f"{name}.pem", folder / f"{name}2.pem")
    return folder


@pytest.mark.parametrize("block", OUTCOMES)
def test_a_key_does_what_it_did(block: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    for pair, found in OUTCOMES[block].items():
        assert outcome(block, pair) == found, pair


def test_the_page_says_what_a_reload_does() -> None:
    """The sample of each key changes it in a running server's options, is refused there, or says nothing new."""
    for block, key in EACH:
        said, outcomes = reload_of(block, key), [found for found in pinned(block, key) if "refused" not in found]
        place = (block, key.names, said)
        if said == NO:
            assert all("reload" not in found for found in outcomes), place
        elif said.startswith(YES):
            assert ";" in said or all("fixed" not in found for found in outcomes), place
        sampled = any("reload" in found for found in outcomes)
        assert said != YES or sampled or f"{block}.{key.names[0]}".lstrip(".") in CHANGED, place


@pytest.mark.parametrize("path", CHANGED)
def test_a_reload_changes_what_the_samples_do_not(path: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    old, new = (load(text)[0] for text in CHANGED[path])
    assert described(changed_fields(old, new), old, new), path


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
