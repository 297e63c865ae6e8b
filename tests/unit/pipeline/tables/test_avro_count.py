"""The values of Avro payloads, counted before they are made (pipeline/tables/avro_count.py)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("fastavro")

from fastavro.utils import generate_one

from jetcluster.pipeline.tables import avro_count, payload
from jetcluster.pipeline.tables.avro_count import AvroCount
from jetcluster.pipeline.tables.avro_rows import MARK
from jetcluster.pipeline.tables.avro_schema import load
from jetcluster.pipeline.tables.payload import MisfitError, ValueRoom
from tests.unit.pipeline.tables.test_avro_rows import DUPLE, logical, parse, record, written

WIDE: Any = {
    "type": "record",
    "name": "W",
    "fields": [{"name": "a", "type": "int"}, *({"name": f"n{at}", "type": "null"} for at in range(50))],
}
ENUM: Any = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DEEP: Any = {"type": "array", "items": {"type": "map", "values": ["null", DUPLE, {"type": "array", "items": "D"}]}}
FIXED: Any = {"type": "fixed", "name": "F", "size": 3}
ALL = record(
    ("a", "boolean"), ("b", "long"), ("c", "float"), ("d", "double"), ("e", "bytes"), ("f", "string"), ("g", ENUM),
    ("h", FIXED), ("i", ["null", "string", "E"]), ("j", DEEP), ("k", {"type": "map", "values": "F"}), ("l", "null"),
    ("m", logical("bytes", "decimal", precision=9, scale=2)), ("n", logical("long", "timestamp-micros")), ("o", WIDE),
)  # fmt: skip


def written_long(number: int) -> bytes:
    number, found = number << 1, b""
    while number > 127:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def test_a_value_ends_where_it_ends() -> None:
    """By payloads of fastavro's with random values of all types."""
    count = AvroCount(load(ALL).parsed, ValueRoom())
    for seed in range(200):
        random.seed(seed)
        value: Any = generate_one(json.loads(ALL))
        found = written(ALL, value)
        assert count.behind(found, 0) == len(found)
        assert count.behind(MARK + found, len(MARK)) == len(found) + len(MARK)


def test_items_are_counted_with_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    text, room = record(("x", {"type": "array", "items": WIDE}), ("y", {"type": "map", "values": "int"})), ValueRoom()
    found = written(text, {"x": [{"a": n} | {f"n{at}": None for at in range(50)} for n in range(7)], "y": {"k": 1}})
    AvroCount(load(text).parsed, room).behind(found, 0)
    assert room.used == 7 * 52 + 2
    room.used = 0
    for one in (payload, avro_count):
        monkeypatch.setattr(one, "MAX_VALUES", 7 * 52 + 2)
    AvroCount(load(text).parsed, room).check(found, 0)
    assert parse([found], text).why == []
    for one in (payload, avro_count):
        monkeypatch.setattr(one, "MAX_VALUES", 7 * 52 + 1)
    with pytest.raises(MisfitError, match="it would be more than 365 values"):
        AvroCount(load(text).parsed, ValueRoom()).check(found, 0)
    assert parse([found], text).why == ["it would be more than 365 values"]


@pytest.mark.parametrize(
    ("items", "size", "dead"), [(DUPLE, 1_000_000, True), (DUPLE, 400_000, False), (WIDE, 25_000, True)]
)
def test_a_payload_of_too_many_values_is_a_dead_letter(items: Any, size: int, dead: bool) -> None:
    text = record(("x", {"type": "array", "items": items}))
    parsed = parse([written_long(size) + b"\x02" * size + b"\x00"], text)
    assert parsed.why == (["it would be more than 1,000,000 values"] if dead else [])


@pytest.mark.parametrize(
    "spoilt", [b"\x04", b"\x04\x02", b"\xff" * 12, b"\x03\x02\x02", b"\x01", written_long(2**62) + b"\x02", b""]
)  # fmt: skip
def test_what_is_no_such_payload_is_left_to_the_reader(spoilt: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (payload, avro_count):
        monkeypatch.setattr(one, "MAX_VALUES", 2**70)
    monkeypatch.setattr(avro_count, "MAX_VALUES", 0)  # looks through all
    text = record(("x", {"type": "array", "items": ["null", "string"]}))
    (why,) = parse([spoilt], text).why
    assert why.startswith("it is no shop.Order"), why
