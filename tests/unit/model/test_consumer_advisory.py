from __future__ import annotations

import json

from jetcluster.model import advisory as events
from jetcluster.model.advisory import Advisories, Event
from testkit.twins.time import ManualTime, SeededRng

RENDER = Advisories(ManualTime(), SeededRng(1)).render


def told(event: Event) -> tuple[bytes, dict[str, object]]:
    fields = json.loads(RENDER(event))
    assert len(fields.pop("id")) == 22 and fields.pop("timestamp").endswith("Z")
    return event.subject, fields


def test_max_deliveries() -> None:
    assert told(events.max_deliveries("S", "C", 7, 3)) == (
        b"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.C",
        {
            "type": "io.nats.jetstream.advisory.v1.max_deliver",
            "stream": "S",
            "consumer": "C",
            "stream_seq": 7,
            "deliveries": 3,
        },
    )


def test_reason_of_a_termination_only_when_there_is_one() -> None:
    assert "reason" not in told(events.terminated("S", "C", 1, 2, 3, ""))[1]
    assert told(events.terminated("S", "C", 1, 2, 3, "why"))[1]["reason"] == "why"


def test_metrics_have_another_type_and_subject() -> None:
    subject, fields = told(events.ack_metric("S", "C", 1, 2, 3, 4))
    assert subject == b"$JS.EVENT.METRIC.CONSUMER.ACK.S.C"
    assert fields["type"] == "io.nats.jetstream.metric.v1.consumer_ack" and fields["ack_time"] == 4


def test_pins() -> None:
    assert told(events.pinned("S", "C", "g", "id"))[1]["pinned_id"] == "id"
    subject, fields = told(events.unpinned("S", "C", "g", "admin"))
    assert subject == b"$JS.EVENT.ADVISORY.CONSUMER.UNPINNED.S.C"
    assert (fields["type"], fields["reason"]) == ("io.nats.jetstream.advisory.v1.consumer_group_unpinned", "admin")
