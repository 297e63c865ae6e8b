"""Columns are inferred of values, and grow by them."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.pipeline.tables.columns import (
    MAX_COLUMNS,
    MAX_DEPTH,
    grown,
    merged,
    name_fault,
    plain,
    required,
    size_of,
    type_of,
)

NULL, INT, DOUBLE, TEXT, BOOL = pa.null(), pa.int64(), pa.float64(), pa.string(), pa.bool_()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def struct(**fields: Any) -> Any:
    return pa.struct([pa.field(name, kind) for name, kind in fields.items()])


def many(element: Any) -> Any:
    return pa.list_(pa.field("element", element))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, NULL),
        (True, BOOL),
        (7, INT),
        (2**63, TEXT),  # no column of numbers holds it
        (1.5, DOUBLE),
        ("x", TEXT),
        ([], many(NULL)),
        ({}, struct()),
        ([True, []], many(TEXT)),
        ([None, 1, 2.5], many(DOUBLE)),
        ([1, "x"], many(TEXT)),
        ({"a": 1, "b": None, "c": {"d": [True]}}, struct(a=INT, b=NULL, c=struct(d=many(BOOL)))),
        ([{"a": 1}, {"b": "x"}], many(struct(a=INT, b=TEXT))),
    ],
)
def test_a_value_tells_its_type(value: Any, kind: Any) -> None:
    assert type_of(value) == kind


def test_what_is_nested_too_deeply_is_text() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    kind = type_of(value)
    for _ in range(MAX_DEPTH):
        kind = kind.value_type
    assert kind == INT
    kind = type_of([value])
    for _ in range(MAX_DEPTH):
        kind = kind.value_type
    assert kind == TEXT


@settings(deadline=None)  # for busy machines
@given(st.lists(VALUES, min_size=2, max_size=4))
def test_tasks_may_merge_in_any_order(values: list[Any]) -> None:
    """Up to the order of fields, which follows the first value."""
    kinds = [type_of(value) for value in values]
    found = set()
    for order in itertools.permutations(kinds):
        kind = NULL
        for one in order:
            kind = merged(kind, one)
        found.add(str(_sorted(kind)))
    assert len(found) == 1


def _sorted(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([(f.name, _sorted(f.type)) for f in sorted(kind, key=lambda f: f.name)])
    return many(_sorted(kind.value_type)) if pa.types.is_list(kind) else kind


def test_a_column_keeps_its_type_and_new_fields_are_added() -> None:
    known = struct(a=INT, s=struct(x=INT), l=many(struct(y=TEXT)))
    found = struct(a=TEXT, s=struct(x=DOUBLE, z=BOOL), l=many(struct(y=INT, w=INT)), b=DOUBLE)
    wider = struct(a=INT, s=struct(x=INT, z=BOOL), l=many(struct(y=TEXT, w=INT)), b=DOUBLE)
    assert grown(known, found) == wider
    assert grown(wider, found) == wider
    assert grown(known, None) == known


def test_names_that_no_column_may_have() -> None:
    for name in ("", "a b", "a.b", "a,b", "a=b", "a\x00", "__delta_rs_source", "__Delta_rs_x"):
        assert name_fault(name), name
    found = pa.struct([("A", INT), ("a b", INT), ("_seq", INT), ("é", INT), ("s", struct(**{"x y": INT}))])
    assert grown(struct(a=INT), found, ["_seq"]) == struct(a=INT, é=INT)


def test_the_number_of_columns_is_bounded() -> None:
    found = pa.struct([(f"c{n}", INT) for n in range(MAX_COLUMNS + 50)])
    assert grown(pa.struct([]), found).num_fields == MAX_COLUMNS
    nested = grown(pa.struct([("s", struct(x=INT))]), struct(s=found))
    assert size_of(nested) <= MAX_COLUMNS


def test_required_columns_are_the_declared_ones() -> None:
    declared = pa.struct([pa.field("a", INT, nullable=False), pa.field("b", INT)])
    wider = grown(struct(z=TEXT), declared)
    assert [field.nullable for field in required(wider, declared)] == [True, False, True]
    assert required(wider, None) == wider


def test_types_of_other_libraries_become_plain() -> None:
    given_type = pa.struct(
        [
            ("t", pa.large_string()), ("b", pa.large_binary()), ("l", pa.large_list(pa.large_string())),
            ("w", pa.timestamp("ns", tz="+00:00")), ("m", pa.map_(pa.large_string(), many(pa.large_string()))),
        ]
    )  # fmt: skip
    mapped = pa.map_(pa.field("key", TEXT, nullable=False), pa.field("value", many(TEXT)))
    assert plain(given_type) == struct(t=TEXT, b=pa.binary(), l=many(TEXT), w=pa.timestamp("us", tz="UTC"), m=mapped)
