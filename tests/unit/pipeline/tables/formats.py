"""Delta Lake and Iceberg tables in a folder, for tests of what both do alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from jetcluster.pipeline.tables import delta, iceberg
from jetcluster.pipeline.tables.files import write_rows
from jetcluster.pipeline.tables.table import Span, Table, TableIdentity

ORDERS = TableIdentity("ORDERS", "2026-11-29T12:00:00Z", "stream", "raw", ">")
FORMATS = ["delta", "iceberg"]


def opened(kind: str, folder: Path, columns: Any, identity: TableIdentity = ORDERS) -> Table:
    """Opens the table as a job does that begins."""
    if kind == "delta":
        return delta.open_table(str(folder / "delta"), identity, columns)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/iceberg"}
    return iceberg.open_table(iceberg.open_catalog("test", properties), "db.t", identity, columns)


def append(table: Table, rows: Any, span: Span) -> None:
    table.append(write_rows(table.folder, span, rows), span)
