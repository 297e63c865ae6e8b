from __future__ import annotations

import json

from jetcluster.errors import by_code
from jetcluster.objects.host import BucketHost, BucketReplies, ObjectLimits
from testkit.twins.time import ManualTime
from tests.unit.stream.fake_store import FakeBus, NaiveStore


def test_publishers_are_answered_in_the_form_of_a_pub_ack() -> None:
    bus, time = FakeBus(), ManualTime()
    host = BucketHost(
        "OBJ_b", NaiveStore(), bus, time, time.call_soon, lambda *message: None,  # type: ignore[arg-type]
        lambda command, done: False, lambda msg_id: None, lambda error: None, ObjectLimits, "hub",
    )  # fmt: skip
    host.tell(b"", b"x")
    host.refuse(b"", by_code(11001))
    assert bus.sent == []
    host.refuse(b"r", by_code(11001))
    ((subject, body, _),) = bus.sent
    error = {"code": 404, "err_code": 11001, "description": "object not found"}
    assert (subject, json.loads(body)) == (b"r", {"error": error, "stream": "OBJ_b", "seq": 0})
    assert host.keys == {"stream": "OBJ_b", "domain": "hub"}


def test_own_tokens_are_kept_and_all_else_goes_on() -> None:
    bus = FakeBus()
    own: list[tuple[bytes, bytes, bytes]] = []
    replies = BucketReplies(bus, lambda token, headers, body: own.append((token, headers, body)))
    first, second = replies.token(), replies.token()
    assert first != second
    replies.publish_many([(b"a", b"1"), (first, b"2"), (b"b", b"3")])
    replies.publish_many([(second, b"4")])
    replies.publish(first, b"", b"", b"HH")
    replies.publish(b"c", b"5", b"", b"HH")
    assert own == [(first, b"", b"2"), (second, b"", b"4"), (first, b"HH", b"")]
    assert bus.sent == [(b"a", b"1", b""), (b"b", b"3", b""), (b"c", b"5", b"HH")]
    assert bus.bulks == 1
