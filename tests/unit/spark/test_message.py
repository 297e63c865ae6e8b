"""Answers to a publish."""

from __future__ import annotations

from jetcluster.client.reply import make_reply
from jetcluster.spark.message import read_ack


def test_answers_that_are_no_acks() -> None:
    assert read_ack(make_reply(b"NATS/1.0 503\r\n\r\n", b"")).try_again
    assert read_ack(make_reply(b"", b"")).try_again
    assert read_ack(make_reply(b"", b"hello")).error == "no PubAck: b'hello'"
    assert read_ack(make_reply(b"", b'{"stream":"S","seq":7,"duplicate": true}')) == (7, True, "", 0, False, "S", 1)
    assert read_ack(make_reply(b"", b'{"stream":"S","seq":9,"batch":"b","count":3}')).messages == 3
