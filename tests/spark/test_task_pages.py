"""The pages for one task each run from top to bottom, and show what they say."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts import run_guide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PAGES = [
    pytest.param(
        "lakehouse.md", 4, marks=pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
    ),
    pytest.param("spark-backfill.md", 3, marks=pytest.mark.thorough),
    pytest.param("spark-equal.md", 3, marks=pytest.mark.thorough),
    pytest.param("spark-lookup.md", 2, marks=pytest.mark.thorough),
]
"""Page -> number of blocks that show what was printed."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "outputs"), PAGES)
def test_the_page_runs(spark: SparkSession, tmp_path: Path, name: str, outputs: int) -> None:
    if name == "lakehouse.md":
        for library in ("deltalake", "pyiceberg", "fastavro"):
            pytest.importorskip(library)
    path = run_guide.TOP / "docs" / name
    page = path.read_text()
    blocks = run_guide.blocks_of(page)
    namespace: dict[str, Any] = {"__name__": "__page__"}
    with contextlib.chdir(tmp_path):
        try:
            run_guide.run(blocks, namespace, path)
        finally:
            run_guide.close(namespace)
    shown = [(block.printed, block.shown) for block in blocks if block.shown is not None]
    assert len(shown) == outputs
    for printed, place in shown:
        assert place is not None
        assert printed == page[slice(*place)]
