from __future__ import annotations

import json

from jetcluster.clock import ManualTime, SeededRng
from jetcluster.model.advisory import Advisories, leader_elected_subject


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
