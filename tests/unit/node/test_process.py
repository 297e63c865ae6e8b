"""The garbage collector stops the loop, and for how long depends on how much it looks at."""

from __future__ import annotations

import gc

from jetcluster.node.process import GC_THRESHOLDS

MOST = 300_000
"""Objects that a collection of the second generation looks at: some 20 ms."""


def test_a_collection_of_the_second_generation_looks_at_few_objects() -> None:
    before, was_on = gc.get_threshold(), gc.isenabled()
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 1:
            looked_at.append(len(gc.get_objects(0)) + len(gc.get_objects(1)))

    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    gc.callbacks.append(note)
    try:
        kept: list[list[int]] = [[] for _ in range(2_000_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        if not was_on:
            gc.disable()
    assert len(kept) == 2_000_000
    assert looked_at and max(looked_at) <= MOST
