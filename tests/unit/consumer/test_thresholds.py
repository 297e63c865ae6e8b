from __future__ import annotations

import random

import pytest

from jetcluster.consumer import thresholds
from jetcluster.consumer.pull_request import PullRequest
from jetcluster.consumer.thresholds import Thresholds


@pytest.mark.parametrize(("seed", "values"), [(1, 5), (2, 60), (3, 10_000)])
def test_against_a_search_through_all(monkeypatch: pytest.MonkeyPatch, seed: int, values: int) -> None:
    monkeypatch.setattr(thresholds, "BLOCK", 4)
    rng = random.Random(seed)
    found = Thresholds()
    waiting: dict[PullRequest, int] = {}
    for turn in range(3000):
        grows = turn % 600 < 300
        if rng.random() < (0.7 if grows else 0.3) or not waiting:
            request = PullRequest(b"%d" % turn, turn=turn)
            waiting[request] = rng.randint(1, values)
            found.add(waiting[request], request)
        else:
            request = rng.choice(list(waiting))
            found.remove(waiting.pop(request), request)
        reading = rng.randint(0, values + 1)
        reached = [request for request, value in waiting.items() if value <= reading]
        assert found.first(reading) is min(reached, key=lambda request: request.turn, default=None)
        assert bool(found) == bool(waiting)


class Turn(int):
    comparisons = 0

    def __lt__(self, other: int) -> bool:
        Turn.comparisons += 1
        return int(self) < int(other)


def test_a_look_compares_some_hundreds_whatever_came_and_went() -> None:
    found = Thresholds()
    requests = [PullRequest(b"r", turn=Turn(number)) for number in range(40_000)]
    for value, request in enumerate(requests):
        found.add(value, request)
    for reading in (-1, 200, 39_900, 50_000):
        Turn.comparisons = 0
        assert found.first(reading) is (None if reading < 0 else requests[0])
        assert Turn.comparisons < 1000
    for value, request in enumerate(requests):
        if value % 200:
            found.remove(value, request)
    Turn.comparisons = 0
    assert found.first(39_900) is requests[0]
    assert Turn.comparisons < 300
