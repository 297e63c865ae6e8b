"""Assignments are encoded when they change, and a snapshot only puts them together (meta/encoded.py)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from jetcluster.meta.encoded import EncodedAssignments, compact
from jetcluster.meta.state import Assignment
from tests.unit.meta.test_machine import Driver

ONE = Assignment(2, "$G", "S", {"name": "S"}, ("p",), 1, "p", 5)


def count_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    encoded: list[int] = []
    plain = Assignment.to_dict
    monkeypatch.setattr(Assignment, "to_dict", lambda self: encoded.append(self.gid) or plain(self))
    return encoded


def test_the_array_has_the_newest_form_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = EncodedAssignments()
    table = {gid: replace(ONE, gid=gid) for gid in range(2, 9)}
    for assignment in table.values():
        parts.put(assignment)
    assert not parts.encode(3)
    table[3] = replace(table[3], revision=9)
    parts.put(table[3])
    parts.drop(7)
    parts.drop(2)
    del table[7], table[2]
    encoded = count_encoded(monkeypatch)
    assert parts.array(table.values()) == compact([assignment.to_dict() for assignment in table.values()])
    assert sorted(encoded[: -len(table)]) == [3, 5, 6, 8]
    assert parts.encode(0)


def test_nothing_is_the_empty_array() -> None:
    assert EncodedAssignments().array([]) == "[]"


def test_a_snapshot_encodes_what_changed_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    for number in range(20):
        driver.create(f"S{number}")
    machine = driver.machine
    machine.prepare_snapshot(5)
    encoded = count_encoded(monkeypatch)
    data = machine.snapshot()
    assert len(encoded) == 15 and compact(json.loads(data)).encode() == data
    driver.create("ONE_MORE")
    driver.apply("stream_delete", account="A", name="S3")
    encoded.clear()
    data = machine.snapshot()
    assert len(encoded) == 1
    streams = json.loads(data)["streams"]
    assert streams == [json.loads(compact(assignment.to_dict())) for assignment in machine.all_assignments()]
    assert list(json.loads(data)) == [
        "version", "index", "cluster", "digest", "next_gid", "streams", "nodes", "removed", "verdicts",
    ]  # fmt: skip
