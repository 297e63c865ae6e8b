"""Which loops the house rule finds (scripts/long_loops.py)."""

from __future__ import annotations

import ast

import pytest

from scripts.long_loops import long_loops


@pytest.mark.parametrize(
    "loop",
    [
        "for one in self.queue: f(one)",
        "for one in list(self._pending.values()): f(one)",
        "for at, one in enumerate(sorted(state.waiting)): f(one)",
        "return [one for one in route.clients if one.open]",
        "return any(one.open for one in self.connections)",
        "return {one: 1 for other in self.few for one in other.subscriptions}",
    ],
)
def test_a_loop_over_all_is_found(loop: str) -> None:
    assert long_loops(ast.parse(f"def f(self):\n    {loop}\n")) == [2]


@pytest.mark.parametrize(
    "loop",
    [
        "for one in self.few: f(one)",
        "for one in self.queue[:MOST]: f(one)",
        "for one in islice(self.queue, 10): f(one)",
        "for one in self.queue: yield one",
        "for number in range(len(self.queue)): f(number)",
        "return self.queue.first()",
    ],
)
def test_one_that_is_bounded_or_goes_in_steps_is_not(loop: str) -> None:
    assert long_loops(ast.parse(f"def f(self):\n    {loop}\n")) == []


def test_a_function_within_a_generator_is_looked_at_by_itself() -> None:
    text = "def f(self):\n    def g():\n        for one in self.queue: h(one)\n    yield g\n"
    assert long_loops(ast.parse(text)) == [3]
