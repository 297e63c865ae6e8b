"""docs/spark.md runs from top to bottom."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts import run_guide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_page_needs_what_an_installation_lacks() -> None:
    """The repository's own folders are in no wheel."""
    for page in sorted(run_guide.PAGE.parent.rglob("*.md")):
        for block in run_guide.blocks_of(page.read_text()):
            own = re.findall(r"^ *(?:from|import) (?:scripts|tests|testkit|bench|chaos)\b.*", block.code, re.MULTILINE)
            assert not own, f"{page.name}, line {block.line}: {own}"


@pytest.mark.timeout(400)
def test_the_guide_runs_on_a_part_of_the_flights(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session of these tests; what the guide itself asserts holds, and the two streams are the same."""
    monkeypatch.setenv("GUIDE_FLIGHTS", "1200")
    blocks = run_guide.blocks_of(run_guide.PAGE.read_text())
    namespace: dict[str, Any] = {"__name__": "__guide__"}
    with contextlib.chdir(tmp_path):
        try:
            run_guide.run(blocks, namespace, run_guide.PAGE)
        finally:
            run_guide.close(namespace)
    printed = "".join(block.printed for block in blocks)
    assert "1200 messages\n" in printed
    assert "n3 is dead" in printed
    assert "600 messages in the stream, 1200 with its history\n" in printed
    assert "3 copies, 1200 messages, 0 differ\n2 copies, 1200 messages, 0 differ\n" in printed
    assert (tmp_path / "delays.svg").read_text().startswith("<svg")
