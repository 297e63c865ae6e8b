"""Payloads of Avro records to rows, or to dead letters with the reason."""

from __future__ import annotations

import datetime as dt
import io
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastavro")

import fastavro

from jetcluster.pipeline.tables.avro_rows import MARK, AvroFormat
from jetcluster.pipeline.tables.avro_schema import load
from jetcluster.pipeline.tables.payload import Parsed

UTC = dt.UTC
NOON = dt.datetime(2026, 11, 29, 12, 0, 0, 250_000)


def record(*fields: Any, name: str = "shop.Order", **more: Any) -> str:
    """A schema; a field is (name, type) or (name, type, default)."""
    found = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": name, "fields": found} | more)


def written(schema: str, value: Any, *, marked: bool = False) -> bytes:
    """By fastavro, from its own reading of the schema."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(schema)), value)
    return (MARK + load(schema).fingerprint if marked else b"") + file.getvalue()


def parse(payloads: list[bytes], *schemas: str, columns: Any = None) -> Parsed:
    form = pickle.loads(pickle.dumps(AvroFormat(schemas)))  # as it comes to a worker
    return form.rows(form.columns if columns is None else columns, ("_seq",)).parse(payloads)


def logical(kind: Any, name: str, **more: Any) -> Any:
    return (kind if isinstance(kind, dict) else {"type": kind}) | {"logicalType": name} | more


NAME = "00000000-0000-4000-8000-000000000001"
FIXED: Any = {"type": "fixed", "name": "F", "size": 16}
UTC_TIME, LOCAL_TIME = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
DUPLE: Any = {"type": "record", "name": "D", "fields": [{"name": "a", "type": "int"}]}


@pytest.mark.parametrize(
    ("schema", "value", "kind", "found"),
    [
        ("boolean", True, pa.bool_(), True),
        ("int", -(2**31), pa.int32(), -(2**31)),
        ("long", 2**63 - 1, pa.int64(), 2**63 - 1),
        ("float", 0.5, pa.float32(), 0.5),
        ("double", 1e300, pa.float64(), 1e300),
        ("bytes", b"\x00\xff", pa.binary(), b"\x00\xff"),
        ("string", "é", pa.string(), "é"),
        (FIXED, b"x" * 16, pa.binary(), b"x" * 16),
        ({"type": "enum", "name": "E", "symbols": ["NEW", "OLD"]}, "OLD", pa.string(), "OLD"),
        ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.field("element", pa.int32())), [1, 2]),
        ({"type": "array", "items": ["null", "int"]}, [None], pa.list_(pa.field("element", pa.int32())), [None]),
        ({"type": "map", "values": "long"}, {"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        (DUPLE, {"a": 7}, pa.struct([("a", pa.int32())]), {"a": 7}),
        (["null", "string"], None, pa.string(), None),
        (["string"], "x", pa.string(), "x"),
        (["int", "long"], 2**40, pa.int64(), 2**40),
        (["null", "float", "double"], 1e300, pa.float64(), 1e300),
        (["int", "string", "null"], 7, pa.string(), "7"),
        (["int", "string"], "as it is", pa.string(), "as it is"),
        (["bytes", "int"], b"\x00", pa.string(), '"AA=="'),
        ([DUPLE, "int"], {"a": 7}, pa.string(), '{"a": 7}'),
        ({"type": "array", "items": ["int", "string"]}, [7], pa.list_(pa.field("element", pa.string())), ["7"]),
        ({"type": "map", "values": ["int", "string"]}, {"k": 7}, pa.map_(pa.string(), pa.string()), [("k", "7")]),
        (logical("int", "date"), dt.date(2026, 11, 29), pa.date32(), dt.date(2026, 11, 29)),
        (logical("long", "timestamp-millis"), NOON.replace(tzinfo=UTC), UTC_TIME, NOON.replace(tzinfo=UTC)),
        (logical("long", "timestamp-micros"), NOON.replace(tzinfo=UTC), UTC_TIME, NOON.replace(tzinfo=UTC)),
        (logical("long", "timestamp-nanos"), 1_999, UTC_TIME, dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        (logical("long", "local-timestamp-millis"), NOON, LOCAL_TIME, NOON),
        (logical("long", "local-timestamp-micros"), NOON, LOCAL_TIME, NOON),
        (logical("int", "time-millis"), dt.time(0, 0, 1), pa.int32(), 1000),
        (logical("long", "time-micros"), dt.time(0, 0, 1), pa.int64(), 1_000_000),
        (logical("bytes", "decimal", precision=5, scale=2), Decimal("-1.50"), pa.decimal128(5, 2), Decimal("-1.50")),
        (logical(FIXED, "decimal", precision=38), Decimal("9" * 38), pa.decimal128(38, 0), Decimal("9" * 38)),
        (logical("string", "uuid"), NAME, pa.string(), NAME),
        (logical("int", "unheard-of"), 7, pa.int32(), 7),
    ],
)  # fmt: skip
def test_each_type_becomes_a_column(schema: Any, value: Any, kind: Any, found: Any) -> None:
    text = record(("x", schema))
    parsed = parse([written(text, {"x": value})], text)
    (column,) = parsed.columns
    assert (column.type, column.to_pylist(), parsed.why) == (kind, [found], [])


def test_values_deep_inside_are_converted(tmp_path: Any) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "u", "type": ["int", "string", "null"]}]}
    text = record(("many", {"type": "array", "items": inner}), ("by", {"type": "map", "values": ["null", "I"]}))
    value = {"many": [{"u": 1}, {"u": None}], "by": {"k": {"u": "s"}, "n": None}}
    parsed = parse([written(text, value)], text)
    assert parsed.columns[0].to_pylist() == [[{"u": "1"}, {"u": None}]]
    assert parsed.columns[1].to_pylist() == [[("k", {"u": "s"}), ("n", None)]]
    pq.write_table(pa.table(parsed.columns, names=["many", "by"]), tmp_path / "x")


ONE = record(("id", "long"), ("price", "double"))
TWO = record(("id", "long"), ("price", "double"), ("buyer", ["null", "string"], None), ("pieces", "int", 1))


def test_older_schemas_are_told_by_their_fingerprint() -> None:
    old = written(ONE, {"id": 1, "price": 0.5}, marked=True)
    new = written(TWO, {"id": 2, "price": 1.5, "buyer": "b", "pieces": 3}, marked=True)
    bare = written(TWO, {"id": 3, "price": 2.5, "buyer": None, "pieces": 4})
    parsed = parse([old, new, bare], ONE, TWO)
    assert [column.to_pylist() for column in parsed.columns] == [
        [1, 2, 3], [0.5, 1.5, 2.5], [None, "b", None], [1, 3, 4],
    ]  # fmt: skip
    assert parse([old, new], TWO).why == [
        f"it was written with a schema of fingerprint {load(ONE).fingerprint.hex()}, which is not given"
    ]


def test_a_table_with_more_columns_than_the_schema() -> None:
    columns = pa.struct([("id", pa.int64()), ("gone", pa.string()), ("price", pa.float64())])
    parsed = parse([written(ONE, {"id": 1, "price": 0.5})], ONE, columns=columns)
    assert [column.to_pylist() for column in parsed.columns] == [[1], [None], [0.5]]


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        ("long", b"", "it is no shop.Order: EOFError"),
        ("long", b"\x02\x00", "it is no shop.Order: 1 bytes are left over"),
        ("long", b"Obj\x01", "it is no shop.Order: 3 bytes are left over"),
        ("string", b"\x04\xff\xfe", "it is no shop.Order: UnicodeDecodeError"),
        ("string", b"\xff\xff\xff\xff\x0f", "it is no shop.Order: EOFError"),
        ("int", b"\x80\x80\x80\x80\x80\x80\x01", "a value is not one of its type"),
        (["null", "string"], b"\x08", "it is no shop.Order: IndexError"),
        ({"type": "array", "items": "string"}, b"\xfe\xff\xff\xff\x0f", "it is no shop.Order: EOFError"),
        (logical("int", "date"), b"\xfe\xff\xff\xff\x0f", "it is no shop.Order: ValueError: the date 2147483647"),
        (logical("long", "timestamp-millis"), b"\xfe\xff\xff\xff\xff\xff\xff\x0f", "it is no shop.Order: ValueError: "),
        (logical("bytes", "decimal", precision=4), b"\x04\x7f\xff", "a value is not one of its type"),
        (logical("bytes", "decimal", precision=4), b"\x82\x01" + b"\x7f" * 65, "it is no shop.Order: ValueError: "),
        ("long", MARK + b"12345678\x02", "it was written with a schema of fingerprint 3132333435363738"),
    ],
)  # fmt: skip
def test_what_is_no_such_record_is_a_dead_letter(schema: Any, payload: bytes, why: str) -> None:
    text = record(("x", schema))
    good = {"long": b"\x02", "int": b"\x02"}.get(schema if isinstance(schema, str) else "")
    parsed = parse([payload] if good is None else [good, payload, good], text)
    assert parsed.why[0].startswith(why), parsed.why
    assert (parsed.good, parsed.dead) == (([], [0]) if good is None else ([0, 2], [1]))


def test_a_record_may_begin_as_a_single_object_does() -> None:
    payload = MARK + b"\x00" * 9  # 97 bytes less one of a first field, and so on
    text = record(*[(f"f{n}", "int") for n in range(10)])
    assert parse([payload], text).columns[0].to_pylist() == [-98]


MANY: Any = {"type": "array", "items": DUPLE}
BY: Any = {"type": "map", "values": logical("bytes", "decimal", precision=6)}
ENUM: Any = {"type": "enum", "name": "E", "symbols": ["A"]}
ALL = record(
    ("a", "int"), ("b", ["null", "string", "double"]), ("c", MANY), ("d", BY),
    ("e", logical("long", "timestamp-nanos")), ("f", FIXED), ("g", ENUM), ("h", logical("int", "date")), ("i", "float"),
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(0, 40), st.integers(0, 255))
def test_no_payload_stops_the_job(payloads: list[bytes], at: int, byte: int) -> None:
    """Neither any bytes nor a record with a byte of it changed."""
    value = {
        "a": 1,
        "b": "s",
        "c": [{"a": 2}],
        "d": {"k": Decimal(7)},
        "e": 5,
        "f": b"f" * 16,
        "g": "A",
        "h": 9,
        "i": 1.5,
    }
    good = written(ALL, value)
    broken = bytearray(good)
    broken[at % len(good)] = byte
    parsed = parse([*payloads, bytes(broken), good], ALL)
    assert sorted([*parsed.good, *parsed.dead]) == list(range(len(payloads) + 2))
    assert parsed.good[-1] == len(payloads) + 1
    pa.table(parsed.columns, names=list("abcdefghi")).to_pylist()


def test_a_payload_of_ten_megabytes() -> None:
    text = record(("a", "string"), ("b", "bytes"), ("c", {"type": "array", "items": "int"}))
    large = written(text, {"a": "x" * 5_000_000, "b": b"y" * 5_000_000, "c": [7] * 900_000})
    parsed = parse([large, large[:-1]], text)
    assert (parsed.good, parsed.dead) == ([0], [1])
    assert (len(parsed.columns[0][0].as_py()), len(parsed.columns[2][0])) == (5_000_000, 900_000)


def test_a_symbol_that_the_newer_enum_has_not() -> None:
    old: Any = {"type": "enum", "name": "E", "symbols": ["NEW", "OLD", "LOST"]}
    new = old | {"symbols": ["NEW", "OLD"]}
    first, last = record(("x", old)), record(("x", new), ("y", ["null", "int"], None))
    payloads = [written(first, {"x": one}, marked=True) for one in ("OLD", "LOST", "NEW")]
    parsed = parse(payloads, first, last)
    assert (parsed.columns[0].to_pylist(), parsed.dead) == (["OLD", "NEW"], [1])
    assert parsed.why[0].startswith("it is no shop.Order: SchemaResolutionError"), parsed.why
    lenient = record(("x", new | {"default": "NEW"}), ("y", ["null", "int"], None))
    assert parse(payloads, first, lenient).columns[0].to_pylist() == ["OLD", "NEW", "NEW"]
