from __future__ import annotations

import json

from jetcluster import errors
from jetcluster.stream.answers import PubAcks
from jetcluster.stream.ports import Duplicate, PublishResult


def test_exact_bytes() -> None:
    acks = PubAcks("S")
    assert acks.ack(12) == b'{"stream":"S","seq":12}'
    assert acks.ack(Duplicate(3)) == b'{"stream":"S","seq":3,"duplicate": true}'
    assert acks.ack(errors.by_code(10071, seq=3)) == (
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"S","seq":0}'
    )
    assert PubAcks("S", "D").ack(12) == b'{"stream":"S","domain":"D","seq":12}'


def test_bulk_leaves_out_messages_without_reply() -> None:
    assert PubAcks("S").render(PublishResult(7, 3, None), [b"r7", b"", b"r9"]) == [
        (b"r7", b'{"stream":"S","seq":7}'),
        (b"r9", b'{"stream":"S","seq":9}'),
    ]
    mixed = PubAcks("S").render(PublishResult(7, 3, [7, Duplicate(1), errors.by_code(10054)]), [b"a", b"b", b"c"])
    assert [(reply, json.loads(ack).get("seq"), "error" in json.loads(ack)) for reply, ack in mixed] == [
        (b"a", 7, False), (b"b", 1, False), (b"c", 0, True)
    ]  # fmt: skip


def test_any_stream_name_gives_json() -> None:
    for name in ('quo"te', "100%d", "ünïcode", "back\\slash"):
        for verdict in (5, Duplicate(5), errors.by_code(10054)):
            assert json.loads(PubAcks(name, "d%s").ack(verdict))["stream"] == name
        assert json.loads(PubAcks(name).render(PublishResult(5, 1, None), [b"r"])[0][1]) == {"stream": name, "seq": 5}
