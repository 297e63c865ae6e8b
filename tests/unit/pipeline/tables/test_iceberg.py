"""An Iceberg table among other writers, and its catalog."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.files import RAW
from jetcluster.pipeline.tables.table import ConflictError, Span
from tests.unit.pipeline.tables.formats import ORDERS, append, opened

iceberg = pytest.importorskip("jetcluster.pipeline.tables.iceberg", exc_type=ImportError)


def rows(*seqs: int) -> pa.Table:
    return pa.Table.from_pylist([{"seq": seq, "data": b"x"} for seq in seqs], schema=RAW)


def test_expired_snapshots_keep_how_far_the_table_goes(tmp_path: Path) -> None:
    """The ranges in the summaries go with them; the property stays."""
    table = opened("iceberg", tmp_path, RAW)
    append(table, rows(1), Span(1, 2))
    append(table, rows(2), Span(2, 3))
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/iceberg"}
    other = iceberg.open_catalog("test", properties).load_table("db.t")
    other.append(rows(100))  # as somebody may who adds rows by hand
    other.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in other.snapshots()[:2]]).commit()
    with pytest.raises(ConflictError):
        append(table, rows(3), Span(3, 4))
    table.reload()
    assert table.end == 3
    append(table, rows(3), Span(3, 4))
    assert sorted(other.refresh().scan().to_arrow()["seq"].to_pylist()) == [1, 2, 3, 100]


def test_names_and_catalogs_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="catalog nowhere: "):
        iceberg.open_catalog("nowhere", {})
    catalog = iceberg.open_catalog(
        "test", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "file:///x"}
    )
    for name in ("orders", ".orders", "shop."):
        with pytest.raises(UsageError, match="expected NAMESPACE"):
            iceberg.open_table(catalog, name, ORDERS, RAW)
