"""The exam of room notices mistakes in what streams reserve on servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jetcluster.cluster import meta_service
from jetcluster.meta import places
from jetcluster.meta.placement import place
from tests.sim.cluster.exam_rig import examined

pytestmark = [pytest.mark.sim, pytest.mark.thorough]


@pytest.mark.parametrize("more", [-1, 1], ids=["one byte too little", "one byte too much"])
def test_a_byte_of_room_is_noticed(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    def wrong(name: str, replicas: int, candidates: list[Any], *rest: Any, **options: Any) -> Any:
        return place(name, replicas, [replace(one, room=one.room + more) for one in candidates], *rest, **options)

    monkeypatch.setattr(meta_service, "place", wrong)
    assert "exam-rooms, any_history" in examined(monkeypatch, "exam-rooms", "_any_history").failure


def test_room_that_is_not_given_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places.Places, "drop", lambda places, assignment: None)
    assert examined(monkeypatch, "exam-rooms", "_any_history").failure
