"""The configuration files of docs/leaf.md can be started with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "leaf.md"
BLOCKS = [text for text in re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.S | re.M) if text.startswith("# ")]


def test_there_are_examples() -> None:
    assert [text.split(":")[0] for text in BLOCKS] == ["# hub", "# leaf"]


@pytest.mark.parametrize("text", BLOCKS, ids=["hub", "leaf"])
def test_an_example_starts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_text(text)
    options, pedantic = load_file(str(path))
    assert not pedantic
    assert problem_of(options) is None
    path.write_text(text.replace("accounts {", "accounts { Z {} }\nx_accounts {").replace("x_accounts", "# accounts"))
    broken, _ = load_file(str(path))
    assert "cannot find local account" in str(problem_of(broken))
