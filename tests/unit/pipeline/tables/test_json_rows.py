"""Payloads to rows, or to dead letters with the reason."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.columns import grown, type_of
from jetcluster.pipeline.tables.json_rows import JsonRows, Parsed
from tests.unit.pipeline.tables.test_columns import VALUES, many, struct


def parse(columns: Any, *payloads: Any, infer: bool = False) -> Parsed:
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in payloads]
    return JsonRows(columns, infer=infer, reserved=("_seq",)).parse(texts)


def one(kind: Any, value: Any) -> Any:
    """The value in column `x`, or the reason why not."""
    parsed = parse(pa.struct([("x", kind)]), value if isinstance(value, bytes) else {"x": value})
    return parsed.why[0] if parsed.why else parsed.columns[0][0].as_py()


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "it is not JSON: Expecting value"),
        (b"{", "it is not JSON"),
        (b'{"x": NaN}', "it is not JSON: NaN is no number"),
        (b'{"x": 1} {}', "it is not JSON: Extra data"),
        (b"\xff\xfe", "it is not UTF-8: byte 0"),
        (b"[1]", "it is an array, not an object"),
        (b"null", "it is null, not an object"),
        (b"7", "it is a number, not an object"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"x":' + b"9" * 10_000 + b"}", "it is not JSON"),
    ],
)
def test_what_is_no_object_of_json(payload: bytes, why: str) -> None:
    found = one(pa.int64(), payload)
    assert found.startswith(why), found


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.int64(), 2**63, "x: 9223372036854775808 is not a whole number of 64 bits"),
        (pa.int32(), -(2**31), -(2**31)),
        (pa.int32(), 2**31, "x: 2147483648 is not a whole number of 32 bits"),
        (pa.int64(), 2.0, 2),
        (pa.int64(), 2.5, "x: 2.5 is not a whole number"),
        (pa.int64(), b'{"x": 1e400}', "x: Infinity is not a whole number of 64 bits"),
        (pa.int64(), True, "x: true is not a whole number"),
        (pa.int64(), "2", 'x: "2" is not a whole number'),
        (pa.float64(), 3, 3.0),
        (pa.float64(), b'{"x": 1e400}', "x: Infinity is not a number of 64 bits"),
        (pa.float32(), 1e39, "x: 1e+39 is not a number of 32 bits"),
        (pa.float64(), False, "x: false is not a number"),
        (pa.bool_(), True, True),
        (pa.bool_(), 0, "x: 0 is not true or false"),
        (pa.string(), "é", "é"),
        (pa.string(), {"a": [1, "é"]}, '{"a":[1,"é"]}'),
        (pa.string(), 1.5, "1.5"),
        (pa.string(), b'{"x": "\\ud800"}', "x: it has half of a surrogate pair, which is no text"),
        (pa.binary(), "AP8=", b"\x00\xff"),
        (pa.binary(), "no!", 'x: "no!" is not base64'),
        (pa.decimal128(6, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(6, 2), b'{"x": 0.1}', Decimal("0.10")),
        (pa.decimal128(6, 2), b'{"x": 1e999999999}', None),
        (pa.decimal128(6, 2), "1.505", 'x: "1.505" is not a decimal number of 6 digits, 2 behind the point'),
        (pa.decimal128(6, 2), 12345, "x: 12345 is not a decimal number of 6 digits, 2 behind the point"),
        (pa.decimal128(6, 2), "NaN", None),
        (
            pa.decimal128(6, 2),
            b'{"x": 1e99999999999999999999}',
            "it is not JSON: 1e99999999999999999999 has an exponent of too many digits",
        ),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.decimal128(38, 37), f"-9.{'9' * 37}", Decimal(f"-9.{'9' * 37}")),
        (pa.decimal128(30, 2), f"{'1' * 28}.25", Decimal(f"{'1' * 28}.25")),
        (pa.decimal128(38, 0), "1" * 39, None),
        (pa.decimal128(38, 2), "1" * 37, None),
        (pa.timestamp("us", tz="UTC"), "soon", 'x: "soon" is not a time as in RFC 3339'),
        (pa.timestamp("us", tz="UTC"), 5, "x: 5 is not a time as in RFC 3339"),
        (pa.date32(), "2026-02-30", 'x: "2026-02-30" is not a date as 2026-11-29'),
        (struct(a=pa.int64()), [], "x: [] is not an object"),
        (struct(a=pa.int64()), {"a": "no"}, 'x.a: "no" is not a whole number'),
        (many(pa.int64()), [1, None], [1, None]),
        (many(pa.int64()), [1, "a"], 'x[1]: "a" is not a whole number'),
        (many(pa.int64()), 1, "x: 1 is not an array"),
        (pa.map_(pa.string(), pa.int64()), {"a": 1}, [("a", 1)]),
        (pa.map_(pa.string(), pa.int64()), {"a": "b"}, 'x.a: "b" is not a whole number'),
    ],
)
def test_a_value_fits_its_column_or_the_reason_is_told(kind: Any, value: Any, found: Any) -> None:
    seen = one(kind, value)
    if found is None:
        assert "is not a decimal number" in seen
    else:
        assert seen == found


def test_a_time_has_its_offset_taken_off() -> None:
    for text in ("2026-11-29T12:00:00.25Z", "2026-11-29T13:00:00.25+01:00", "2026-11-29 12:00:00.25"):
        assert one(pa.timestamp("us", tz="UTC"), text).isoformat()[:22] == "2026-11-29T12:00:00.25"


def test_a_required_field() -> None:
    columns = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    assert parse(columns, {}, {"x": None}, {"x": 1}).why == ["x: it is required"] * 2


def test_declared_columns_ignore_other_fields() -> None:
    parsed = parse(struct(x=pa.int64()), {"x": 1, "a b": 2, "y": 3})
    assert (parsed.good, parsed.dead, parsed.found) == ([0], [], None)


def test_places_of_rows_and_dead_letters() -> None:
    parsed = parse(struct(x=pa.int64()), {"x": 1}, b"no", {"x": 2}, {"x": "no"})
    assert (parsed.good, parsed.dead, parsed.columns[0].to_pylist()) == ([0, 2], [1, 3], [1, 2])


def test_new_fields_are_found_and_refused_ones_told() -> None:
    parsed = parse(struct(x=pa.int64()), {"x": 1, "y": 2.5, "z": []}, {"X": 1}, {"_seq": 1}, infer=True)
    assert parsed.found == struct(x=pa.int64(), y=pa.float64())
    again = parse(parsed.found, {"x": 1, "y": 2.5, "z": []}, {"X": 1}, {"_seq": 1}, {"a b": 1}, infer=True)
    assert (again.found, again.good) == (None, [0])
    assert again.why == [
        "X: it cannot be a column: its name is taken, there are too many, or its own fields cannot be",
        "_seq: it cannot be a column: its name is taken, there are too many, or its own fields cannot be",
        "a b: it cannot be a column: its name has ' '",
    ]


@settings(deadline=None)  # for busy machines
@given(VALUES)
def test_whatever_is_inferred_holds_its_value(value: Any) -> None:
    """Or it has no value at all, and so no column."""
    columns = grown(pa.struct([]), type_of({"x": value}))
    parsed = parse(columns, {"x": value}, infer=True)
    assert parsed.found is None
    assert parsed.good == [0] or "surrogate" in parsed.why[0], parsed.why


def test_a_name_that_is_no_text_is_a_dead_letter() -> None:
    payloads = [b'{"\\ud800": 1}', b'{"a": {"\\ud800": 1}}', b'{"c": [{"\\ud800": 1, "\\ud801": "x"}]}', b'{"b": 1}']
    parsed = parse(struct(b=pa.int64()), *payloads, infer=True)
    assert (parsed.good, parsed.found) == ([3], None)
    assert parsed.why == [
        "\\ud800: it cannot be a column: its name has half of a surrogate pair",
        "a: it cannot be a column: its name is taken, there are too many, or its own fields cannot be",
        "c: it cannot be a column: its name is taken, there are too many, or its own fields cannot be",
    ]
    known = parse(struct(a=struct(x=pa.int64())), payloads[1], infer=True)
    assert known.why == ["a.\\ud800: it cannot be a column: its name has half of a surrogate pair"]


def test_a_new_fraction_beside_a_column_of_decimal_numbers_is_double() -> None:
    columns = struct(x=pa.decimal128(9, 2))
    parsed = parse(columns, {"x": 1.5, "y": 2.5, "z": [0.5, {"w": 1.5}]}, infer=True)
    assert parsed.found == struct(x=pa.decimal128(9, 2), y=pa.float64(), z=many(pa.string()))
    again = parse(parsed.found, {"x": 1.5, "y": 2.5}, infer=True)
    assert [column.to_pylist() for column in again.columns] == [[Decimal("1.50")], [2.5], [None]]


HOSTILE_NAMES = ["", "a", "b", "é", "a b", "\\ud800", "\\udfff", "\\u0000"]
HOSTILE = st.recursive(
    st.sampled_from(
        ["null", "true", "2", "-2.50", "1e400", "-1e-400", "1e9999999999999999999", "9" * 400, '"\\ud800"', '"\\u0000"',
         '"NaN"', '"sNaN"', '"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.9999-12:00"', '"9999-12-31T23:59:59.999Z"',
         '"0001-01-01"', '"AP8="', '"1_0"', '"é"', "[]", "{}"]
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda many: f"[{','.join(many)}]")
    | st.dictionaries(st.sampled_from(HOSTILE_NAMES), inner, max_size=3).map(
        lambda fields: "{" + ",".join(f'"{name}":{one}' for name, one in fields.items()) + "}"
    ),
    max_leaves=6,
)  # fmt: skip
"""Texts of JSON values with what a column, Arrow or Python may trip over."""
KINDS = [
    pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.timestamp("us", tz="UTC"),
    pa.date32(), pa.decimal128(9, 2), pa.decimal128(38, 19), struct(a=pa.timestamp("us", tz="UTC")),
    many(pa.decimal128(38, 38)), pa.map_(pa.string(), pa.float64()), struct(a=pa.string(), b=many(pa.int64())),
]  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(HOSTILE, min_size=1, max_size=4), st.sampled_from(KINDS), st.booleans())
def test_no_payload_stops_the_job(values: list[str], kind: Any, infer: bool) -> None:
    """Each one is a row or a dead letter, also once its new fields are columns, and the rows can be written."""
    payloads = [
        (f'{{"x": {value}, "y": {value}}}' if place % 2 else value).encode() for place, value in enumerate(values)
    ]
    parsed = parse(struct(x=kind), *payloads, infer=infer)
    assert sorted([*parsed.good, *parsed.dead]) == list(range(len(payloads)))
    columns = parsed.found if parsed.found is not None else struct(x=kind)
    again = parse(columns, *payloads, infer=infer)
    assert again.found is None
    assert len(again.dead) == len(pa.array(again.why, pa.string()))
    rows = pa.table(again.columns, schema=pa.schema(list(columns)))
    pq.write_table(rows, pa.BufferOutputStream())


def test_types_that_json_has_not() -> None:
    with pytest.raises(UsageError, match="not parsed to columns of time64"):
        JsonRows(pa.struct([("x", pa.time64("us"))]), infer=False)


def test_a_small_payload_of_many_objects_of_many_columns_is_a_dead_letter() -> None:
    wide = pa.struct([(f"f{n}", pa.string()) for n in range(50)])
    columns = pa.struct([("x", pa.list_(wide)), ("y", pa.map_(pa.string(), wide))])
    good = b'{"x": [' + b"{}," * 19_000 + b"{}]}"
    by_key = json.dumps({"y": {f"{n}": {} for n in range(20_000)}}).encode()
    parsed = parse(columns, b'{"x": [' + b"{}," * 20_000 + b"{}]}", good, by_key)
    assert (parsed.good, parsed.why) == ([1], ["it would be more than 1,000,000 values"] * 2)
