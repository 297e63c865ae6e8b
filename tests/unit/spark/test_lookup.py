from __future__ import annotations

from collections.abc import Iterable

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[spark]'")

import pyarrow as pa

from jetcluster.arrow.lookup_cache import KeyEntry
from jetcluster.spark import lookup


class Found:
    """Stands for a BucketLookup, and notes whether it was closed."""

    def __init__(self) -> None:
        self.closed = False
        self.asked: list[list[str | None]] = []

    def find(self, keys: Iterable[str | None]) -> dict[str | None, KeyEntry]:
        self.asked.append(list(keys))
        known = {"a": KeyEntry(b"1", 5, "PUT", 1_795_167_385_000_001_999)}
        return {key: known.get(key or "", KeyEntry()) for key in self.asked[-1]}

    def close(self) -> None:
        self.closed = True


def test_columns_are_added_behind_those_of_the_row() -> None:
    schema = pa.schema([pa.field("n", pa.int32(), nullable=False), ("key", pa.string())])
    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3, 4], "key": ["a", "x", None, "a"]}, schema=schema)
    made = lookup.with_entries(batch, 1, "b_", Found())  # type: ignore[arg-type]
    assert made.schema.names == ["n", "key", "b_value", "b_revision", "b_operation", "b_created"]
    assert made.schema.field(0) == schema.field(0) and made.schema.field(5).type == pa.timestamp("us", "UTC")
    found = made.to_pydict()
    assert found["b_value"] == [b"1", None, None, b"1"] and found["b_revision"] == [5, None, None, 5]
    assert found["n"] == [1, 2, 3, 4] and found["b_created"][0].microsecond == 1, "cut to microseconds"
    assert lookup.with_entries(batch.slice(0, 0), 1, "", Found()).num_rows == 0  # type: ignore[arg-type]


def test_a_process_keeps_its_look_ups_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_lookups", {})
    monkeypatch.setattr(lookup, "MAX_LOOKUPS", 2)
    made: list[Found] = []

    def make() -> Found:
        made.append(Found())
        return made[-1]

    for name in ("a", "b", "a", "c", "b"):
        lookup.kept(name, make)  # type: ignore[arg-type]
    assert [one.closed for one in made] == [True, False, False], "the third is of c; b was kept"
