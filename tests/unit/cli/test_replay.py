"""`jetcluster replay` against streams that are played."""

from __future__ import annotations

import json

import pytest

from jetcluster.client.reply import Reply
from jetcluster.errors import ApiError
from tests.unit.cli.letter_streams import Pairs, Streams


def test_letters_go_back_with_their_own_headers_and_are_deleted() -> None:
    streams = Streams()
    streams.add(3)
    streams.add(5, "work.b")
    assert streams.replay().done == 2 and not streams.letters
    assert streams.sent() == [
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


def test_what_cannot_go_back_is_left_and_holds_nothing_up(capsys: pytest.CaptureFixture[str]) -> None:
    streams = Streams()
    streams.add(1, "", 0, (b"Nats-Dead-Letter-Removed", b"true"))
    streams.put(2, 0, [(b"Nats-Msg-Id", b"x"), (b"Nats-Dead-Letter-Subject", b"work.a")])
    streams.put(3, 0, [(b"Nats-Dead-Letter-Stream", b"WORK"), (b"Nats-Dead-Letter-Subject", b"work.a")])
    of = [(b"Nats-Msg-Id", b"x"), (b"Nats-Dead-Letter-Stream", b"WORK")]
    for seq, subject in enumerate((b"work.\xff", b"work.*", b"work.a 5", b"$JS.API.STREAM.DELETE.WORK"), 4):
        streams.put(seq, 0, [*of, (b"Nats-Dead-Letter-Subject", subject)])
    streams.add(9)
    made = streams.replay(again=True)
    assert (made.done, made.left, sorted(streams.letters), len(streams.work)) == (1, 7, [1, 2, 3, 4, 5, 6, 7], 1)
    out = capsys.readouterr().out
    assert "1: left, its message was removed" in out and "2: left, it is no dead letter" in out
    assert "3: left, it is no dead letter" in out and "4: left, 'work.\\\\xff' is no subject" in out


def test_a_field_behind_a_bare_lf_is_none() -> None:
    streams = Streams()
    streams.add(1, "work.a", 0, (b"B", b"1\nNats-Dead-Letter-Subject: work.forged\nNats-Msg-Id: forged"))
    assert streams.replay().done == 1
    ((subject, _, headers),) = streams.sent()
    assert subject == "work.a" and headers[0] == (b"Nats-Msg-Id", b"replay:dl:1")


def test_letters_that_are_made_meanwhile_are_not_replayed() -> None:
    streams = Streams()
    streams.add(1)
    request = streams.request

    def given_up_again(subject: str, payload: bytes, headers: Pairs) -> Reply:
        assert streams.last_letter < 5, "it goes round"
        streams.add(streams.last_letter + 1)
        return request(subject, payload, headers)

    streams.request = given_up_again  # type: ignore[method-assign]
    assert streams.replay().done == 1 and sorted(streams.letters) == [2]


def test_a_refused_publish_keeps_the_letter() -> None:
    streams = Streams()
    streams.add(1)
    for refused in ({"error": {"code": 503, "err_code": 10077, "description": "full"}}, {"hello": 1}):
        streams.request = lambda *_, refused=refused: Reply(0, "", b"", json.dumps(refused).encode())  # type: ignore[method-assign,assignment,misc]
        with pytest.raises(ApiError):
            streams.replay()
        assert streams.letters
