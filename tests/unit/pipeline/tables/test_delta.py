"""A Delta Lake table among other writers."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
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


def test_a_filter_of_any_column_finds_its_rows(tmp_path: Path) -> None:
    """Also among the first and last times, and where a column has no values."""
    times = ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"]
    found = [
        {"seq": seq, "subject": f"s{seq}", "time": dt.datetime.fromisoformat(f"{times[seq - 1]}+00:00"), "data": b"x"}
        for seq in (1, 2)
    ]
    append(opened("delta", tmp_path, RAW), pa.Table.from_pylist(found, schema=RAW), Span(1, 3))
    table = deltalake.DeltaTable(str(tmp_path / "delta"))
    field, noon = ds.field, pa.scalar(dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC), RAW.field("time").type)
    for where, seqs in (
        (field("seq") == 1, [1]),
        (field("subject") == "s2", [2]),
        (field("time") > noon, [2]),
        (field("time") < noon, [1]),
        (field("headers").is_null(), [1, 2]),
    ):
        assert table.to_pyarrow_table(filters=where)["seq"].to_pylist() == seqs, where
    assert table.get_add_actions(flatten=True)["num_records"].to_pylist() == [2]


def test_a_table_that_somebody_else_made_is_left_alone(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "delta"), rows(1))
    with pytest.raises(UsageError, match="was not made by this job"):
        opened("delta", tmp_path, RAW)


@pytest.mark.parametrize("names", [["_gone"], ["_GONE", "_gone_"]])
def test_values_with_a_field_of_the_name_that_a_merge_uses(tmp_path: Path, names: list[str]) -> None:
    schema = pa.schema([("_key", pa.string()), *((name, pa.bool_()) for name in names)])

    def values(*keys: str) -> pa.Table:
        return pa.Table.from_pylist([{"_key": key, **dict.fromkeys(names, True)} for key in keys], schema=schema)

    table = opened("delta", tmp_path, schema)
    table.merge(values("a", "b"), [], Span(1, 3))
    table.merge(values("c"), ["a"], Span(3, 5))
    found = deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().sort_by("_key")
    assert found.to_pylist() == values("b", "c").to_pylist() and table.end == 5
