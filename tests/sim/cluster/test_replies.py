"""The exam of replies is passed, and notices a mistake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.consumer.owner import shipment
from jetcluster.consumer.owner.pull_request import Priority
from jetcluster.stream.lead.answers import PubAcks
from jetcluster.stream.read import msg_get
from jetcluster.stream.read.get_request import GetRequest
from tests.sim.cluster import replies
from tests.sim.cluster.exam_rig import examined
from tests.sim.cluster.workloads import reply_exam

pytestmark = pytest.mark.sim

PARTS = ("_reads", "_dialogues", "_pages", "_inboxes")
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is asked, and not a part that is drawn."""
    monkeypatch.setattr(reply_exam, "TALKS", 99)


def test_each_read_is_there_once() -> None:
    assert len({(read.subject, read.body, str(read.headers)) for read in replies.reads()}) == len(replies.reads())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "small"), [("three", False), ("three", True), ("five", True), ("three and a plain one", False)]
)
def test_each_part_is_passed(monkeypatch: pytest.MonkeyPatch, layout: str, small: bool) -> None:
    result = examined(monkeypatch, "exam-replies", *PARTS, layout=layout, small=small)
    assert result.failure == ""
    assert result.counts["exam-replies: examined"] == len(PARTS)


def _agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GetRequest, "conflicts", False)


def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Priority, "refuse", lambda priority, request: b"")


def _headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msg_get, "message_object", lambda message, fields: {"seq": message.seq})


def _domestic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PubAcks, "batch", lambda acks, last_seq, batch_id, size: acks.ack(last_seq))


def _shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipment, "sorted", lambda found: list(found)[::-1], raising=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part", "plant", "noticed"),
    [
        ("_reads", _agreeing, "408 Bad Request"),
        ("_reads", _silent, "exam-replies, reads: CONSUMER.MSG.NEXT"),
        ("_reads", _headless, "exam-replies, reads: STREAM.MSG.GET"),
        ("_dialogues", _domestic, "exam-replies, dialogues: "),
        ("_inboxes", _shuffled, "exam-replies, inboxes: what comes by"),
    ],
)
def test_a_mistake_is_noticed(monkeypatch: pytest.MonkeyPatch, part: str, plant: Plant, noticed: str) -> None:
    plant(monkeypatch)
    assert noticed in examined(monkeypatch, "exam-replies", part).failure
