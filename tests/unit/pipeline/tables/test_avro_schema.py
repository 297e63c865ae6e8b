"""Avro schemas that are refused, before any payload is read."""

from __future__ import annotations

import contextlib
import json
import random
import re
from typing import Any

import pytest

pytest.importorskip("fastavro")

from jetcluster.pipeline.result import UsageError
from jetcluster.pipeline.tables.avro_schema import load
from tests.unit.pipeline.tables.test_avro_rows import ALL, FIXED, NOON, ONE, UTC, logical, parse, record, written

RECURSIVE = record(("next", ["null", "shop.Order"]))
EMPTY = {"type": "record", "name": "Z", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is no Avro schema"),
        ("[1]", "it is no Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": "x", "type": "nothing"}]}', "it is no Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"type": "int"}]}', "it is no Avro schema"),
        ('"string"', "is not of a record"),
        (f"[{ONE}]", "is not of a record"),
        (RECURSIVE, r"Order.next: a record inside of itself, shop.Order"),
        (record(("x", {"type": "array", "items": "null"})), r"Order.x: an array of items without bytes"),
        (record(("x", {"type": "array", "items": EMPTY})), r"Order.x: an array of items without bytes"),
        (record(("z", EMPTY), ("x", {"type": "array", "items": "Z"})), r"Order.x: an array of items without bytes"),
        (record(("x", {"type": "array", "items": FIXED | {"size": 0}})), r"Order.x: an array of items without bytes"),
        (record(("x", {"type": "map", "values": "null"})), r"Order.x: a map of nulls"),
        (record(("x", FIXED | {"size": "4"})), r"Order.x: the size of a fixed type is a number of bytes, not '4'"),
        (record(("x", FIXED | {"size": -4})), r"Order.x: the size of a fixed type"),
        (record(("x", logical("bytes", "decimal", precision=39))), r"decimal"),
        (record(("x", "null")), "no fields that can be columns"),
        (record(("a", "int"), ("A", "int")), "A cannot be a column: there is one of that name"),
        (record(("_SEQ", "int")), "_SEQ cannot be a column: there is one of that name"),
        (record(*[(f"f{n}", "int") for n in range(1001)]), "more than 1000 fields"),
    ],
)
def test_schemas_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse([], text)


def test_types_that_have_each_other_twice_are_refused_at_once() -> None:
    """2 ** 60 fields, if they were made."""
    kind: Any = "int"
    for depth in range(60):
        name = f"R{depth}"
        again = kind if isinstance(kind, str) else kind["name"]
        kind = {"type": "record", "name": name, "fields": [{"name": "a", "type": kind}, {"name": "b", "type": again}]}
    with pytest.raises(UsageError, match="more than 1000 fields"):
        parse([], json.dumps(kind))


def test_a_number_that_becomes_a_time_is_refused() -> None:
    """The bytes do not tell in which unit it was."""
    old, new = record(("at", "long")), record(("at", logical("long", "timestamp-millis")))
    with pytest.raises(UsageError, match="at is a time or a decimal number in one schema"):
        parse([], old, new)
    other = record(("at", logical("long", "timestamp-micros")))
    with pytest.raises(UsageError, match="other logical types: payloads do not tell"):
        parse([], new, other)
    other = record(("at", logical("long", "timestamp-micros")), ("more", "int", 0))
    payload = written(new, {"at": NOON.replace(tzinfo=UTC)}, marked=True)
    assert parse([payload], new, other).columns[0].to_pylist() == [NOON.replace(tzinfo=UTC)]


def test_the_fingerprint_is_that_of_the_specification() -> None:
    """Other implementations have the same of this schema: little-endian, of the canonical form without docs."""
    text = record(("id", "long"), doc="no part of it")
    canonical = b'{"name":"shop.Order","type":"record","fields":[{"name":"id","type":"long"}]}'
    table, empty = [], 0xC15D213AA4D7A795
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (empty & -(byte & 1))
        table.append(byte)
    mark = empty
    for byte in canonical:
        mark = (mark >> 8) ^ table[(mark ^ byte) & 0xFF]
    assert load(text).fingerprint == mark.to_bytes(8, "little")


WORDS = [
    '"null"',
    '"int"',
    '"record"',
    "[]",
    "{}",
    "null",
    "1e400",
    "-1",
    '"decimal"',
    '"x.y"',
    "true",
    '"fixed"',
    '""',
]


def test_any_text_is_a_schema_or_is_refused() -> None:
    """Schemas of which some words are others: those that are taken can read, and no payload stops the job."""
    fields: Any = json.loads(ALL)["fields"]
    words = re.findall(r'"[^"]*"|[{}\[\],:]|[^\s{}\[\],:"]+', record(*[(one["name"], one["type"]) for one in fields]))
    taken = 0
    for seed in range(1500):
        dice = random.Random(seed)
        text = list(words)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(text))
            text[at] = dice.choice([*WORDS, text[dice.randrange(len(text))], ""])
        with contextlib.suppress(UsageError):
            assert sum(map(len, parse([b"", b"\x02" * 50, b"\xff" * 50], "".join(text))[1:3])) == 3
            taken += 1
    assert taken > 20
