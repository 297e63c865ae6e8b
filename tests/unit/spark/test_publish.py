"""Windowed publishing against a scripted server that refuses, forgets and goes away."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable

import pytest

from jetcluster.client.reply import make_reply
from jetcluster.client.servers import ServerOptions
from jetcluster.errors import by_code
from jetcluster.protocol import headers as header_block
from jetcluster.spark import publish
from jetcluster.spark.publish import Message, PublishError, ServerLink, WindowedPublisher, read_ack
from tests.unit.client.fake_server import Peer, hmsg, msg


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(publish, "MAX_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(publish, "ACK_SECONDS", 0.3)


class Server:
    """Stores what has a new id; `fate(number of the publish)` is what happens to it."""

    def __init__(self, fate: Callable[[int], str] = lambda number: "") -> None:
        self.stored: list[bytes] = []
        self.ids: dict[bytes, int] = {}
        self.seen = 0
        self._fate = fate

    def __call__(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> bytes:
        self.seen += 1
        fate = self._fate(self.seen)
        if fate == "503":
            return hmsg(reply, b"NATS/1.0 503\r\n\r\n")
        if fate.isdigit():
            return msg(reply, json.dumps({"error": by_code(int(fate)).to_dict(), "stream": "S", "seq": 0}).encode())
        msg_id = header_block.get(block, b"Nats-Msg-Id") or b""
        known = self.ids.get(msg_id)
        if known is None:
            self.stored.append(payload)
            known = self.ids[msg_id] = len(self.stored)
        if fate == "silence":
            return b""
        if fate == "drop":
            raise OSError("the connection ends")
        again = b',"duplicate": true' if known < len(self.stored) or fate == "again" else b""
        return msg(reply, b'{"stream":"%b","seq":%d%b}' % (b"T" if fate == "other" else b"S", known, again))


def run(server: Server, count: int = 40, window: int = 8, **options: float) -> WindowedPublisher:
    with Peer(server) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(
            link, "S", window=window, retry_seconds=options.pop("retry_seconds", 10.0), **options
        )
        with contextlib.closing(link):
            for i in range(count):
                block = header_block.build([(b"Nats-Msg-Id", b"%d" % i)])
                publisher.publish(Message(b"s", block, b"%d" % i))
            publisher.finish()
    return publisher


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def test_in_order_and_counted() -> None:
    server = Server()
    done = run(server)
    assert server.stored == numbers(40)
    assert (done.stored, done.duplicates, done.sent_again, done.last_seq) == (40, 0, 0, 40)


@pytest.mark.parametrize("fate", ["silence", "drop", "503", "10008", "10158"])
def test_what_passes_is_waited_for(fate: str) -> None:
    server = Server(lambda number: fate if number in (5, 21, 22) else "")
    done = run(server)
    assert sorted(server.stored, key=int) == numbers(40)
    assert done.stored + done.duplicates == 40
    assert done.sent_again >= 2
    assert len(server.ids) == len(server.stored) == 40


def test_what_does_not_pass_is_an_error() -> None:
    with pytest.raises(PublishError, match=r"S refused a message on s: message size exceeds maximum allowed \(10054\)"):
        run(Server(lambda number: "10054" if number == 9 else ""))
    with pytest.raises(PublishError, match="s went to stream T, not S"):
        run(Server(lambda number: "other"))


def test_patience_ends() -> None:
    with pytest.raises(PublishError, match=r"publishing to S: no success for 0\.1 s: 503"):
        run(Server(lambda number: "503"), retry_seconds=0.1)


def test_no_second_sending_when_the_ids_may_be_forgotten() -> None:
    server = Server(lambda number: "silence" if number == 40 else "")
    with pytest.raises(PublishError, match=r"remembers message ids for 0\.1 s: sending again could store it twice"):
        run(server, safe_seconds=0.1)
    assert len(server.stored) == 40


def test_patience_begins_with_the_first_failure() -> None:
    """However long rows took to come before that."""
    with Peer(Server(lambda number: "drop" if number == 3 else "")) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=1, retry_seconds=0.2)
        with contextlib.closing(link):
            for i in range(5):
                time.sleep(0.3)
                publisher.publish(Message(b"s", header_block.build([(b"Nats-Msg-Id", b"%d" % i)]), b"%d" % i))
            publisher.finish()  # what was sent again last may have no ack before that
    assert publisher.stored + publisher.duplicates == 5


def test_what_the_server_takes_is_headers_and_payload() -> None:
    with Peer(Server(), {"max_payload": 100}) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=8, retry_seconds=1)
        publisher.publish(Message(b"a.long.subject", b"", bytes(100)))
        publisher.finish()
        with pytest.raises(PublishError, match=r"s: a payload of 90 bytes with 17 of headers; the server takes 100"):
            publisher.publish(Message(b"s", b"NATS/1.0\r\nA:B\r\n\r\n", bytes(90)))
        link.close()


def test_the_next_server_is_taken() -> None:
    server = Server()
    gone = Peer(server)
    with Peer(server) as there:
        link = ServerLink(ServerOptions((gone.url, there.url)))
        publisher = WindowedPublisher(link, "S", window=4, retry_seconds=10)
        with contextlib.closing(link):
            for i in range(20):
                if i == 10:
                    gone.close()
                publisher.publish(Message(b"s", header_block.build([(b"Nats-Msg-Id", b"%d" % i)]), b"%d" % i))
            publisher.finish()
    assert sorted(server.stored, key=int) == numbers(20)


def test_answers_that_are_no_acks() -> None:
    assert read_ack(make_reply(b"NATS/1.0 503\r\n\r\n", b"")).try_again
    assert read_ack(make_reply(b"", b"")).try_again
    assert read_ack(make_reply(b"", b"hello")).error == "no PubAck: b'hello'"
    assert read_ack(make_reply(b"", b'{"stream":"S","seq":7,"duplicate": true}')) == (7, True, "", 0, False, "S")
