"""Servers in memory that streams are restored to, and a site with a backup."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from jetcluster.backup.point import RestorePoint
from jetcluster.backup.restore import RestoredStream, RestoreRun
from jetcluster.backup.restore_options import RestoreOptions
from jetcluster.backup.run import BackupRun
from jetcluster.backup.segment import StoredMessage
from jetcluster.client.restore_transfer import Consumers
from jetcluster.errors import ApiError
from jetcluster.protocol import s2, stream_archive
from testkit.twins.backup_storage import MemoryStorage
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.backup.accounts import FakeAccount, FakeStream


class Servers(FakeAccount):
    """An account that streams are restored to. `refused`: why none can be made."""

    def __init__(self, *streams: FakeStream) -> None:
        super().__init__(*streams)
        self.refused = ""
        self.begun: list[str] = []
        self.asked_for: list[str] = []
        self.made = 0
        self.failing: list[BaseException] = []
        """The ends of the next transfers, behind the completion of their streams."""
        self.tearing: list[BaseException] = []
        """The ends of the next transfers, in the middle of their streams, which stay, as on nats-server."""

    def connect(self, attempt: int) -> contextlib.nullcontext[Servers]:
        return contextlib.nullcontext(self)

    def api(self, subject: str, body: object = None) -> dict[str, Any]:
        kind, action, *names = subject.split(".")
        found = self.streams.get(names[0])
        if found is None:
            raise ApiError(404, 10059, "stream not found")
        self.asked_for.append(f"{kind}.{action}")
        if kind == "STREAM":
            if action == "DELETE":
                del self.streams[names[0]]
            else:
                assert action == "UPDATE" and isinstance(body, dict)
                found.config = body
            return {}
        assert isinstance(body, dict) or action == "DELETE"
        if action == "CREATE":
            assert isinstance(body, dict)
            floor = {"consumer_seq": 0, "stream_seq": 0}
            found.consumers[names[1]] = {"config": body["config"], "state": {"ack_floor": floor, "delivered": floor}}
        elif action == "RESET":
            assert isinstance(body, dict)
            if self.refused:
                raise ApiError(400, 10204, self.refused)
            floor = {"consumer_seq": 0, "stream_seq": body["seq"] - 1}
            found.consumers[names[1]]["state"] = {"ack_floor": floor, "delivered": floor}
        else:
            assert action == "DELETE"
            del found.consumers[names[1]]
        return {}

    def consumer(self, stream: str, name: str) -> dict[str, Any] | None:
        found = self.streams[stream].consumers.get(name)
        return None if found is None else found["state"]


class Transfer:
    """Serves `RestoreTransfer`."""

    def __init__(self, servers: Servers, config: dict[str, Any], state: dict[str, Any]) -> None:
        servers.begun.append(config["name"])
        if servers.refused:
            raise ApiError(500, 10074, servers.refused)
        if config["name"] in servers.streams:
            raise ApiError(400, 10058, "stream name already in use")
        self._servers, self._config, self._state = servers, config, state

    def send(self, blobs: Iterable[bytes], entries: Consumers, check: Callable[[], None]) -> dict[str, Any]:
        self._servers.made += 1
        made = FakeStream(self._config["name"], f"made {self._servers.made}")
        made.config = self._config
        frames, reader = s2.Decoder(), stream_archive.ArchiveReader()
        for blob in [s2.STREAM_ID + b"".join(s2.encode(stream_archive.MAGIC)), *blobs]:
            for content in frames.feed(blob):
                for one in reader.feed(content):
                    made.held[one.seq] = StoredMessage(one.seq, one.ts, one.name, one.headers, one.payload)
        check()
        made.last = self._state["last_seq"]
        made.consumers = {name: json.loads(entry) for name, entry in entries}
        self._servers.streams[made.name] = made
        if self._servers.tearing:
            made.held = {seq: one for seq, one in made.held.items() if seq <= 3}
            made.last, made.consumers = max(made.held, default=0), {}
            raise self._servers.tearing.pop(0)
        if self._servers.failing:
            raise self._servers.failing.pop(0)
        return {"state": {"messages": len(made.held)}}


class Site:
    """A stream of twenty messages with a consumer, and its backup."""

    def __init__(self, *others: FakeStream) -> None:
        stream = FakeStream("S", max_bytes=5, sealed=False)
        stream.add(20)
        floor = {"consumer_seq": 3, "stream_seq": 3}
        pending = {str(seq): {"sequence": seq, "ts": 1} for seq in range(4, 20)}
        stream.consumers["c"] = {
            "config": {"durable_name": "c"}, "state": {"ack_floor": floor, "delivered": floor, "pending": pending},
        }  # fmt: skip
        self.servers, self.storage, self.said = Servers(stream, *others), MemoryStorage(), list[str]()
        self.time = ManualTime()
        self.point = self.backup()
        self.held = dict(stream.held)

    def backup(self) -> RestorePoint:
        self.time.advance(60)
        return BackupRun(self.servers, self.storage, self.time, SeededRng(1), self.said.append).run()

    def restore(self, **options: Any) -> list[RestoredStream]:
        run = RestoreRun(
            self.servers, self.servers, self.storage, self.point,  # type: ignore[arg-type]
            RestoreOptions(**options), self.said.append, self.time, SeededRng(2), self.time.advance,
        )  # fmt: skip
        return run.run()
