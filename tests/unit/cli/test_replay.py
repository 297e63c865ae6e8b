"""`jetcluster replay` against streams that are played here."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from jetcluster.cli.replay import LetterReplay
from jetcluster.client.reply import Reply
from jetcluster.errors import ApiError
from jetcluster.model.times import rfc3339
from jetcluster.protocol import headers as header_block

NOW = time.time_ns()
HOUR = 3600 * 10**9


class Streams:
    """DEAD with letters, and WORK that takes `work.>` and forgets ids after `window`."""

    def __init__(self, window: int = HOUR) -> None:
        self.window = window
        self.letters: dict[int, tuple[int, bytes]] = {}
        self.work: list[tuple[str, bytes, list[tuple[bytes, bytes]]]] = []
        self.interrupted = False

    def add(self, seq: int, subject: str = "work.a", age: int = 0) -> None:
        pairs = [(b"Nats-Msg-Id", b"dl:%d" % seq), (b"A", b"1"), (b"Nats-Dead-Letter-Stream", b"WORK")]
        pairs += [(b"Nats-Dead-Letter-Subject", subject.encode())] if subject else []
        self.letters[seq] = NOW - age, header_block.build(pairs)

    def api(self, subject: str, body: Any = None, **_: Any) -> dict[str, Any]:
        if subject == "STREAM.NAMES":
            return {"streams": ["WORK"]}
        if subject == "STREAM.INFO.WORK":
            return {"config": {"duplicate_window": self.window}}
        if subject == "STREAM.MSG.DELETE.DEAD":
            if self.interrupted:
                raise KeyboardInterrupt
            del self.letters[body["seq"]]
            return {"success": True}
        if subject == "STREAM.MSG.GET.WORK":
            for seq, (_to, _payload, headers) in enumerate(self.work, 1):
                if seq >= body.get("seq", 1):
                    return message(seq, NOW, header_block.build(headers))
        elif subject == "STREAM.MSG.GET.DEAD":
            for seq, (at, block) in sorted(self.letters.items()):
                if seq == body["seq"] or ("next_by_subj" in body and seq > body["seq"]):
                    return message(seq, at, block)
        raise ApiError(404, 10037, "no message found")

    def request(self, subject: str, payload: bytes, headers: list[tuple[bytes, bytes]]) -> Reply:
        self.work.append((subject, payload, headers))
        return Reply(0, "", b"", json.dumps({"stream": "WORK", "seq": len(self.work)}).encode())

    def replay(self, subject: str = ">", seqs: tuple[int, ...] = (), limit: int = 0, **how: Any) -> LetterReplay:
        made = LetterReplay(self, "DEAD", **how)  # type: ignore[arg-type]
        made.run(made.letters(subject, seqs), limit)
        return made


def message(seq: int, at: int, block: bytes) -> dict[str, Any]:
    hdrs = base64.b64encode(block).decode()
    return {"message": {"seq": seq, "time": rfc3339(at), "hdrs": hdrs, "data": base64.b64encode(b"p").decode()}}


def test_letters_go_back_with_their_own_headers_and_are_deleted() -> None:
    streams = Streams()
    streams.add(3)
    streams.add(5, "work.b")
    assert streams.replay().done == 2 and not streams.letters
    assert streams.work == [
        ("work.a", b"p", [(b"Nats-Msg-Id", b"replay:dl:3"), (b"A", b"1")]),
        ("work.b", b"p", [(b"Nats-Msg-Id", b"replay:dl:5"), (b"A", b"1")]),
    ]


def test_some_of_them() -> None:
    streams = Streams()
    for seq in range(1, 6):
        streams.add(seq)
    assert streams.replay(dry_run=True).done == 5 and len(streams.letters) == 5 and not streams.work
    assert streams.replay(limit=2).done == 2 and sorted(streams.letters) == [3, 4, 5]
    assert streams.replay(seqs=(4, 9)).done == 1 and sorted(streams.letters) == [3, 5]


def test_one_without_a_subject_is_left() -> None:
    streams = Streams()
    streams.add(1, "")
    streams.add(2)
    made = streams.replay()
    assert (made.done, made.skipped, sorted(streams.letters)) == (1, 1, [1])


def test_an_interrupted_replay_puts_none_back_twice() -> None:
    streams = Streams(window=HOUR)
    streams.add(1, age=2 * HOUR)
    streams.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        streams.replay()
    assert len(streams.work) == len(streams.letters) == 1
    streams.interrupted = False
    assert streams.replay().done == 1 and len(streams.work) == 1 and not streams.letters


def test_a_refused_publish_keeps_the_letter() -> None:
    streams = Streams()
    streams.add(1)
    for refused in ({"error": {"code": 503, "err_code": 10077, "description": "full"}}, {"hello": 1}):
        streams.request = lambda *_, refused=refused: Reply(0, "", b"", json.dumps(refused).encode())  # type: ignore[method-assign,assignment,misc]
        with pytest.raises(ApiError):
            streams.replay()
        assert streams.letters
