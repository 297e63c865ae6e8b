"""Very many subscriptions of one client: what they cost, and that they are bounded. A million of them is what
`python -m bench subscriptions` measures."""

from __future__ import annotations

from bench.scenarios.subscriptions import BYTES_LIMIT, measure


def test_memory_and_the_cost_of_a_publish_stay() -> None:
    found = measure(20_000)
    assert found.bytes_each < 2 * BYTES_LIMIT  # of few, more of the memory is the process's own
    assert found.publish_with_all_us < 5 * found.publish_us, "the machine is shared: twice is what the script asks"
    assert found.publish_after_us < 5 * found.publish_us
    assert found.seconds < 20
