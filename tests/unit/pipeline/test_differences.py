from __future__ import annotations

from jetcluster.pipeline.audit import Stored, describe, differing, lasting, odd_ones

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
