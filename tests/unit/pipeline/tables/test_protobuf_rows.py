"""Payloads of Protobuf messages to rows, or to dead letters with the reason."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pickle
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from google.protobuf import json_format

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.payload import Parsed
from jetcluster.pipeline.tables.protobuf_rows import ProtobufFormat
from tests.unit.pipeline.tables.messages import descriptors, field, form, many, message

UTC_TIME = pa.timestamp("us", tz="UTC")


def parse(one: ProtobufFormat, *payloads: bytes, columns: Any = None) -> Parsed:
    there = pickle.loads(pickle.dumps(one))  # as it comes to a worker
    return there.rows(there.columns if columns is None else columns, ("_seq",)).parse(payloads)


def written(one: ProtobufFormat, value: Any) -> bytes:
    """By protobuf's own reading of JSON."""
    return bytes(json_format.ParseDict(value, one.type()).SerializeToString())


def listed(kind: Any) -> Any:
    return pa.list_(pa.field("element", kind))


LINE = message("Line", field("sku", "string"), field("pieces", "uint32"))
NODE = message("Node", field("name", "string"), many("children", ".shop.Node"))
ENTRY: dict[str, Any] = {"options": {"map_entry": True}}
BY_LINE = message("ByEntry", field("key", "string"), field("value", ".shop.Line"), **ENTRY)
BY_NUMBER = message("NumberEntry", field("key", "int64"), field("value", "bool"), **ENTRY)
LINES = pa.struct([("sku", pa.string()), ("pieces", pa.int64())])
MORE = (LINE, NODE, BY_LINE, BY_NUMBER)


@pytest.mark.parametrize(
    ("one", "value", "kind", "found"),
    [
        *[(field("x", name), -7, pa.int32(), -7) for name in ("int32", "sint32", "sfixed32")],
        *[(field("x", name), -(2**63), pa.int64(), -(2**63)) for name in ("int64", "sint64", "sfixed64")],
        *[(field("x", name), 2**32 - 1, pa.int64(), 2**32 - 1) for name in ("uint32", "fixed32")],
        *[(field("x", name), 2**64 - 1, pa.decimal128(20, 0), Decimal(2**64 - 1)) for name in ("uint64", "fixed64")],
        (field("x", "float"), 0.5, pa.float32(), 0.5),
        (field("x", "double"), 1e300, pa.float64(), 1e300),
        (field("x", "bool"), True, pa.bool_(), True),
        (field("x", "string"), "é", pa.string(), "é"),
        (field("x", "bytes"), "AP8=", pa.binary(), b"\x00\xff"),
        (field("x", ".shop.State"), "PAID", pa.string(), "PAID"),
        (field("x", ".shop.State"), 77, pa.string(), "77"),
        (many("x", "int32"), [1, 2], listed(pa.int32()), [1, 2]),
        (many("x", "int32"), [], listed(pa.int32()), []),
        (many("x", ".shop.State"), ["NEW", "PAID"], listed(pa.string()), ["NEW", "PAID"]),
        (field("x", ".shop.Line"), {"sku": "a", "pieces": 2}, LINES, {"sku": "a", "pieces": 2}),
        (many("x", ".shop.Line"), [{"sku": "a"}], listed(LINES), [{"sku": "a", "pieces": 0}]),
        (many("x", ".shop.ByEntry"), {"k": {}}, pa.map_(pa.string(), LINES), [("k", {"sku": "", "pieces": 0})]),
        (many("x", ".shop.NumberEntry"), {"7": True}, pa.map_(pa.int64(), pa.bool_()), [(7, True)]),
        (field("x", ".google.protobuf.Timestamp"), "2026-11-29T12:00:00.25Z", UTC_TIME,
         dt.datetime(2026, 11, 29, 12, 0, 0, 250_000, dt.UTC)),
        (field("x", ".google.protobuf.Duration"), "1.5s", pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())]),
         {"seconds": 1, "nanos": 500_000_000}),
        (field("x", ".google.protobuf.Int64Value"), 7, pa.int64(), 7),
        (field("x", ".google.protobuf.UInt64Value"), 7, pa.decimal128(20, 0), Decimal(7)),
        (field("x", ".google.protobuf.BytesValue"), "AA==", pa.binary(), b"\x00"),
        (field("x", ".google.protobuf.Struct"), {"a": [1, None]}, pa.string(), '{"a": [1.0, null]}'),
        (field("x", ".google.protobuf.Empty"), {}, pa.bool_(), True),
        (field("x", ".shop.Node"), {"name": "a", "children": [{"name": "b"}]},
         pa.struct([("name", pa.string()), ("children", listed(pa.string()))]),
         {"name": "a", "children": ['{"name": "b"}']}),
    ],
)  # fmt: skip
def test_each_type_becomes_a_column(one: Any, value: Any, kind: Any, found: Any) -> None:
    there = form(one, more=MORE)
    parsed = parse(there, written(there, {"x": value}))
    (column,) = parsed.columns
    assert (column.type, column.to_pylist(), parsed.why) == (kind, [found], [])


def test_what_is_absent() -> None:
    """A default where nobody can tell; null where it may be absent."""
    plain = [field("a", "int32"), field("b", "string"), many("c", "int32"), field("d", ".shop.Line")]
    there = form(*plain, field("e", "int32", proto3_optional=True), field("f", ".google.protobuf.BoolValue"), more=MORE)
    assert [column[0].as_py() for column in parse(there, b"").columns] == [0, "", [], None, None, None]
    old = form(field("a", "int32"), field("b", "string", default_value="x"), syntax="proto2")
    assert [column[0].as_py() for column in parse(old, b"").columns] == [None, None]


def test_a_newer_message_is_read_without_what_is_new() -> None:
    old, new = form(field("id", "int64")), form(field("id", "int64"), field("city", "string"))
    payload = written(new, {"id": 7, "city": "Bern"})
    parsed = parse(old, payload, written(new, {"city": "Bern"}))
    assert (parsed.columns[0].to_pylist(), parsed.dead) == ([7], [1])
    assert parsed.why == ["it is no shop.Order: it has none of its fields, but others"]
    columns = pa.struct([("gone", pa.string()), *old.columns])
    assert [column.to_pylist() for column in parse(old, payload, columns=columns).columns] == [[None], [7]]


TIME, VALUE = ".google.protobuf.Timestamp", ".google.protobuf.Value"
REQUIRED = form(field("id", "int64", label=2), field("x", "int64"), syntax="proto2")


@pytest.mark.parametrize(
    ("there", "payload", "why"),
    [
        (form(field("x", "int64")), b"\xff", "it is no shop.Order: Error parsing"),
        (form(field("x", "string")), b"\x0a\x02\xff\xfe", "it is no shop.Order: Error parsing"),
        (form(field("x", "string"), syntax="proto2"), b"\x0a\x02\xff\xfe", "a value is not one of its type"),
        (form(field("x", "int64")), b"no message", "it is no shop.Order: "),
        (REQUIRED, b"\x10\x01", "it is no shop.Order: id is missing"),
        (form(field("x", TIME)), b"\x0a\x08\x08" + b"\x80" * 6 + b"\x01", "it is no shop.Order"),
        (form(field("x", VALUE)), b"\x0a\x09\x11" + b"\x00" * 6 + b"\xf8\x7f", "it is no shop.Order"),
    ],
)  # fmt: skip
def test_what_is_no_such_message_is_a_dead_letter(there: Any, payload: bytes, why: str) -> None:
    parsed = parse(there, payload)
    assert parsed.dead == [0] and parsed.why[0].startswith(why), parsed.why


def test_a_message_in_a_message_in_a_message() -> None:
    there = form(field("x", ".shop.Node"), more=MORE)
    message = there.type()
    node = message.x
    for _ in range(90):
        node = node.children.add(name="n")
    assert parse(there, message.SerializeToString()).good == [0]
    payload = b""
    for _ in range(10_000):
        payload = b"\x12" + bytes(varint(len(payload))) + payload
    assert parse(there, b"\x0a" + bytes(varint(len(payload))) + payload).dead == [0]


def varint(number: int) -> list[int]:
    found = []
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return [*found, number]


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (ProtobufFormat(b"\xff", "shop.Order"), "no whole FileDescriptorSet"),
        (ProtobufFormat(b"", "shop.Order"), "there is none of that name, but none at all"),
        (ProtobufFormat(descriptors(field("x", "int32")), "Order"), "there is none of that name, but .*shop.Order"),
        (form(), "no fields that can be columns"),
        (form(field("a", "int32"), field("A", "int32", json_name="z")), "A cannot be a column"),
        (form(field("_seq", "int32")), "_seq cannot be a column"),
        (form(*[field(f"f{n}", "int32") for n in range(1001)]), "more than 1000 fields"),
    ],
)
def test_schemas_that_are_refused(there: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(there)


def test_any_bytes_are_descriptors_or_are_refused() -> None:
    """Descriptors with some bytes changed: those that are taken can read, and no payload stops the job."""
    taken, begin = 0, ALL.descriptors.rindex(b"shop.proto")
    for seed in range(3000):
        dice = random.Random(seed)
        data = bytearray(ALL.descriptors)
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(begin, len(data))] = dice.randrange(256)
        with contextlib.suppress(UsageError):
            found = parse(ProtobufFormat(bytes(data), "shop.Order"), GOOD, b"", GOOD[:20])
            assert len(found.good) + len(found.dead) == 3
            taken += 1
    assert taken > 20


def test_a_map_without_values_is_refused() -> None:
    entry = message("ByEntry", field("key", "string"), field("worth", "string"), **ENTRY)
    with pytest.raises(UsageError, match=r"shop\.Order\.x is a map without keys or values"):
        parse(form(many("x", ".shop.ByEntry"), more=[entry]))


def test_imports_that_are_missing_are_told() -> None:
    from google.protobuf import descriptor_pb2

    kinds: Any = descriptor_pb2
    whole = kinds.FileDescriptorSet.FromString(descriptors(field("x", ".google.protobuf.Timestamp")))
    part = kinds.FileDescriptorSet(file=[whole.file[-1]])
    with pytest.raises(UsageError, match=r"--include_imports.*duration.proto"):
        parse(ProtobufFormat(part.SerializeToString(), "shop.Order"))


def test_types_that_have_each_other_twice_are_refused_at_once() -> None:
    kinds = [message("R0", field("a", "int32"))]
    kinds += [message(f"R{n}", field("a", f".shop.R{n - 1}"), field("b", f".shop.R{n - 1}")) for n in range(1, 60)]
    with pytest.raises(UsageError, match="more than 1000 fields"):
        parse(form(field("x", ".shop.R59"), more=kinds))


ALL = form(
    field("a", "sint32"), field("b", "string"), many("c", ".shop.Line"), many("d", ".shop.ByEntry"),
    field("e", ".google.protobuf.Timestamp"), field("f", ".google.protobuf.Struct"), field("g", ".shop.State"),
    field("h", "fixed64"), field("i", "float"), field("j", ".shop.Node"), more=MORE,
)  # fmt: skip
GOOD = written(
    ALL,
    json.loads('{"a": 1, "b": "s", "c": [{"sku": "x"}], "d": {"k": {}}, "e": "2026-11-29T12:00:00Z", "f": {"a": 1}}')
    | {"g": "PAID", "h": 7, "i": 1.5, "j": {"name": "n", "children": [{}]}},
)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_no_payload_stops_the_job(payloads: list[bytes], at: int, byte: int) -> None:
    """Neither any bytes nor a message with a byte of it changed."""
    broken = bytearray(GOOD)
    broken[at] = byte
    parsed = parse(ALL, *payloads, bytes(broken), GOOD)
    assert sorted([*parsed.good, *parsed.dead]) == list(range(len(payloads) + 2))
    assert parsed.good[-1] == len(payloads) + 1
    pa.table(parsed.columns, names=list("abcdefghij")).to_pylist()


def test_a_small_message_of_many_objects_of_many_columns_is_a_dead_letter() -> None:
    """Two bytes are an object with 50 columns: made into Python's, these 200 kB would be 240 MB."""
    wide = message("Wide", *[field(f"f{n}", "string") for n in range(50)])
    there = form(many("x", ".shop.Wide"), more=[wide])
    parsed = parse(there, b"\x0a\x00" * 100_000, b"\x0a\x00" * 19_000)
    assert (parsed.good, parsed.why) == ([1], ["it would be more than 1,000,000 values"])
    by = message("ByEntry", field("key", "string"), field("value", ".shop.Wide"), **ENTRY)
    entries = b"".join(b"\x0a\x06\x0a\x04%04x" % n for n in range(20_000))
    assert parse(form(many("x", ".shop.ByEntry"), more=[wide, by]), entries).dead == [0]


def test_a_payload_of_ten_megabytes() -> None:
    there = form(field("a", "string"), field("b", "bytes"), many("c", "sint32"))
    large = there.type(a="x" * 5_000_000, b=b"y" * 5_000_000, c=[7] * 900_000).SerializeToString()
    parsed = parse(there, large, large[:-1], GOOD)
    assert (parsed.good[0], len(parsed.columns[0][0].as_py()), len(parsed.columns[2][0])) == (0, 5_000_000, 900_000)
    assert parsed.dead[0] == 1
