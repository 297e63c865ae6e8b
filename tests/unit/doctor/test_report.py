"""Findings of several servers become one list, worst first and bounded."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from jetcluster.doctor import catalogue as kinds
from jetcluster.doctor.cluster_rules import look_at_cluster
from jetcluster.doctor.config_rules import look_at_account
from jetcluster.doctor.facts import Certificate, Remote, UpstreamFacts
from jetcluster.doctor.finding import Finding, Subject
from jetcluster.doctor.machine_rules import look_at_machine
from jetcluster.doctor.report import MAX_PER_CODE, Collector, Report, merged
from jetcluster.doctor.server_rules import look_at_server
from jetcluster.doctor.stream_rules import look_at_stream
from tests.unit.doctor.cases import CASES, Case, account, cluster, machine, server, stream


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
    assert Report.from_dict(json.loads(json.dumps(report.to_merge()))) == report
    assert "shared" not in report.to_dict()


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_merging_loses_nothing_that_one_server_tells(case: Case) -> None:
    found = list(case.look(case.fires))
    assert sorted(one.what for one in merged([("n1", collected(*found))]).findings) == sorted(o.what for o in found)
    assert len(merged([("n1", collected(*found)), ("n2", collected(*found))]).findings) == len(found)


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (look_at_machine(machine(warnings=("a", "b", "c"))), 3),
        (look_at_machine(machine(unresolved=(("n8", "x"), ("n9", "x")), unreachable=(("a:1", "r"), ("b:1", "r")))), 4),
        (look_at_machine(machine(taken_ports=(("clients", 4222, True), ("cluster", 6222, True)))), 2),
        (look_at_server(server(certificates=(Certificate("clients", -1.0), Certificate("cluster", -1.0)))), 2),
        (look_at_server(server(storage=90, max_storage=100, stored_memory=95, max_memory=100)), 2),
        (look_at_server(server(leaf_remotes=(Remote("A", "h1", False), Remote("A", "h2", False)))), 2),
        (look_at_stream(stream(upstreams=(UpstreamFacts("U", 0, 99, "", False), UpstreamFacts("V", 0, 99, "", False)))),
         2),
        (look_at_account(account(storage=95, max_storage=100, streams=10, max_streams=10)), 2),
        (look_at_cluster(cluster({"linked": ()}, {"linked": ("n3",)}, {"linked": ("n2",)})), 2),
    ],
)  # fmt: skip
def test_several_of_a_code_about_one_thing_are_several(found: Iterable[Finding], count: int) -> None:
    told = list(found)
    assert len(told) == count
    for reports in ([collected(*told)], [collected(*told), collected(*reversed(told))]):
        report = merged([(f"n{place}", one) for place, one in enumerate(reports)])
        assert sorted(one.what for one in report.findings) == sorted(one.what for one in told)
        assert len({one.key for one in report.findings}) == count


@pytest.mark.parametrize("number", [MAX_PER_CODE + 5, 1000])
def test_the_same_trouble_left_out_by_several_is_counted_once(number: int) -> None:
    kind = kinds.LEADERLESS
    many = [kind.found(Subject(account="A", stream=f"S{one:04}"), "it has no leader") for one in range(number)]
    told = [collected(*many), collected(*reversed(many)), collected(*many[::2])]
    sent = [Report.from_dict(json.loads(json.dumps(one.to_merge()))) for one in told]
    report = merged([(f"n{place}", one) for place, one in enumerate(sent)])
    assert (report.counts()["bad"], report.left_out) == (number, {"JC301": number - MAX_PER_CODE})
