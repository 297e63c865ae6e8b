"""Findings of several servers become one list, worst first and bounded."""

from __future__ import annotations

import json

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.finding import Finding, Subject
from jetcluster.doctor.report import MAX_PER_CODE, Collector, Report, merged


def note(name: str) -> Finding:
    return kinds.ONE_REPLICA.found(Subject(account="A", stream=name), f"{name} has one replica")


def collected(*found: Finding) -> Report:
    collector = Collector()
    collector.add(found)
    return collector.report()


def test_worst_first() -> None:
    bad = kinds.ABSENT.found(Subject("n2"), "n2 is absent")
    report = collected(note("B"), note("A"), bad)
    assert [one.subject.text for one in report.findings] == ["n2", "A > A", "A > B"]
    assert report.worst == "bad"
    assert report.counts() == {"bad": 1, "warn": 0, "note": 2}
    assert (Report([], {}).worst, Report([], {}).counts()) == ("", {"bad": 0, "warn": 0, "note": 0})


def test_many_of_a_code_are_counted() -> None:
    report = collected(*(note(f"S{number:03}") for number in range(MAX_PER_CODE + 5)))
    assert len(report.findings) == MAX_PER_CODE
    assert report.left_out == {"JC312": 5}
    assert report.counts()["note"] == MAX_PER_CODE + 5
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report


def test_the_same_trouble_of_several_servers_is_one_finding() -> None:
    report = merged([("n2", collected(note("S"))), ("n1", collected(note("S"), note("T"))), ("", collected(note("U")))])
    assert [(one.subject.stream, one.told_by) for one in report.findings] == [
        ("S", ("n1", "n2")),
        ("T", ("n1",)),
        ("U", ()),
    ]


def test_a_report_of_several_keeps_who_told() -> None:
    first = merged([("n1", collected(note("S")))])
    assert merged([("", first), ("", collected(note("T")))]).findings[0].told_by == ("n1",)


def test_what_several_servers_leave_out_is_added_up() -> None:
    many = [note(f"S{number:03}") for number in range(MAX_PER_CODE + 5)]
    report = merged([("n1", collected(*many)), ("n2", collected(note("T")))])
    assert (len(report.findings), report.left_out) == (MAX_PER_CODE, {"JC312": 6})
