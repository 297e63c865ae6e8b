"""Servers' answers put together."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cli.cluster_state import NO_ANSWER, OK, UNWELL, ClusterState, ago, cluster_of, lag_of, natural
from tests.unit.cli.fake_cluster import follower, healthy, jsz, meta, page, ping, server, stream

PING = "$SYS.REQ.SERVER.PING"


def state_of(answers: dict[str, Any]) -> ClusterState:
    return cluster_of(*(answers[name] for name in (PING, f"{PING}.VARZ", f"{PING}.HEALTHZ", f"{PING}.JSZ")))


def test_a_healthy_cluster() -> None:
    s = {"n1": (stream("S", "n1", (follower("n2"), follower("n10"))),), "n2": (stream("S", "n1"),)}
    cluster = state_of(healthy("n10", "n1", "n2", streams=s))
    assert cluster.troubles() == [] and (cluster.name, cluster.meta_leader, cluster.meta_quorum) == ("c1", "n10", 2)
    assert [server.name for server in cluster.servers] == ["n1", "n2", "n10"]
    first, second, last = cluster.servers
    assert (first.health, first.meta, first.version, first.uptime, first.memory) == (
        OK,
        "voter",
        "0.2.0",
        "6s",
        80_500_000,
    )
    assert (first.leaders, first.streams, second.leaders, second.streams, last.meta) == (1, 1, 0, 1, "leader")
    (group,) = cluster.streams
    assert (group.label, group.leader, group.holders, group.messages) == ("A/S", "n1", ["n1", "n2"], 10)
    assert not group.lags() and not group.trouble()


def test_the_reasons_of_a_server_that_is_not_well() -> None:
    answers = healthy("n1", "n2")
    answers[f"{PING}.HEALTHZ"] = [
        page("n1", status="error", errors=[{"type": "HEALTH", "error": "the disk is full"}, {"error": "S lags"}]),
        page("n2", status="unavailable", error="no meta leader"),
    ]
    cluster = state_of(answers)
    assert [server.health for server in cluster.servers] == [UNWELL, UNWELL]
    assert cluster.troubles() == ["n1: the disk is full", "n1: S lags", "n2: no meta leader"]
    del answers[f"{PING}.HEALTHZ"][1]
    assert state_of(answers).troubles()[-1] == "n2: it did not say how it is"


def test_members_and_neighbours_that_do_not_answer_are_there() -> None:
    answers = healthy("n1", "n2")
    answers[PING] = [ping("n1", ("n2", "n4")), ping("n2", ("n1",))]
    answers[f"{PING}.JSZ"] = [jsz("n1", meta=meta("n1", 3, (follower("n2"), follower("n3", offline=True)))), jsz("n2")]
    cluster = state_of(answers)
    assert {server.name: server.health for server in cluster.servers} == {
        "n1": OK, "n2": OK, "n3": NO_ANSWER, "n4": NO_ANSWER,
    }  # fmt: skip
    assert cluster.troubles() == [
        "n3: no answer; the meta group has it as a member, last heard of 12s ago",
        "n4: no answer, but other servers are connected to it",
    ]


def test_groups_without_a_leader() -> None:
    answers = healthy("n1", "n2")
    answers[f"{PING}.JSZ"] = [
        jsz("n1", stream("S", "", messages=7), stream("T", "n3", messages=5),
            meta=meta("", 3, (follower("n3", offline=True),))),
        jsz("n2", stream("S", "", messages=7), meta=meta("", 3)),
    ]  # fmt: skip
    cluster = state_of(answers)
    assert cluster.troubles()[1:] == [
        "the meta group has no leader: 2 of 3 servers are needed",
        "stream A/S: no leader; replicas on n1, n2",
        "stream A/T: its leader n3 does not answer; replicas on n1",
    ]
    assert [group.messages for group in cluster.streams] == [7, 5]


def test_streams_of_which_no_server_tells() -> None:
    def told(kind: str, count: int, name: str, *servers: str) -> dict[str, Any]:
        return {kind: {"streams": count, "first": [{"account": "A", "name": name, "servers": list(servers)}]}}

    answers = healthy("n1", "n2")
    lost, away = told("lost", 1, "GONE"), told("away", 1, "AWAY", "n10", "n3")
    answers[f"{PING}.JSZ"][0] = jsz("n1", meta={**meta("n1"), **lost, **away})
    assert state_of(answers).troubles() == [
        "stream A/AWAY: nobody answers for it; replicas on n3, n10", "stream A/GONE: it is on no server any more",
    ]  # fmt: skip
    answers[f"{PING}.JSZ"][0] = jsz("n1", meta={**meta("n1"), **told("away", 8, "S", "n2")})
    answers[f"{PING}.JSZ"][1] = jsz("n2", stream("S", "n2"))
    cluster = state_of(answers)
    assert cluster.troubles() == [] and [group.leader for group in cluster.streams] == ["n2"], "n2 tells itself"
    assert cluster.notes == ["7 more streams are on no server that answers"]


def test_a_server_with_too_many_streams_for_an_answer_is_named() -> None:
    answers = healthy("n1", "n2")
    answers[f"{PING}.JSZ"][1] = {"server": server("n2"), "error": {"code": 413, "description": "too large"}}
    cluster = state_of(answers)
    assert cluster.notes == ["n2 does not list its streams: too large"] and cluster.troubles() == []


def test_a_standalone_server_leads_what_it_has() -> None:
    alone: dict[str, Any] = {**stream("S", "n1"), "cluster": None}
    answers = healthy("n1")
    answers[f"{PING}.JSZ"] = [jsz("n1", alone)]
    cluster = state_of(answers)
    assert cluster.troubles() == [] and cluster.meta_size == 0 and cluster.servers[0].leaders == 1


@pytest.mark.parametrize(
    ("replica", "text"),
    [
        (follower("n2"), ""),
        (follower("n2", lag=12_345), "n2 lags by 12,345"),
        (follower("n2", offline=True, lag=3), "n2 is offline, last heard of 12s ago"),
        (follower("n2", current=False), "n2 is not current"),
    ],
)
def test_how_a_replica_lags(replica: dict[str, Any], text: str) -> None:
    assert lag_of(replica) == text


def test_durations_and_the_order_of_names() -> None:
    seconds = 1_000_000_000
    assert [ago(ns) for ns in (0, 850_000_000, 12 * seconds, 60 * seconds, 11_105 * seconds, 90_061 * seconds)] == [
        "0ms", "850ms", "12s", "1m", "3h5m", "1d1h",
    ]  # fmt: skip
    assert sorted(["n10", "n2", "a", "n1b", "n1"], key=natural) == ["a", "n1", "n1b", "n2", "n10"]
