"""Servers together; `cases` has facts for each code."""

from __future__ import annotations

from jetcluster.doctor.cluster_rules import look_at_cluster
from jetcluster.doctor.facts import Absent
from tests.unit.doctor.cases import cluster


def test_a_well_cluster_has_none() -> None:
    assert list(look_at_cluster(cluster())) == []


def test_an_absent_server_and_what_it_means() -> None:
    gone = {"absent": (Absent("n3", 12.0),), "linked": ("n2",)}
    gone_too = {"absent": (Absent("n3", 15.0),), "linked": ("n1",)}
    found = {one.code: one for one in look_at_cluster(cluster(gone, gone_too, there=2))}
    assert set(found) == {"JC101", "JC202"}
    assert found["JC101"].what == "n3 is absent: it was last heard 12 s ago"
    assert found["JC202"].why.startswith("2 of 3 members are there, 2 are needed.")


def test_an_absent_server_that_knocks_and_is_refused_runs() -> None:
    gone = {"absent": (Absent("n3", 12.0),), "linked": ("n2",), "refused_peers": (("n3", "authorization violation"),)}
    found = {one.code: one for one in look_at_cluster(cluster(gone, {"absent": (Absent("n3", 9.0),)}, there=2))}
    begin = "It seems to run: n1 refuses it at the cluster port (authorization violation). It has stopped, or no link"
    assert found["JC101"].why.startswith(begin)


def test_the_spread_of_leaders_is_said_server_by_server() -> None:
    (found,) = look_at_cluster(cluster({"leads": 40}))
    assert found.what == "n1 leads 40 of 48 streams"
    assert found.why.startswith("An even share is 16: n1 40, n2 4, n3 4.")
