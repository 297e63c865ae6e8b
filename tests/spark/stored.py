"""The messages of a stream, read without Spark, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from jetcluster.client.connection import Connection
from jetcluster.protocol import headers as header_block

PLACE = tuple(
    b"Nats-" + n for n in (b"Stream", b"Subject", b"Sequence", b"Time-Stamp", b"Num-Pending", b"Last-Sequence")
)


class Stored(NamedTuple):
    seq: int
    subject: bytes
    block: bytes
    """The headers, as they were stored."""
    data: bytes
    time: bytes


def delete(connection: Connection, name: str, seqs: Sequence[int]) -> None:
    for seq in seqs:
        connection.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})


def state(connection: Connection, name: str) -> dict[str, Any]:
    found: dict[str, Any] = connection.api(f"STREAM.INFO.{name}")["state"]
    return found


def contents(connection: Connection, name: str) -> list[Stored]:
    """Everything that is stored, as many as the leader counts."""
    count, found, seq = state(connection, name)["messages"], [], 1
    while len(found) < count:
        asked = json.dumps({"seq": seq, "batch": 5000}).encode()
        for frames in (gather := connection.gather(f"$JS.API.DIRECT.GET.{name}", asked)):
            found += [_stored(block, payload) for block, payload in frames]
        assert gather.end is not None and gather.end.status in (204, 404), gather.end
        seq = found[-1].seq + 1 if found else seq
    return found


def _stored(block: bytes, payload: bytes) -> Stored:
    place = dict(header_block.parse(block)[-len(PLACE) :])
    assert tuple(place) == PLACE, place
    own = block[: block.rfind(b"\r\nNats-Stream: ") + 2] + b"\r\n"
    own = b"" if own == b"NATS/1.0\r\n\r\n" else own
    return Stored(int(place[b"Nats-Sequence"]), place[b"Nats-Subject"], own, payload, place[b"Nats-Time-Stamp"])
