"""Every key of every block keeps its meaning: honoured, inert, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.config.key_cases import BLOCKS, outcome
from tests.unit.server.certificate import make_certificate

OUTCOMES: dict[str, dict[str, dict[str, str | list[str]]]] = json.loads(
    Path(__file__).with_name("key_outcomes.json").read_text()
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_certificate(folder)
    return folder


def test_each_block_is_pinned() -> None:
    assert OUTCOMES.keys() == BLOCKS.keys()


@pytest.mark.parametrize("block", OUTCOMES)
def test_a_key_does_what_it_did(block: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    for pair, pinned in OUTCOMES[block].items():
        assert outcome(block, pair) == pinned, pair
