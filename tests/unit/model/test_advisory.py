from __future__ import annotations

import json

from jetcluster.clock import ManualTime, SeededRng
from jetcluster.model.advisory import Advisories, batch_abandoned_events, leader_elected_subject


def test_leader_elected() -> None:
    advisories = Advisories(ManualTime(), SeededRng(1), "N1")
    event = json.loads(advisories.leader_elected("S", "N1", [{"name": "N1", "current": True}]))
    assert leader_elected_subject("S") == b"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S"
    assert list(event) == ["type", "id", "timestamp", "stream", "leader", "replicas"]
    assert event["type"] == "io.nats.jetstream.advisory.v1.stream_leader_elected"
    system = json.loads(advisories.leader_elected("S", "N1", [], account="A"))
    assert system["account"] == "A"
    assert system["id"] != event["id"]
    assert len(event["id"]) == 22


def test_batch_abandoned_on_the_real_subject_and_on_the_specifications() -> None:
    advisories = Advisories(ManualTime(), SeededRng(1), "N1", "D")
    events = dict(batch_abandoned_events("S"))
    assert list(events) == [
        b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S",
        b"$JS.EVENT.ADVISORY.BATCH_ABANDONED.S",
    ]
    for kind in events.values():
        event = json.loads(advisories.batch_abandoned(kind, "S", b"id\xff", "large"))
        assert event.pop("id") and event.pop("timestamp")
        assert event == {
            "type": f"io.nats.jetstream.advisory.v1.{kind}",
            "stream": "S",
            "batch": "id\ufffd",
            "reason": "large",
            "domain": "D",
        }
    assert json.loads(advisories.batch_abandoned("batch_abandoned", "S", b"b", "timeout", "A"))["account"] == "A"
