from __future__ import annotations

import json

from jetcluster.errors import by_code
from jetcluster.objects.host import BucketHost, ObjectLimits
from testkit.twins.time import ManualTime
from tests.unit.stream.twins import NaiveStore, RecordingBus


def test_publishers_are_told_in_the_form_of_a_pub_ack() -> None:
    bus, time = RecordingBus(), ManualTime()
    host = BucketHost(
        "OBJ_b", NaiveStore(), bus, time, time.call_soon, lambda *message: None,  # type: ignore[arg-type]
        lambda command, done: False, lambda msg_id: None, lambda error: None, ObjectLimits(), "hub",
    )  # fmt: skip
    host.tell(b"", b"x")
    host.refuse(b"", by_code(11001))
    assert bus.sent == []
    host.refuse(b"r", by_code(11001))
    ((subject, body, _),) = bus.sent
    error = {"code": 404, "err_code": 11001, "description": "object not found"}
    assert (subject, json.loads(body)) == (b"r", {"error": error, "stream": "OBJ_b", "seq": 0})
    assert host.keys == {"stream": "OBJ_b", "domain": "hub"}
