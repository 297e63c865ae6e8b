"""Pauses between a leaf's attempts at a hub."""

from __future__ import annotations

from typing import Any

from jetcluster.server.leaf.connection import LOOP_DELAY_SECONDS
from jetcluster.server.leaf.redial import MAX_DELAY_SECONDS, MAX_UNREACHED_DELAY_SECONDS, STALE_SECONDS, Redial

UNREACHED: dict[str, Any] = {"reached": False, "was_up": False, "told": 0.0}
REFUSED: dict[str, Any] = UNREACHED | {"reached": True}
LOST: dict[str, Any] = REFUSED | {"was_up": True}
LOOP: dict[str, Any] = LOST | {"told": LOOP_DELAY_SECONDS}


def pauses(*ends: tuple[float, dict[str, Any]]) -> list[float]:
    redial = Redial(lambda: 0.0)
    return [redial.pause(now, 1.0, **end) for now, end in ends]


def test_pauses_double_up_to_a_limit_and_begin_again_after_a_link() -> None:
    assert pauses(*[(0.0, REFUSED)] * 5) == [1.0, 2.0, 4.0, MAX_DELAY_SECONDS, MAX_DELAY_SECONDS]
    assert pauses(*[(0.0, UNREACHED)] * 3) == [1.0, MAX_UNREACHED_DELAY_SECONDS, MAX_UNREACHED_DELAY_SECONDS]
    assert pauses((0.0, REFUSED), (0.0, REFUSED), (0.0, LOST), (0.0, REFUSED)) == [1.0, 2.0, 1.0, 2.0]
    assert 1.0 < Redial(lambda: 0.5).pause(0.0, 1.0, **REFUSED) < 1.2


def test_after_a_loop_it_waits_long() -> None:
    assert pauses((0.0, LOOP), (30.0, LOOP)) == [LOOP_DELAY_SECONDS] * 2


def test_a_loop_right_after_a_lost_link_may_be_that_link() -> None:
    """Seed 21620004: a link was cut, and the hub's server at its other end had not noticed when another one of the hub
    got the next link; so the leaf heard its own interest, and stayed away for 30 s."""
    assert pauses((100.0, LOST), (101.0, LOOP), (103.0, LOOP), (100.0 + STALE_SECONDS, LOOP)) == [
        1.0, 2.0, 4.0, LOOP_DELAY_SECONDS,
    ]  # fmt: skip
