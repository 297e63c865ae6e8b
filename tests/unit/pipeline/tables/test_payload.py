"""Rules that all forms of payloads with a schema have in common."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables import payload
from jetcluster.pipeline.tables.payload import Chunks, MisfitError, SchemaRows, ValueRoom, check_columns

MANY = pa.struct([(f"f{n}", pa.int8()) for n in range(1000)])
BYTE = pa.struct([("x", pa.int8())])


class Numbers(SchemaRows):
    """A payload is the number in it, whatever the column takes."""

    def _row(self, payload: bytes) -> Any:
        if not payload:
            raise MisfitError("empty" * 100)
        return {"x": int(payload), "other": "no column"}


def test_a_value_out_of_range_costs_its_own_message_only() -> None:
    parsed = Numbers(BYTE).parse([b"1", b"300", None, b"2", b"-300", b"3"])
    assert (parsed.good, parsed.columns[0].to_pylist()) == ([0, 3, 5], [1, 2, 3])
    assert parsed.dead == [1, 2, 4]
    assert [why[:7] for why in parsed.why] == ["a value", "emptyem", "a value"]
    assert max(map(len, parsed.why)) <= 200 and parsed.found is None


def test_an_empty_batch() -> None:
    parsed = Numbers(BYTE).parse([])
    assert (parsed.good, parsed.dead, parsed.columns[0].type) == ([], [], pa.int8())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (pa.struct([]), "no fields"),
        (pa.struct([("a b", pa.int8())]), "^a b cannot be a column: its name has ' '"),
        (pa.struct([("s", pa.struct([("a", pa.int8()), ("A", pa.int8())]))]), r"^s\.A cannot be a column: there is"),
        (pa.struct([("s", pa.list_(pa.struct([("", pa.int8())])))]), r"^s\[\]\. cannot be a column: it has no name"),
        (pa.struct([("s", pa.map_(pa.string(), pa.struct([("a.b", pa.int8())])))]), r"^s\[\]\.a\.b cannot be a column"),
        (pa.struct([("_Seq", pa.int8())]), "^_Seq cannot be a column: there is one"),
        (pa.struct([("m", pa.map_(pa.string(), MANY))]), "1000 fields"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_columns(columns: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_columns(columns, ("_seq",))


def test_names_of_the_table_are_taken_at_the_top_only() -> None:
    check_columns(pa.struct([("s", pa.struct([("_seq", pa.int8())]))]), ("_seq",))


@pytest.mark.parametrize("most", [1, 4, 5, 100])
def test_rows_become_columns_before_they_are_many_values(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_VALUES", most)
    chunks = Chunks(pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]))
    for n in range(10):
        chunks.add(n, {"x": 300 if n in (3, 8) else n, "y": [str(n)] * n}, n)
    numbers, texts = chunks.arrays()
    good = [n for n in range(10) if n not in (3, 8)]
    assert (chunks.places, sorted(chunks.faults)) == (good, [3, 8])
    assert (numbers.to_pylist(), texts.to_pylist()) == (good, [[str(n)] * n for n in good])
    assert [column.to_pylist() for column in Chunks(BYTE).arrays()] == [[]]


def test_a_payload_has_room_for_so_many_values() -> None:
    room = ValueRoom()
    room.take(payload.MAX_VALUES)
    with pytest.raises(MisfitError, match="it would be more than 1,000,000 values"):
        room.take(1)
