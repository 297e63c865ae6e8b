"""The notebooks of examples/ run from top to bottom on three real servers, and what they assert holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[arrow]'")

from testkit.harness import ProcessCluster

pytestmark = pytest.mark.cluster

FOLDER = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell."""
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
async def test_a_notebook_runs(path: Path, tidy: ProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JETCLUSTER_SERVERS", ",".join(tidy.urls))
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    for number, code in enumerate(cells(path)):
        await asyncio.to_thread(exec, compile(code, f"{path.name}, cell {number}", "exec"), namespace)
    assert "assert " in "".join(cells(path))


def test_notebooks_are_kept_without_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"buckets", "streams"}
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text())["cells"]:
            assert cell.get("outputs", []) == [] and cell.get("execution_count") is None, f"{path.name}: clear outputs"
