"""Direct Gets at stores of a few messages, and their frames."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.read.direct_get import Answer, DirectGet, Frame
from tests.unit.stream.fake_store import NaiveStore

T0 = 1_795_167_385_000_000_000
WHEN = "2026-11-20T09:36:25"


def store_of(*messages: tuple[str, bytes, bytes], step: int = 1000) -> NaiveStore:
    store = NaiveStore()
    for i, (subject, headers, payload) in enumerate(messages):
        store.append(Batch.of([subject.encode()], [headers] if headers else [], [payload]), i + 1, T0 + i * step)
    return store


def numbered(n: int, subjects: tuple[str, ...] = ("foo",)) -> NaiveStore:
    return store_of(*[(subjects[i % len(subjects)], b"", b"%d" % (i + 1)) for i in range(n)])


def frames_of(answer: Answer, slice_bytes: int = 1000) -> Iterator[Frame]:
    """Takes the frames as the read group does, slice by slice."""
    if isinstance(answer, tuple):
        yield from answer
        return
    while not answer.done:
        frames = answer.take(slice_bytes)
        answer.hold()
        yield from frames
    answer.close()


def ask(store: NaiveStore | BlockStore, **fields: object) -> list[Frame]:
    return list(frames_of(DirectGet("S", store).answer(json.dumps(fields).encode())))


def field(headers: bytes, name: str) -> int:
    value = next(line for line in headers.split(b"\r\n") if line.startswith(name.encode() + b": "))
    return int(value.split(b": ")[1])


def pages(frames: list[Frame]) -> list[tuple[int, int, int]]:
    """(Nats-Sequence or 0 for the EOB, Nats-Num-Pending, Nats-Last-Sequence)."""
    return [
        (
            0 if headers.startswith(b"NATS/1.0 204 EOB\r\n") else field(headers, "Nats-Sequence"),
            field(headers, "Nats-Num-Pending"),
            field(headers, "Nats-Last-Sequence"),
        )
        for headers, _ in frames
    ]


def status(frames: list[Frame]) -> bytes:
    ((headers, payload),) = frames
    assert payload == b"" and headers.count(b"\r\n") == 2, "a status line and nothing else"
    return headers.removeprefix(b"NATS/1.0 ").removesuffix(b"\r\n\r\n")
