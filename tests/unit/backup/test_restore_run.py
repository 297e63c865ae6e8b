"""Restores against an account in memory: what is looked for before a stream is deleted or made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from jetcluster.backup import consumers, restore
from jetcluster.backup.restore import RestoredStream, RestoreOptions, RestoreRefusedError, RestoreRun, trial
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

    def connect(self, attempt: int) -> contextlib.nullcontext[Servers]:
        return contextlib.nullcontext(self)

    def api(self, subject: str, body: object = None) -> dict[str, Any]:
        kind, _, name = subject.rpartition(".")
        assert kind == "STREAM.DELETE"
        if self.streams.pop(name, None) is None:
            raise ApiError(404, 10059, "stream not found")
        return {}

    def consumer(self, stream: str, name: str) -> dict[str, Any] | None:
        found = self.streams[stream].consumers.get(name)
        return None if found is None else {"ack_floor": found["state"]["ack_floor"]}


class Transfer:
    """Serves `RestoreTransfer`."""

    def __init__(self, servers: Servers, config: dict[str, Any], state: dict[str, Any]) -> None:
        servers.begun.append(config["name"])
        if servers.refused:
            raise ApiError(500, 10074, servers.refused)
        self._servers, self._config, self._state = servers, config, state

    def send(self, blobs: Iterable[bytes], entries: Consumers, check: Callable[[], None]) -> dict[str, Any]:
        made = FakeStream(self._config["name"], "now")
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
        return {"state": {"messages": len(made.held)}}


class Site:
    """A stream of twenty messages with a consumer, and its backup."""

    def __init__(self) -> None:
        stream = FakeStream("S", max_bytes=5, sealed=False)
        stream.add(20)
        floor = {"consumer_seq": 3, "stream_seq": 3}
        pending = {str(seq): {"sequence": seq, "ts": 1} for seq in range(4, 20)}
        stream.consumers["c"] = {
            "config": {"durable_name": "c"}, "state": {"ack_floor": floor, "delivered": floor, "pending": pending},
        }  # fmt: skip
        self.servers, self.storage, self.said = Servers(stream), MemoryStorage(), list[str]()
        run = BackupRun(self.servers, self.storage, ManualTime(), SeededRng(1), self.said.append)
        self.point = run.run()
        self.held = dict(stream.held)

    def restore(self, **options: Any) -> list[RestoredStream]:
        run = RestoreRun(
            self.servers, self.servers, self.storage, self.point,  # type: ignore[arg-type]
            RestoreOptions(**options), self.said.append,
        )  # fmt: skip
        return run.run()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(restore, "RestoreTransfer", Transfer)
    yield Site()


def test_a_stream_is_made_and_its_consumers_with_it(site: Site) -> None:
    site.servers.streams.clear()
    assert site.restore() == [RestoredStream("S", 20, consumers=1)]
    made = site.servers.streams["S"]
    assert made.held == site.held and made.consumers["c"]["state"]["pending"]
    assert site.restore()[0].was_there


def test_a_stream_is_not_deleted_if_the_servers_would_refuse_the_new_one(site: Site) -> None:
    stream = site.servers.streams["S"]
    stream.add(1)
    site.servers.refused = "no suitable peers"
    with pytest.raises(RestoreRefusedError, match="nothing was deleted: no suitable peers"):
        site.restore(overwrite=True, replicas=5)
    assert site.servers.streams == {"S": stream}
    site.servers.refused = ""
    site.servers.begun.clear()
    assert site.restore(overwrite=True) == [RestoredStream("S", 20, consumers=1)]
    assert site.servers.streams["S"].held == site.held
    assert site.servers.begun == [trial({"name": "S"})["name"], "S"]


def test_what_is_tried_asks_as_much_and_takes_no_subject() -> None:
    config = {"name": "S", "subjects": ["a"], "max_bytes": 9, "num_replicas": 3, "placement": {}, "sealed": True}
    found = trial(config)
    assert found["name"] != "S" and found["subjects"] == [found["name"]]
    assert {key: found.get(key) for key in ("max_bytes", "num_replicas", "placement", "sealed")} == {
        "max_bytes": 9, "num_replicas": 3, "placement": {}, "sealed": None,
    }  # fmt: skip
    assert "subjects" not in trial({"name": "M", "mirror": {"name": "S"}})


def test_subjects_of_another_stream_are_seen_before_anything_is_made(site: Site) -> None:
    site.servers.streams = {"T": FakeStream("T", subjects=["S.1"])}
    with pytest.raises(RestoreRefusedError, match=r"S: the stream T has its subject S\.>"):
        site.restore()
    assert site.servers.begun == []


def test_a_consumer_with_too_much_pending_is_made_with_its_ack_floor(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_CONSUMER_BYTES", 700)
    site.servers.streams.clear()
    site.restore()
    made = site.servers.streams["S"].consumers["c"]
    assert "pending" not in made["state"] and made["state"]["ack_floor"]["stream_seq"] == 3
    assert "S: consumer c has too much pending: its ack floor alone is restored" in site.said
    site.servers.streams.clear()
    site.restore(no_consumers=True)
    assert site.servers.streams["S"].consumers == {}
