"""The values of Protobuf payloads, counted before they are parsed (pipeline/tables/protobuf_count.py)."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from jetcluster.pipeline.tables import payload, protobuf_count
from jetcluster.pipeline.tables.payload import MisfitError, ValueRoom
from jetcluster.pipeline.tables.protobuf_count import ProtobufCount
from tests.unit.pipeline.tables.messages import field, form, many, message
from tests.unit.pipeline.tables.test_protobuf_rows import ALL, GOOD, MORE, parse, varint

WIDE = message("Wide", *[field(f"f{n}", "string") for n in range(50)])


def limited(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in (payload, protobuf_count):
        monkeypatch.setattr(one, "MAX_VALUES", most)


def used(there: Any, data: bytes) -> int:
    room = ValueRoom()
    assert ProtobufCount(there.type.DESCRIPTOR, room).behind(data) == len(data)
    return room.used


def test_messages_are_counted_with_their_fields() -> None:
    there = form(many("x", ".shop.Wide"), many("n", "sint32"), field("y", "string"), more=[WIDE])
    value = there.type(y="text", n=[1, -1, 2], x=[{"f0": "a"}, {}])
    assert used(there, value.SerializeToString()) == (1 + 3) + 2 * 51 + 3
    assert used(ALL, GOOD) > 20


def test_groups_and_what_the_type_does_not_know_are_passed_over() -> None:
    there = form(many("x", ".shop.Wide"), more=[WIDE])
    group = b"\x9b\x06" + b"\x0a\x00" + b"\x9b\x06\x9c\x06" + b"\x9c\x06"  # field 99, with another one inside
    assert used(there, group + b"\x0a\x00") == 2 + 51
    assert used(there, b"\x92\x06\x02\x0a\x00" + b"\x99\x06" + b"8" * 8 + b"\x9d\x06" + b"4" * 4) == 2
    assert parse(there, group + b"\x0a\x00").why == []


def test_a_small_payload_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a group, and inside of a message inside of itself."""
    limited(1000, monkeypatch)
    there = form(many("x", ".shop.Wide"), field("y", ".shop.Node"), more=[WIDE, *MORE])
    nodes = b"\x12" + bytes(varint(800)) + b"\x12\x00" * 400
    for data in (b"\x0a\x00" * 40, b"\x9b\x06\x9c\x06" + b"\x0a\x00" * 40, nodes):
        with pytest.raises(MisfitError, match="it would be more than 1,000 values"):
            ProtobufCount(there.type.DESCRIPTOR, ValueRoom()).check(data)
        assert parse(there, data).why == ["it would be more than 1,000 values"]


def test_what_is_no_such_payload_is_left_to_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_count, "MAX_VALUES", 0)  # looks through all
    room = ValueRoom()
    room.take(-(2**70))
    count = ProtobufCount(ALL.type.DESCRIPTOR, room)
    dice = random.Random(5)
    for _ in range(3000):
        broken = bytearray(GOOD)
        broken[dice.randrange(len(GOOD))] = dice.randrange(256)
        count.check(bytes(broken[: dice.randrange(len(GOOD) + 1)]))
    count.check(b"\xff" * 30)
    count.check(b"\x9b\x06" * 5000)
