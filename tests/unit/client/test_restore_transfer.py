"""The conversation of a restore against a scripted server."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetcluster.client import restore_transfer
from jetcluster.client.connection import Connection
from jetcluster.client.restore_transfer import RestoreTransfer, with_pauses
from jetcluster.errors import ApiError, by_code
from jetcluster.protocol import s2, stream_archive
from tests.unit.client.fake_server import Peer, hmsg, msg

CONFIG = {"name": "S", "subjects": ["s.>"]}


class Server:
    """Takes an archive; answers piece number `at` with `answer`."""

    def __init__(self, at: int = -1, answer: bytes = b"") -> None:
        self.data = b""
        self.pieces = self.early = 0
        self._at, self._answer = at, answer

    def __call__(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
        if subject == b"$JS.API.STREAM.RESTORE.S":
            self.asked = json.loads(payload)
            return msg(reply, b'{"deliver_subject": "$JS.SNAPSHOT.RESTORE.S.x"}')
        assert subject == b"$JS.SNAPSHOT.RESTORE.S.x"
        if self.early < 2:  # interest is not known everywhere at once
            self.early += 1
            return hmsg(reply, b"NATS/1.0 503\r\n\r\n")
        self.pieces += 1
        self.data += payload
        if self.pieces == self._at:
            return self._answer if self._answer.startswith(b"HMSG") else msg(reply, self._answer)
        return msg(reply, b"" if payload else b'{"config": {"name": "S"}, "state": {}}')


GONE = b"NATS/1.0 503\r\n\r\n"


@contextlib.contextmanager
def transfer(server: Server) -> Iterator[RestoreTransfer]:
    with Peer(server) as peer, Connection([peer.url]) as connection:
        yield RestoreTransfer(connection, CONFIG, {"last_seq": 9})


def blob(number: int, size: int = 300_000) -> bytes:
    entry = stream_archive.encode(b"s.x", number, number, b"", bytes(size))
    return restore_transfer.framed(entry)


def test_everything_arrives_in_order() -> None:
    server = Server()
    with transfer(server) as one:
        answer = one.send([blob(4), blob(9)], [("c", b"{}")])
    assert answer["config"] == {"name": "S"}
    assert server.asked == {"config": CONFIG, "state": {"last_seq": 9}}
    frames, reader = s2.Decoder(), stream_archive.ArchiveReader()
    found = [entry for content in frames.feed(server.data) for entry in reader.feed(content)]
    assert [(entry.name, entry.seq) for entry in found] == [
        (b"state.json", 0), (b"consumers/c", 0), (b"s.x", 4), (b"s.x", 9)
    ]  # fmt: skip
    assert reader.finished


@pytest.mark.parametrize("there", [True, False])
def test_the_last_answer_is_waited_for_while_the_server_is_at_work(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_transfer, "ANSWER_SECONDS", 0.05)
    ends: list[bytes] = []

    class Busy(Server):
        """Answers the end of the archive at the third message after it; or goes away."""

        def __call__(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
            if subject != b"$JS.SNAPSHOT.RESTORE.S.x" or payload:
                return super().__call__(subject, reply, headers, payload)
            ends.append(reply)
            if len(ends) < 4:
                return b""
            return super().__call__(subject, ends[0], headers, payload) if there else hmsg(reply, GONE)

    with transfer(Busy()) as one:
        if there:
            assert one.send([blob(4)])["config"] == {"name": "S"}
        else:
            with pytest.raises(ApiError, match="not known"):
                one.send([blob(4)])
    assert len(ends) >= 4


def test_an_archive_that_is_not_what_it_should_be_is_not_completed() -> None:
    server = Server()

    def check() -> None:
        raise ValueError("other rows")

    with transfer(server) as one, pytest.raises(ValueError, match="other rows"):
        one.send([blob(4)], check=check)
    reader = stream_archive.ArchiveReader()
    entries = [e.seq for content in s2.Decoder().feed(server.data) for e in reader.feed(content)]
    assert entries in ([0], [0, 4])  # what was not sent yet never is
    assert not reader.finished


@pytest.mark.parametrize(("at", "code"), [(1, 10062), (2, 10062), (7, 10062)])
def test_refusals(at: int, code: int) -> None:
    error: dict[str, Any] = {"error": by_code(code, err="no room").to_dict()}
    with transfer(Server(at, json.dumps(error).encode())) as one, pytest.raises(ApiError, match="no room"):
        one.send([blob(4), blob(9)])


def test_while_there_is_nothing_to_send_the_server_is_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_transfer, "SILENCE_SECONDS", 0.02)
    server = Server()

    def slow() -> Iterator[bytes]:
        yield blob(4, 10)
        deadline = time.monotonic() + 5
        while server.pieces < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        yield blob(9, 10)

    with transfer(server) as one:
        one.send(slow())
    assert restore_transfer.PADDING in server.data
    reader = stream_archive.ArchiveReader()
    assert [e.seq for content in s2.Decoder().feed(server.data) for e in reader.feed(content)] == [0, 4, 9]


def test_what_reading_raises_is_raised() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    found = []
    with pytest.raises(ZeroDivisionError):
        for item in with_pauses(broken(), 5.0):
            found.append(item)
    assert found == [1]


def test_reading_ends_when_nobody_takes() -> None:
    seen = []

    def endless() -> Iterator[int]:
        for number in range(10_000):
            seen.append(number)
            yield number

    taken = with_pauses(endless(), 5.0)
    assert next(taken) == 0
    taken.close()
    assert len(seen) < 100
