from __future__ import annotations

import json

from jetcluster.model.advisory import Advisories, batch_abandoned, for_system_account, leader_elected, quorum_lost
from testkit.twins.time import ManualTime, SeededRng


def test_leader_elected() -> None:
    advisories = Advisories(ManualTime(), SeededRng(1), "N1")
    told = leader_elected("S", "N1")
    assert told.subject == b"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.S"
    event = json.loads(advisories.render(told))
    assert list(event) == ["type", "id", "timestamp", "stream", "leader"]
    assert event["type"] == "io.nats.jetstream.advisory.v1.stream_leader_elected"
    system = json.loads(advisories.render(for_system_account(told, "A")))
    assert list(system) == ["type", "id", "timestamp", "account", "stream", "leader"]
    assert system["account"] == "A"
    assert system["id"] != event["id"]
    assert len(event["id"]) == 22


def test_quorum_lost() -> None:
    told = quorum_lost("S")
    assert told.subject == b"$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.S"
    event = json.loads(Advisories(ManualTime(), SeededRng(1), "N1").render(told))
    assert list(event) == ["type", "id", "timestamp", "stream"]
    assert event["type"] == "io.nats.jetstream.advisory.v1.stream_quorum_lost"


def test_batch_abandoned_on_the_real_subject_and_on_the_specifications() -> None:
    advisories = Advisories(ManualTime(), SeededRng(1), "N1", "D")
    events = batch_abandoned("S", b"id\xff", "large")
    assert [event.subject for event in events] == [
        b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S",
        b"$JS.EVENT.ADVISORY.BATCH_ABANDONED.S",
    ]
    for told, kind in zip(events, ("stream_batch_abandoned", "batch_abandoned"), strict=True):
        event = json.loads(advisories.render(told))
        assert event.pop("id") and event.pop("timestamp")
        assert event == {
            "type": f"io.nats.jetstream.advisory.v1.{kind}",
            "stream": "S",
            "batch": "id\ufffd",
            "reason": "large",
            "domain": "D",
        }
