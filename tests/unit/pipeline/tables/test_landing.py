"""Tables kept in step: who commits what, and who is told of another job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.pipeline.tables.files import DEAD, OWN, RAW
from jetcluster.pipeline.tables.landing import MAX_ATTEMPTS, Landing, check_own, dead_letters_of
from jetcluster.pipeline.tables.table import ConflictError, DataFile, Span, Table


class FakeTable:
    """A table in memory, whose commits are refused while `others` has changes of others that come before them."""

    def __init__(self, end: int = 0, columns: Any = RAW, others: Sequence[int] = ()) -> None:
        self.name, self.folder, self.end, self.columns = "fake", "/fake", end, columns
        self.spans: list[Span] = []
        self._others = list(others)
        self._end = end

    def reload(self) -> None:
        self.end = self._end

    def _refused(self) -> None:
        if self._others:
            self._end = max(self._others.pop(0), self._end)
            raise ConflictError("another commit")

    def grow(self, columns: Any) -> None:
        self._refused()
        self.columns = columns

    def append(self, files: Sequence[DataFile], span: Span) -> None:
        self._refused()
        self.spans.append(span)
        self.end = self._end = span.end

    def merge(self, rows: Any, gone: Sequence[str], span: Span) -> None:
        self.append([], span)

    def keys(self) -> set[str]:
        return set()


def commit(landing: Landing, span: Span) -> list[int]:
    """The places of the tables that were asked to commit."""
    places: list[int] = []

    def change(place: int, table: Table, part: Span) -> None:
        places.append(place)
        table.append([], part)

    landing.commit(span, change)
    return places


def test_each_table_gets_what_it_lacks_and_dead_letters_come_first() -> None:
    behind, ahead, dead = FakeTable(5), FakeTable(9), FakeTable()
    landing = Landing([behind, ahead], [dead])
    assert landing.begin(2) == 2
    assert [(part.start, part.dead) for part in landing.parts()] == [(0, True), (5, False), (9, False)]
    assert commit(landing, Span(2, 9)) == [0, 1]
    assert (dead.spans, behind.spans, ahead.spans) == ([Span(2, 9)], [Span(5, 9)], [])
    assert landing.begin(2) == 9


def test_a_compaction_between_is_no_matter() -> None:
    table = FakeTable(5, others=[0, 0])
    assert commit(Landing([table], []), Span(5, 9)) == [0, 0, 0]
    assert table.spans == [Span(5, 9)]


def test_another_job_is_told_of_unless_it_did_the_same() -> None:
    with pytest.raises(DataLoss, match="went on to 6 meanwhile: another job"):
        commit(Landing([FakeTable(5, others=[7])], []), Span(5, 9))
    same = FakeTable(5, others=[9])
    assert commit(Landing([same], []), Span(5, 9)) == [0]
    assert same.spans == []


def test_an_end_of_attempts() -> None:
    table = FakeTable(5, others=[0] * MAX_ATTEMPTS)
    with pytest.raises(ConflictError):
        commit(Landing([table], []), Span(5, 9))
    with pytest.raises(ConflictError):
        Landing([FakeTable(others=[0] * MAX_ATTEMPTS)], []).grow(DEAD)


def test_tables_get_the_columns_of_each_other() -> None:
    one = FakeTable(columns=pa.schema([*OWN, ("a", pa.int64())]), others=[0])
    other = FakeTable(columns=pa.schema([*OWN, ("b", pa.string())]))
    landing = Landing([one, other], [])
    columns = landing.columns(OWN, pa.struct([("c", pa.bool_())]))
    assert {field.name for field in columns} == {"a", "b", "c"}
    landing.grow(pa.schema([*OWN, *columns]))
    assert one.columns == other.columns == pa.schema([*OWN, *columns])


def test_columns_of_other_types_are_refused() -> None:
    landing = Landing([FakeTable(columns=pa.schema([*OWN, ("a", pa.struct([("x", pa.int64())]))]))], [])
    for declared in (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.struct([("x", pa.string())]))])):
        with pytest.raises(UsageError, match="in one table"):
            landing.columns(OWN, declared)
    for name in ("_seq", "A"):
        with pytest.raises(UsageError, match="cannot be one"):
            landing.columns(OWN, pa.struct([(name, pa.int64())]))


def test_a_map_whose_values_get_a_field_is_refused() -> None:
    """A schema can ask for that; JSON is inferred to no maps."""
    kinds = [pa.map_(pa.string(), pa.struct([(name, pa.int64()) for name in names])) for names in ("x", "xy")]
    landing = Landing([FakeTable(columns=pa.schema([*OWN, ("m", kinds[0])]))], [])
    assert landing.columns(OWN, pa.struct([("m", kinds[0])])).field("m").type == kinds[0]
    with pytest.raises(UsageError, match="column m is map"):
        landing.columns(OWN, pa.struct([("m", kinds[1])]))


def test_dead_letters() -> None:
    assert dead_letters_of("/lake/orders/") == "/lake/orders_dead_letters"
    check_own(FakeTable(columns=DEAD), DEAD)
    with pytest.raises(
        UsageError, match=r"is of another format: this job writes seq, .*, why, and the table has seq, "
    ):
        check_own(FakeTable(columns=RAW), DEAD)


def test_files_that_are_not_where_the_table_is(tmp_path: Path) -> None:
    table = FakeTable()
    table.folder = str(tmp_path)
    (tmp_path / "here.parquet").write_bytes(b"1234")
    landing = Landing([table], [])
    files = [DataFile(0, "here.parquet", 7, 4), DataFile(0, "elsewhere.parquet", 5, 4)]
    landing.check_written(files[:1])
    for wrong in (files, [DataFile(0, "here.parquet", 12, 5)]):
        with pytest.raises(DataLoss, match="tasks wrote 12 rows"):
            landing.check_written(wrong)
