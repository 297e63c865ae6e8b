"""Columns out of an archive's rows."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

from jetcluster.arrow.archived_rows import ArchivedConverter
from jetcluster.arrow.schema import arrow_schema
from tests.unit.archive.made import NOON, SECOND, batch


def test_only_needed_columns_are_asked_for() -> None:
    assert ArchivedConverter(["stream", "seq"], "S").columns == ["seq"]
    assert ArchivedConverter(["time"], "S", time_unit="ns").columns == ["time_ns"]
    assert ArchivedConverter(["key", "topic", "value"], "S", kafka=True).columns == ["subject", "subject_raw", "data"]


def test_times_in_nanoseconds() -> None:
    rows = batch([1, 2], ["a"], step=SECOND + 7)
    found = ArchivedConverter(["time", "stream"], "S", time_unit="ns").convert(rows)
    assert found.schema == arrow_schema(["time", "stream"], time_unit="ns")
    assert [value.value for value in found["time"]] == [NOON + SECOND + 7, NOON + 2 * SECOND + 14]
    assert found["stream"].to_pylist() == ["S", "S"]


def test_kafka_columns() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    found = ArchivedConverter(names, "S", kafka=True).convert(batch([2, 3], ["a"], raw={2: b"\xff"}))
    assert found.schema == arrow_schema(names, kafka=True)
    first, second = found.to_pylist()
    assert (first["key"], first["value"], first["topic"], first["headers"]) == (b"\xff", b"2", "S", None)
    assert (second["key"], second["offset"], second["headers"]) == (b"a", 3, [{"key": "A", "value": b"1"}])
