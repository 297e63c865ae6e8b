"""An account in memory, for backups: streams that take, delete and purge messages, with what was read counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jetcluster.backup.account import StreamSeen
from jetcluster.backup.segment import StoredMessage
from jetcluster.backup.sequences import Sequences
from jetcluster.model.times import rfc3339

START = 1_800_000_000_000_000_000


class FakeStream:
    def __init__(self, name: str, created: str = "2026-11-01T00:00:00Z", **config: Any) -> None:
        self.name = name
        self.created = created
        self.config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **config}
        self.last = 0
        self.held: dict[int, StoredMessage] = {}
        self.consumers: dict[str, dict[str, Any]] = {}

    def add(self, count: int, size: int = 10) -> None:
        for _ in range(count):
            self.last += 1
            headers = b"NATS/1.0\r\nA: %d\r\n\r\n" % self.last if self.last % 3 == 0 else b""
            payload = (b"%d " % self.last) * size
            subject = f"{self.name}.{self.last % 5}".encode()
            self.held[self.last] = StoredMessage(self.last, START + 7 * self.last, subject, headers, payload)

    def put(self, subject: str, payload: bytes) -> None:
        """As in a key-value bucket: the subject's message before goes."""
        name = subject.encode()
        self.delete(*[seq for seq, one in self.held.items() if one.subject == name])
        self.last += 1
        self.held[self.last] = StoredMessage(self.last, START + 7 * self.last, name, b"", payload)

    def delete(self, *seqs: int) -> None:
        for seq in seqs:
            self.held.pop(seq, None)


class FakeAccount:
    """Serves `Account`. `hidden` sequences are lost between the look and the reading; `unlisted` streams do not tell
    what is deleted."""

    def __init__(self, *streams: FakeStream) -> None:
        self.streams = {one.name: one for one in streams}
        self.hidden: set[int] = set()
        self.cluster = ""
        self.unlisted = False
        self.meanwhile: Callable[[str], object] = lambda name: None
        """Called with the stream's name before each message that is looked for."""
        self.read: list[int] = []
        self.asked: list[int] = []
        self.read_bytes = 0

    def info(self) -> dict[str, Any]:
        return {"streams": len(self.streams), "cluster": self.cluster}

    def configs(self) -> dict[str, dict[str, Any]]:
        return {name: one.config for name, one in self.streams.items()}

    def look(self, name: str) -> StreamSeen | None:
        stream = self.streams.get(name)
        if stream is None:
            return None
        first = min(stream.held, default=stream.last + 1)
        state = {
            "messages": len(stream.held), "bytes": 0, "first_seq": first, "first_ts": rfc3339(0),
            "last_seq": stream.last, "last_ts": rfc3339(START + 7 * stream.last),
        }  # fmt: skip
        live = None if self.unlisted else Sequences.of(sorted(stream.held))
        return StreamSeen(name, stream.created, stream.config, state, len(stream.consumers), live)

    def consumers(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(self.streams[name].consumers))
        return found

    def whole(self, name: str) -> Iterator[StoredMessage]:
        held = self.streams[name].held
        for message in [held[seq] for seq in sorted(held)]:  # of one moment
            self.meanwhile(name)
            self._count(message)
            yield message

    def messages(self, stream: StreamSeen, wanted: Sequences) -> Iterator[StoredMessage]:
        yield from self._reading(stream.name, wanted)

    def singles(self, name: str, wanted: Sequences) -> Iterator[StoredMessage]:
        self.asked += wanted
        return iter([found for seq in wanted if (found := self.streams[name].held.get(seq)) is not None])

    def _reading(self, name: str, wanted: Sequences) -> Iterator[StoredMessage]:
        for seq in wanted:
            self.meanwhile(name)
            stream = self.streams.get(name)
            message = stream.held.get(seq) if stream is not None else None
            if message is not None and seq not in self.hidden:
                self._count(message)
                yield message

    def _count(self, message: StoredMessage) -> None:
        self.read.append(message.seq)
        self.read_bytes += len(message.encoded())
