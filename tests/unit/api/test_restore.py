"""What a client may send to a restore beside an archive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.api import restore
from jetcluster.clock import SeededRng
from tests.unit.api.fakes import FakeBus


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_chunks_that_nobody_waits_for_are_bounded_whatever_their_size(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "MAX_WAITING_BYTES", 100_000)
    bus = FakeBus()
    context: Any = SimpleNamespace(rng=SeededRng(1))
    request: Any = SimpleNamespace(bus=bus)
    assignment: Any = SimpleNamespace(name="S")
    receiver = restore.Receiver(context, request, assignment)
    receiver.listen()
    taken = 0
    while bus.publish(receiver.subject, b"x" * size, b"reply") and taken < 10_000:
        taken += 1
    assert 10 < taken < 1000
