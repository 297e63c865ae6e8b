"""A stream that is deleted while it is restored: the client hears of it, at once (api/restore_stream.py)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from jetcluster.api import restore_stream
from jetcluster.api.restore_stream import RestoreStream
from jetcluster.errors import ApiError, by_code
from jetcluster.protocol import stream_archive
from tests.unit.api.fake_cluster import Client
from tests.unit.api.test_restore import CONSUMER, archived

DELETED = "the stream was deleted meanwhile"
WISH = {"config": {"name": "S", "subjects": ["s"]}, "state": {}}


class Deleted:
    """A client that restores a stream, which another one deletes `when` its leader is asked so."""

    def __init__(self, when: str = "") -> None:
        self.client = Client()
        for kind in ("restore", "restore_end", "consumer_create"):
            self.client.cluster.answers[kind] = lambda body, kind=kind: self._answer(kind, when)  # type: ignore[misc]

    def _answer(self, kind: str, when: str) -> dict[str, Any]:
        if kind == when:
            self.delete()
            raise by_code(10008)
        return {}

    def delete(self) -> None:
        machine = self.client.cluster.machine
        assignment = machine.assignment("A", "S")
        assert assignment is not None
        command = {"kind": "stream_delete", "account": "A", "name": "S", "gid": assignment.gid, "request": "other"}
        self.client.cluster.apply(json.dumps(command).encode())
        assert machine.assignment("A", "S") is None

    async def begun(self) -> str:
        answer: dict[str, Any] = await self.client.ask("STREAM.RESTORE.S", WISH)
        return str(answer["deliver_subject"])

    async def send(self, subject: str, data: bytes = b"") -> dict[str, Any]:
        answer = await self.client.raw(subject, data)
        found: dict[str, Any] = json.loads(answer) if answer else {}
        return found


def whole() -> bytes:
    consumer = stream_archive.CONSUMER_PREFIX + b"C", 0, json.dumps(CONSUMER).encode()
    return archived((stream_archive.STATE_NAME, 0, b"{}"), consumer, (b"s", 1, b"x"))


@pytest.mark.parametrize("when", ["restore", "restore_end", "consumer_create"])
async def test_the_last_chunk_is_refused_when_the_stream_was_deleted_meanwhile(when: str) -> None:
    restored = Deleted(when)
    subject = await restored.begun()
    assert await restored.send(subject, whole()) == {}
    begun = time.monotonic()
    error = (await restored.send(subject))["error"]
    assert (error["err_code"], error["description"]) == (10062, f"restore failed: {DELETED}")
    assert time.monotonic() - begun < 5, "a consumer's creation is tried for 20 s"


async def test_so_is_the_next_chunk_whatever_is_in_it() -> None:
    restored = Deleted()
    subject = await restored.begun()
    data = whole()
    assert await restored.send(subject, data[:20]) == {}
    restored.delete()
    error = (await restored.send(subject, data[20:]))["error"]
    assert (error["err_code"], DELETED in error["description"]) == (10062, True)


async def test_so_is_the_end_when_this_server_does_not_know_of_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    restored = Deleted()
    subject = await restored.begun()
    assert await restored.send(subject, whole()) == {}
    cluster = restored.client.cluster
    before = cluster.machine.assignment("A", "S")
    monkeypatch.setattr(cluster, "assignment", lambda account, name: before)
    cluster.answers["consumer_create"] = lambda body: restored.delete() or {}  # type: ignore[func-returns-value]
    error = (await restored.send(subject))["error"]
    assert error["err_code"] == 10062


def asked(client: Client) -> RestoreStream:
    assignment = client.cluster.machine.assignment("A", "S")
    assert assignment is not None
    return RestoreStream(client.context, "A", assignment)


async def test_a_leader_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_stream, "LOOK_SECONDS", 0.01)
    restored = Deleted()
    await restored.client.ask("STREAM.CREATE.S", WISH["config"])
    stream = asked(restored.client)
    restored.client.cluster.refuse["S"] = None
    waiting = asyncio.create_task(stream.ask("restore", {}))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    restored.delete()
    with pytest.raises(ApiError, match=DELETED):
        await waiting


async def test_a_stream_that_this_server_does_not_know_yet_is_not_taken_for_deleted() -> None:
    restored = Deleted()
    await restored.client.ask("STREAM.CREATE.S", WISH["config"])
    stream = asked(restored.client)
    restored.client.cluster.lagging = True
    stream.check()
    assert await stream.ask("restore", {}) == {}


async def test_another_stream_of_the_name_is_not_the_one() -> None:
    restored = Deleted()
    await restored.client.ask("STREAM.CREATE.S", WISH["config"])
    stream = asked(restored.client)
    stream.check()
    restored.delete()
    await restored.client.ask("STREAM.CREATE.S", WISH["config"])
    with pytest.raises(ApiError, match=DELETED):
        stream.check()
