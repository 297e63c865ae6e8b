"""The machine; `cases` has facts for each code."""

from __future__ import annotations

from jetcluster.doctor.machine_rules import look_at_machine
from tests.unit.doctor.cases import machine


def test_a_good_machine_has_none() -> None:
    assert list(look_at_machine(machine())) == []


def test_a_disk_is_judged_by_the_usual_time() -> None:
    (found,) = look_at_machine(machine(sync_seconds=(0.03, 0.025, 0.4)))
    assert found.what == "An fdatasync in /data takes 0.03 s, 0.4 s at most"
    assert list(look_at_machine(machine(sync_seconds=(0.001, 0.001, 0.4)))) == []
