"""Tables of both formats: how far they go, who may write, and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetcluster.pipeline.lakehouse_keys import OWN_KEYED, RAW_KEYED
from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.pipeline.tables.files import DEAD, OWN, RAW
from jetcluster.pipeline.tables.landing import check_own
from jetcluster.pipeline.tables.table import ConflictError, Span
from tests.unit.pipeline.tables.formats import FORMATS, ORDERS, append, opened

pytestmark = pytest.mark.parametrize("kind", FORMATS)
KEYED = pa.schema([("key", pa.string()), ("value", pa.binary()), ("revision", pa.int64())])


def rows(*seqs: int) -> Any:
    return pa.Table.from_pylist([{"seq": seq, "subject": "a", "data": b"%d" % seq} for seq in seqs], schema=RAW)


def values(*found: tuple[str, bytes, int]) -> Any:
    return pa.Table.from_pylist([dict(zip(KEYED.names, one, strict=True)) for one in found], schema=KEYED)


def test_a_new_table_goes_nowhere_and_a_commit_says_how_far(kind: str, tmp_path: Path) -> None:
    table = opened(kind, tmp_path, RAW)
    assert (table.end, table.columns) == (0, RAW)
    append(table, rows(1, 2), Span(1, 5))
    assert table.end == opened(kind, tmp_path, RAW).end == 5
    append(table, RAW.empty_table(), Span(5, 9))
    assert opened(kind, tmp_path, RAW).end == 9


def test_folders_of_any_letters(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b ü+&"
    folder.mkdir()
    append(opened(kind, folder, RAW), rows(1, 2), Span(1, 3))
    found: Any = opened(kind, folder, RAW)
    assert (found.keys(), found.end) == ({1, 2}, 3)


def test_of_two_jobs_one_is_refused(kind: str, tmp_path: Path) -> None:
    opened(kind, tmp_path, RAW)
    first, second = opened(kind, tmp_path, RAW), opened(kind, tmp_path, RAW)
    append(first, rows(1, 2), Span(1, 3))
    with pytest.raises(ConflictError):
        append(second, rows(1, 2), Span(1, 3))
    second.reload()
    assert second.end == 3
    append(second, RAW.empty_table(), Span(3, 6))
    with pytest.raises(ConflictError):
        append(first, RAW.empty_table(), Span(3, 5))
    assert opened(kind, tmp_path, RAW).end == 6


def test_a_table_of_something_else(kind: str, tmp_path: Path) -> None:
    append(opened(kind, tmp_path, RAW), rows(1), Span(1, 2))
    with pytest.raises(UsageError, match="follows ORDERS: one table, one stream"):
        opened(kind, tmp_path, RAW, ORDERS._replace(stream="OTHER"))
    with pytest.raises(DataLoss, match="choose another table"):
        opened(kind, tmp_path, RAW, ORDERS._replace(created="2027"))


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("source", "bucket", "with source stream, and this job has bucket"),
        ("format", "json", "with format raw, and this job has json"),
        ("subjects", "a.>", "with subjects >, and this job has a.>"),
    ],
)
def test_a_table_keeps_what_it_was_made_of(kind: str, tmp_path: Path, field: str, value: str, why: str) -> None:
    append(opened(kind, tmp_path, RAW), rows(1), Span(1, 2))
    with pytest.raises(UsageError, match=f"was made {why}: choose another table"):
        opened(kind, tmp_path, RAW, ORDERS._replace(**{field: value}))
    assert opened(kind, tmp_path, RAW).end == 2


def test_a_table_that_does_not_say_what_it_was_made_of(kind: str, tmp_path: Path) -> None:
    found = {key: value for key, value in ORDERS.properties().items() if not key.endswith("subjects")}
    with pytest.raises(UsageError, match=f"{kind} was made with subjects unknown"):
        ORDERS.check(kind, found)


@pytest.mark.parametrize("own", [RAW, DEAD, OWN, RAW_KEYED, OWN_KEYED])
def test_own_columns_come_back_as_they_were_made(kind: str, tmp_path: Path, own: Any) -> None:
    table = opened(kind, tmp_path, pa.schema([*own, ("more", pa.int64())]))
    check_own(table, own)
    for other in (RAW, OWN, RAW_KEYED, OWN_KEYED):
        if list(own)[: len(other)] != list(other):
            with pytest.raises(UsageError, match="is of another format"):
                check_own(table, other)


def test_columns_grow_also_inside_of_structs(kind: str, tmp_path: Path) -> None:
    narrow = pa.schema([("_seq", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
    inner = pa.struct([("x", pa.int64()), ("y", pa.string())])
    wide = pa.schema([("_seq", pa.int64()), ("s", inner), ("b", pa.bool_())])
    table = opened(kind, tmp_path, narrow)
    append(table, pa.Table.from_pylist([{"_seq": 1, "s": {"x": 1}}], schema=narrow), Span(1, 2))
    table.grow(wide)
    assert (table.columns, table.end) == (wide, 2)
    append(table, pa.Table.from_pylist([{"_seq": 2, "s": {"x": 2, "y": "z"}, "b": True}], schema=wide), Span(2, 3))
    assert opened(kind, tmp_path, narrow).columns == wide


def test_keys_are_replaced_added_and_removed(kind: str, tmp_path: Path) -> None:
    table = opened(kind, tmp_path, KEYED)
    table.merge(values(("a", b"1", 1), ("b", b"2", 2)), ["never"], Span(1, 4))
    assert (table.keys(), table.end) == ({"a", "b"}, 4)
    table.merge(values(("b", b"22", 4), ("c", b"3", 5)), ["a"], Span(4, 7))
    assert (table.keys(), table.end) == ({"b", "c"}, 7)
    table.merge(KEYED.empty_table(), ["c"], Span(7, 7))
    assert (table.keys(), table.end) == ({"b"}, 7)


def test_a_merge_without_any_effect_says_how_far(kind: str, tmp_path: Path) -> None:
    table = opened(kind, tmp_path, KEYED)
    table.merge(KEYED.empty_table(), [], Span(1, 3))
    assert opened(kind, tmp_path, KEYED).end == 3
    table.merge(KEYED.empty_table(), ["absent"], Span(3, 5))
    assert opened(kind, tmp_path, KEYED).end == 5


def test_of_two_merges_one_is_refused(kind: str, tmp_path: Path) -> None:
    opened(kind, tmp_path, KEYED)
    first, second = opened(kind, tmp_path, KEYED), opened(kind, tmp_path, KEYED)
    first.merge(values(("a", b"1", 1)), [], Span(1, 2))
    with pytest.raises(ConflictError):
        second.merge(values(("a", b"1", 1)), [], Span(1, 2))
    second.reload()
    assert (second.keys(), second.end) == ({"a"}, 2)
