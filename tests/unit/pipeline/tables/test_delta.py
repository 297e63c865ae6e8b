"""A Delta Lake table among other writers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.files import RAW
from jetcluster.pipeline.tables.table import ConflictError, Span
from tests.unit.pipeline.tables.formats import append, opened

deltalake = pytest.importorskip("deltalake")


def rows(*seqs: int) -> pa.Table:
    return pa.Table.from_pylist([{"seq": seq, "data": b"x"} for seq in seqs], schema=RAW)


def test_a_compaction_keeps_how_far_the_table_goes(tmp_path: Path) -> None:
    table = opened("delta", tmp_path, RAW)
    append(table, rows(1), Span(1, 2))
    append(table, rows(2), Span(2, 3))
    other = deltalake.DeltaTable(str(tmp_path / "delta"))
    assert other.optimize.compact()["numFilesRemoved"] == 2
    other.create_checkpoint()
    try:
        append(table, rows(3), Span(3, 4))
    except ConflictError:  # as a job does
        table.reload()
        append(table, rows(3), Span(3, 4))
    assert opened("delta", tmp_path, RAW).end == 4
    found = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert sorted(found["seq"].to_pylist()) == [1, 2, 3]


def test_a_table_that_somebody_else_made_is_left_alone(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "delta"), rows(1))
    with pytest.raises(UsageError, match="was not made by this job"):
        opened("delta", tmp_path, RAW)
