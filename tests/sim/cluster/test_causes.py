"""Failures of a night are summed up by cause."""

from __future__ import annotations

from tests.sim.cluster.batch import Outcome
from tests.sim.cluster.causes import SHOWN, by_cause, summary


def outcome(seed: int, failure: str) -> Outcome:
    return Outcome(seed, failure, "", 0.0, 0.0)


def test_failures_that_differ_in_numbers_have_one_cause() -> None:
    found = [
        outcome(1, ""),
        outcome(2, "at 3.250: n1, group 7: it is lost"),
        outcome(5, "Traceback\n  in line 3\nKeyError: 'x'"),
        outcome(4, "at 13.750: n3, group 12: it is lost"),
    ]
    assert [[one.seed for one in some] for some in by_cause(found).values()] == [[2, 4], [5]]
    assert summary(found).splitlines() == [
        "2 times: at 3.250: n1, group 7: it is lost",
        "    seeds 2, 4",
        "    shrink: python -m tests.sim.cluster --shrink 2",
        "1 times: KeyError: 'x'",
        "    seeds 5",
        "    shrink: python -m tests.sim.cluster --shrink 5",
    ]


def test_nothing_failed() -> None:
    assert summary([outcome(1, "")]) == ""


def test_many_seeds_of_one_cause_are_not_all_named() -> None:
    text = summary(outcome(seed, "it is lost") for seed in range(SHOWN + 3))
    assert "and 3 more" in text and len(text.splitlines()) == 3
