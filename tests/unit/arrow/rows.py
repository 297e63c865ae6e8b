"""Rows of a stream, and the answers that hold them."""

from __future__ import annotations

import json

from jetcluster.arrow.frames import MessageBatch
from jetcluster.stream.read.direct_get import DirectGet
from tests.unit.arrow.fake_server import Row, store_of


def batch_of(rows: list[Row]) -> MessageBatch:
    answer = DirectGet("S", store_of(rows), "n1").answer(
        json.dumps({"seq": 1, "batch": 1000}).encode(), b"NATS/1.0\r\nJc-Proof: 1\r\n\r\n"
    )
    frames = [] if isinstance(answer, tuple) else answer.take(1 << 30)[:-1]
    return MessageBatch([head for head, _ in frames], [payload for _, payload in frames])


PLAIN: list[Row] = [("a.b", b"", b"one"), ("a.c", b"", b""), ("a.b", b"", b"\x00\xff")]


BLOCK = b"NATS/1.0\r\nA: 1\r\nb:2\r\nA:  3 \r\n\r\n"


MASKED = b"NATS/1.0\r\nNats-Stream: X\r\nNats-Subject: y\r\nNats-Sequence: 99\r\n\r\n"
"""A message that was republished, and stored again."""


MIXED: list[Row] = [PLAIN[0], ("h", BLOCK, b"two"), ("h", MASKED, b"three")]
