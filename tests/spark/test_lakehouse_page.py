"""docs/lakehouse.md runs from top to bottom, and shows what it says."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("fastavro")

from scripts import run_guide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = run_guide.TOP / "docs" / "lakehouse.md"


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.timeout(400)
def test_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = PAGE.read_text()
    blocks = run_guide.blocks_of(page)
    namespace: dict[str, Any] = {"__name__": "__page__"}
    with contextlib.chdir(tmp_path):
        try:
            run_guide.run(blocks, namespace, PAGE)
        finally:
            if "nats" in namespace:
                namespace["nats"].close()
            run_guide.close(namespace)
    shown = [(block.printed, block.shown) for block in blocks if block.shown is not None]
    assert len(shown) == 4
    for printed, place in shown:
        assert place is not None
        assert printed == page[slice(*place)]
