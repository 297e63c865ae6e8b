"""Levels: which commands all nodes of a group understand."""

from __future__ import annotations

from jetcluster.raft.levels import Levels
from jetcluster.raft.membership import Config


def test_a_group_has_the_level_of_its_oldest_member() -> None:
    levels = Levels("A", 7)
    config = Config(("A", "B"), ("C",))
    assert levels.of(Config(("A",))) == 7
    levels.heard("B", 9)
    assert levels.of(config) == 0, "nothing is known of the learner"
    levels.heard("C", 5)
    assert levels.of(config) == 5
    levels.heard("C", 8)
    assert levels.of(config) == 8, "a member's own level does not bind the others, and it leads"
    assert levels.of(Config(("B", "C"))) == 8


def test_who_is_silent_is_what_is_on_record() -> None:
    levels = Levels("A", 7)
    levels.recorded = {"B": 6}.__getitem__
    assert levels.told("B") is None and levels.of(Config(("A", "B"))) == 6
    levels.heard("B", 7)
    assert levels.told("B") == 7 == levels.of(Config(("A", "B")))
    levels.forget("B")
    assert levels.told("B") is None and levels.of(Config(("A", "B"))) == 6
    assert levels.told("A") == 7
