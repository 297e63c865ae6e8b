"""Streams; `cases` has facts for each code."""

from __future__ import annotations

from jetcluster.doctor.facts import StateFetch
from jetcluster.doctor.stream_rules import look_at_stream
from tests.unit.doctor.cases import replica, stream, upstream


def test_a_well_stream_has_none() -> None:
    assert list(look_at_stream(stream())) == []


def test_how_long_a_catch_up_takes() -> None:
    pull = StateFetch(done=256 << 20, total=1 << 30, seconds=20.0, peer="n1", stalled=False)
    (found,) = look_at_stream(stream(leading=False, leader="n1", replicas=(), catch_up=pull))
    assert found.why.startswith("256.0 MiB of 1.0 GiB after 20 s, from n1: about 60 s more at this rate.")
    assert found.figures["seconds_left"] == 60.0


def test_how_many_more_servers_may_go() -> None:
    (found,) = look_at_stream(stream(replicas=replica(linked=False, name="n2"), present=2))
    assert found.what == "S is without 1 of its 3 replicas: n2"
    assert found.why.startswith("2 are there, 2 are needed, so none more may go.")


def test_a_stream_without_a_leader() -> None:
    (found,) = look_at_stream(stream(leading=False, leader="", present=1))
    assert found.why.startswith("Seen by n1: 1 of its 3 replicas are there, 2 are needed.")
    assert found.subject.server == "", "each of its servers sees the same"


def test_a_silent_upstream_is_told_with_its_last_answer() -> None:
    (found,) = look_at_stream(stream(upstreams=upstream(silent=12.0, error="stream not found")))
    assert found.what == "S mirrors U, of which nothing is heard for 12 s"
    assert found.why.endswith(", or it was deleted. Its last answer: stream not found")
    (found,) = look_at_stream(stream(upstreams=upstream(silent=-1.0)))
    assert found.what == "S mirrors U, of which nothing was heard since this server leads"
