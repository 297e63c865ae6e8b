from __future__ import annotations

from typing import Any

import pytest

from jetcluster.client.listing import UnansweredError
from jetcluster.client.stream_state import StreamState
from jetcluster.pipeline.audit import Stored, describe, differing, lasting, odd_ones
from jetcluster.pipeline.copies import Copy, chosen, copies_of, fence, lags, mirrors_of, partial_because

STATE = StreamState("S", "2026", 5, 90, 80, 800, "n2", ("n2", "n1"), True, {})


def test_each_replica_is_a_copy_of_its_own() -> None:
    copies = copies_of(STATE, {"servers": "nats://x"}, "M@")
    assert [(copy.name, copy.peer) for copy in copies] == [("M@n2", "n2"), ("M@n1", "n1")]
    options = copies[1].reading(5, 90, "seq")
    assert (options["readPreference"], options["startingOffsets"], options["endingOffsets"]) == ("peer:n1", "5", "91")
    assert Copy("S", "S").reading(1, 2, "seq")["readPreference"] == "leader"


def test_lag_moves_the_fence_and_is_reported() -> None:
    first, second = copies_of(STATE, {})
    assert fence({first: 90, second: 70}, 90) == 70
    assert fence({first: 95, second: 93}, 90) == 90
    assert lags({first: 95, second: 70}, 90) == {"n1": 20}


def test_replicas_are_chosen_by_their_servers() -> None:
    copies = copies_of(STATE, {})
    assert chosen(copies, "all") == copies
    assert [copy.peer for copy in chosen(copies, "n1")] == ["n1"]
    with pytest.raises(ValueError, match="no replica on n7; there are n1, n2"):
        chosen(copies, "n1,n7")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"mirror": {"name": "S"}, "allow_direct": True}, ""),
        ({"mirror": {"name": "S", "opt_start_seq": 1}, "allow_direct": True}, ""),
        ({"mirror": {"name": "S", "opt_start_seq": 9}, "allow_direct": True}, "later"),
        ({"mirror": {"name": "S", "filter_subject": "a"}, "allow_direct": True}, "part"),
        ({"mirror": {"name": "S", "consumer": {"name": "c"}}, "allow_direct": True}, "its consumer"),
        ({"mirror": {"name": "S"}}, "allow_direct"),
    ],
)
def test_a_mirror_of_a_part_is_none_to_compare(config: dict[str, Any], why: str) -> None:
    assert why in partial_because(config)
    assert bool(why) == bool(partial_because(config))


def test_all_pages_of_streams_are_looked_through() -> None:
    streams = [{"config": {"name": f"S{n}"}} for n in range(5)]
    streams[4]["config"] |= {"mirror": {"name": "S", "filter_subject": "a"}}

    class Pages:
        def api(self, subject: str, body: dict[str, int], timeout: float) -> dict[str, Any]:
            assert subject == "STREAM.LIST"
            return {"total": 5, "streams": streams[body["offset"] : body["offset"] + 2]}

    whole, other = mirrors_of(Pages(), "S")  # type: ignore[arg-type]
    assert (whole, list(other)) == ([], ["S4"])


def test_a_stream_that_does_not_answer_may_be_a_mirror() -> None:
    class Silent:
        def api(self, subject: str, body: dict[str, int], timeout: float) -> dict[str, Any]:
            return {"total": 1, "streams": [], "missing": ["M"]}

    with pytest.raises(UnansweredError, match="M"):
        mirrors_of(Silent(), "S")  # type: ignore[arg-type]


A, B = (1, 11), (2, 22)


def test_only_what_is_not_the_same_everywhere_is_named() -> None:
    copies = {"n1": {1: A, 2: B, 4: A}, "n2": {1: A, 2: A, 4: A}, "n3": {1: A, 2: B, 3: B}}
    assert differing(copies) == {
        2: {"n1": B, "n2": A, "n3": B},
        3: {"n1": None, "n2": None, "n3": B},
        4: {"n1": A, "n2": A, "n3": None},
    }
    assert differing({"n1": {1: A}, "n2": {1: A}}) == {}


def test_what_changed_between_two_readings_is_no_damage() -> None:
    """A deletion that one replica had applied: the other has it the second time."""
    first = differing({"n1": {1: A, 2: B}, "n2": {1: A, 3: A}})
    again = differing({"n1": {1: A}, "n2": {1: A, 3: A}})
    assert lasting(first, again) == {3: {"n1": None, "n2": A}}


def test_a_copy_that_does_not_answer_again_takes_no_difference_with_it() -> None:
    first = {3: {"n1": A, "n2": B, "n3": A}, 4: {"n1": A, "n2": A, "n3": B}, 5: {"n1": A, "n2": B, "n3": A}}
    assert lasting(first, {3: {"n1": A, "n2": B}, 5: {"n1": A, "n2": None}}) == {3: {"n1": A, "n2": B}}


def test_a_majority_says_who_is_odd() -> None:
    assert odd_ones({"n1": A, "n2": B, "n3": A}) == ["n2"]
    assert odd_ones({"n1": None, "n2": A, "n3": None}) == ["n2"]
    assert odd_ones({"n1": A, "n2": B}) == []


def test_the_fields_that_differ_are_shown() -> None:
    whole = Stored(5, "a.b", b"NATS/1.0\r\nK: 1\r\n\r\n", b"x" * 500)
    found = describe({"n1": whole, "n2": whole._replace(data=b"y\xff"), "n3": None})
    assert found["differs"] == ["data", "missing"]
    assert found["copies"]["n1"] == {"subject": "a.b", "bytes": 500, "data": "x" * 80}
    assert found["copies"]["n2"] == {"subject": "a.b", "bytes": 2, "data": "y\\xff"}
    assert found["copies"]["n3"] is None
    assert describe({"n1": whole, "n2": whole._replace(time_ns=6)})["copies"]["n2"]["time_ns"] == 6
