from __future__ import annotations

from jetcluster.objects.replies import BucketReplies
from tests.unit.stream.twins import RecordingBus


def test_own_tokens_are_kept_and_all_else_goes_on() -> None:
    bus = RecordingBus()
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
