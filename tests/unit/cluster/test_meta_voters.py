"""Who votes in the meta group: the rules of cluster/meta_voters.py."""

from __future__ import annotations

from jetcluster.cluster.meta_voters import has_place, replaced


def machine(peer: str) -> str:
    """`a0`, `a1`: workers of machine a; a name without a number is no worker."""
    return peer[0].upper() if peer[-1].isdigit() else peer


def test_a_machine_has_one_vote() -> None:
    assert has_place("b1", ["a0"], machine)
    assert not has_place("a1", ["a0"], machine)


def test_five_workers_vote() -> None:
    assert has_place("e0", ["a0", "b0", "c0", "d0"], machine)
    assert not has_place("f0", ["a0", "b0", "c0", "d0", "e0"], machine)


def test_every_node_that_is_no_worker_votes() -> None:
    assert has_place("plain", ["a0", "b0", "c0", "d0", "e0", "other"], machine)


def test_a_worker_takes_the_vote_of_one_that_is_away() -> None:
    assert replaced(["a0", "b0", "c0"], {"b0"}, ["d0"], machine) == ("a0", "c0", "d0")


def test_no_machine_gets_a_second_vote_by_that() -> None:
    assert replaced(["a0", "b0", "c0"], {"b0"}, ["a1", "c1"], machine) is None
    assert replaced(["a0", "b0", "c0"], {"b0", "c0"}, ["d0", "d1"], machine) == ("a0", "d0", "c0")


def test_another_worker_of_the_same_machine_may_take_it() -> None:
    assert replaced(["a0", "b0", "c0"], {"b0"}, ["b1", "d0"], machine) == ("a0", "c0", "b1")


def test_as_many_vote_as_before() -> None:
    voters = replaced(["a0", "b0", "c0", "d0", "e0"], {"a0", "b0"}, ["f0", "g0", "h0"], machine)
    assert voters == ("c0", "d0", "e0", "f0", "g0")
