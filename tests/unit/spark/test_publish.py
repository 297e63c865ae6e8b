"""Windowed publishing against a scripted server that refuses, forgets and goes away."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from jetcluster.client.servers import ServerOptions
from jetcluster.errors import by_code
from jetcluster.protocol import headers as header_block
from jetcluster.spark import publish
from jetcluster.spark.message import PublishError
from jetcluster.spark.publish import ServerLink, WindowedPublisher
from jetcluster.spark.render import Rows
from tests.unit.client.fake_server import Peer, hmsg, msg


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(publish, "MAX_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(publish, "ACK_SECONDS", 0.3)


class Server:
    """Stores what has a new id, atomic batches whole; `fate(number of the publish)` is what happens to it."""

    def __init__(self, fate: Callable[[int], str] = lambda number: "") -> None:
        self.stored: list[bytes] = []
        self.ids: dict[bytes, int] = {}
        self.seen = 0
        self.staged: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self.fate = fate

    def __call__(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> bytes:
        self.seen += 1
        fate = self.fate(self.seen)
        if fate == "503":
            self.staged.clear()
            return hmsg(reply, b"NATS/1.0 503\r\n\r\n") if reply else b""
        if fate == "drop" and not header_block.get(block, b"Nats-Batch-Id"):
            self._store([(block, payload)])
        if fate == "drop":
            raise OSError("the connection ends")
        if fate == "lost":
            return b""
        if fate.isdigit():
            return _refusal(reply, int(fate))
        if batch := header_block.get(block, b"Nats-Batch-Id"):
            return self._stage(batch, fate, reply, block, payload)
        if (
            header_block.get(block, b"Nats-Expected-Last-Sequence")
            and header_block.get(block, b"Nats-Msg-Id") not in self.ids
        ):
            return _refusal(reply, 10071)
        before = len(self.stored)
        known = self._store([(block, payload)])
        if fate == "silence":
            return b""
        again = b',"duplicate": true' if len(self.stored) == before or fate == "again" else b""
        return msg(reply, b'{"stream":"%b","seq":%d%b}' % (b"T" if fate == "other" else b"S", known, again))

    def _stage(self, batch: bytes, fate: str, reply: bytes, block: bytes, payload: bytes) -> bytes:
        rows = self.staged.setdefault(batch, [])
        rows.append((block, payload))
        if int(header_block.get(block, b"Nats-Batch-Sequence") or 0) != len(rows):
            del self.staged[batch]
            return _refusal(reply, 10176)
        if header_block.get(block, b"Nats-Batch-Commit") is None:
            return msg(reply, b"") if reply else b""
        del self.staged[batch]
        if any((header_block.get(one, b"Nats-Msg-Id") or b"") in self.ids for one, _ in rows):
            return _refusal(reply, 10201)
        seq = self._store(rows)
        return (
            b""
            if fate == "silence"
            else msg(reply, b'{"stream":"S","seq":%d,"batch":"b","count":%d}' % (seq, len(rows)))
        )

    def _store(self, rows: list[tuple[bytes, bytes]]) -> int:
        """Returns the sequence of the last row."""
        for block, payload in rows:
            msg_id = header_block.get(block, b"Nats-Msg-Id")
            if msg_id is not None and msg_id in self.ids:
                return self.ids[msg_id]
            self.stored.append(payload)
            if msg_id is not None:
                self.ids[msg_id] = len(self.stored)
        return len(self.stored)


def _refusal(reply: bytes, code: int) -> bytes:
    answer = json.dumps({"error": by_code(code, size=9, seq=9).to_dict(), "stream": "S", "seq": 0}).encode()
    return msg(reply, answer) if reply else b""


def columns(payloads: list[bytes], **more: object) -> Rows:
    subjects = pa.array([b"s"] * len(payloads), pa.binary())
    return Rows(subjects, more.get("blocks"), pa.array(payloads, pa.binary()), more.get("ids"))


def run(
    server: Server, count: int = 40, window: int = 8, *, portion: int = 10, atomic_batch: int = 1, **options: float
) -> WindowedPublisher:
    """Publishes numbers, so many at a time."""
    with Peer(server) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(
            link, "S", window=window, retry_seconds=options.pop("retry_seconds", 10.0), ids=b"i:",
            atomic_batch=atomic_batch, **options,
        )  # fmt: skip
        with contextlib.closing(link):
            for i in range(0, count, portion):
                publisher.publish(columns(numbers(count)[i : i + portion]))
            publisher.finish()
    return publisher


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def test_in_order_and_counted() -> None:
    server = Server()
    done = run(server)
    assert server.stored == numbers(40)
    assert (done.stored, done.duplicates, done.sent_again, done.last_seq) == (40, 0, 0, 40)


def test_rows_have_ids_of_their_place() -> None:
    server = Server()
    run(server, 5)
    assert list(server.ids) == [b"i:0", b"i:1", b"i:2", b"i:3", b"i:4"]


def test_an_id_of_its_own_is_kept() -> None:
    server = Server()
    with Peer(server) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=8, retry_seconds=1, ids=b"i:", atomic_batch=4)
        ids = pa.array([b"", b"own", None], pa.binary())
        blocks = pa.array([b"", b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nNats-Msg-Id:  x\r\n\r\n"], pa.binary())
        with contextlib.closing(link):
            publisher.publish(columns([b"0", b"1", b"2"], ids=ids, blocks=blocks))
            publisher.finish()
        sent = [block for _, _, block, _ in peer.published]
    assert sent == [
        b"NATS/1.0\r\nNats-Msg-Id: i:0\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\nNats-Msg-Id: own\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id:  x\r\n\r\n",
    ]
    assert publisher.stored == 3


@pytest.mark.parametrize("fate", ["silence", "drop", "503", "10008", "10158"])
def test_what_passes_is_waited_for(fate: str) -> None:
    server = Server(lambda number: fate if number in (5, 21, 22) else "")
    done = run(server)
    assert sorted(server.stored, key=int) == numbers(40)
    assert done.stored + done.duplicates == 40
    assert done.sent_again >= 2
    assert len(server.ids) == len(server.stored) == 40


@pytest.mark.parametrize("fate", ["silence", "drop", "lost", "503", "10008", "10210"])
@pytest.mark.parametrize("numbers_hit", [(7,), (5, 14), (21, 22, 28)])
def test_batches_are_stored_whole_and_once(fate: str, numbers_hit: tuple[int, ...]) -> None:
    """Whichever of their messages is lost or refused for the moment; 7, 14, 21, 28 are commits."""
    server = Server(lambda number: fate if number in numbers_hit else "")
    done = run(server, window=21, atomic_batch=7)
    assert sorted(server.stored, key=int) == numbers(40)
    assert done.stored + done.duplicates == 40
    ends = [(b"i:%d" % at, b"i:%d+" % at) for at in range(0, 35, 7)]
    assert sorted(server.ids) == sorted([*itertools.chain.from_iterable(ends), *(b"i:%d" % at for at in range(35, 40))])


def test_a_second_try_has_the_same_batches_whatever_the_portions() -> None:
    server = Server()
    run(server, atomic_batch=7)
    again = run(server, atomic_batch=7, portion=3)
    assert server.stored == numbers(40)
    assert (again.stored, again.duplicates) == (0, 40)


@pytest.mark.parametrize("portion", [4, 20])
def test_which_rows_go_by_themselves_depends_on_the_rows_alone(portion: int) -> None:
    """Those of a part with an id of its own, also if other parts came with it."""
    server = Server()
    with Peer(server) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=40, retry_seconds=1, ids=b"i:", atomic_batch=5)
        with contextlib.closing(link):
            for at in range(0, 20, portion):
                ids = [b"own" if n == 12 else b"" for n in range(at, at + portion)]
                publisher.publish(columns(numbers(20)[at : at + portion], ids=pa.array(ids, pa.binary())))
            publisher.finish()
    assert list(server.ids) == [
        b"i:0", b"i:0+", b"i:5", b"i:5+", b"i:10", b"i:11", b"own", b"i:13", b"i:14", b"i:15", b"i:15+"
    ]  # fmt: skip


FATES = ["", "silence", "drop", "lost", "503", "10008"]


def once(server: Server, seed: int) -> Callable[[int], str]:
    """Fates of some messages from now on."""
    random_fate = random.Random(seed)
    hit = {server.seen + random_fate.randrange(1, 50): random_fate.choice(FATES) for _ in range(seed % 4)}
    return lambda number: hit.get(number, "")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", range(1, 40, 3))
def test_attempts_in_any_order_of_which_some_end_early_write_once(end: int, seed: int) -> None:
    """When the process dies that makes the rows, the sink sees their end: a task that is killed after another attempt
    has ended writes the beginning of what is there, and one before it the beginning of what is to come."""
    ends = [40, end, end // 2 + 1, 40] if seed % 2 else [end, end // 2 + 1, 40, end, 40]
    server, furthest = Server(), 0
    for at, stop in enumerate(ends):
        server.fate = once(server, 10 * end + seed + at)
        done = run(server, stop, atomic_batch=7, window=21)
        assert done.stored + done.duplicates == stop
        furthest = max(furthest, stop)
        assert sorted(server.stored, key=int) == numbers(furthest)


@pytest.mark.parametrize("fate", ["503", "10008"])
@pytest.mark.parametrize("end", [5, 12])
def test_a_rest_of_which_the_first_row_was_refused_is_not_stored_in_part(fate: str, end: int) -> None:
    """Its writer dies before it can send that row again; the next attempt sends a full batch in its place."""
    server = Server(lambda number: fate if number == 1 + end // 7 * 7 else "")
    with pytest.raises(PublishError, match="no success"):
        run(server, end, atomic_batch=7, retry_seconds=0.0)
    server.fate = lambda number: ""
    run(server, atomic_batch=7)
    assert sorted(server.stored, key=int) == numbers(40)


def test_rows_with_ids_in_their_blocks_go_by_themselves() -> None:
    """Also those among them that have none: the server knows the block's ids, not the place's."""
    server = Server()
    with Peer(server) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=8, retry_seconds=1, ids=b"i:", atomic_batch=3)
        blocks = pa.array([b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n", b"", b""], pa.binary())
        with contextlib.closing(link):
            publisher.publish(columns(numbers(3), ids=pa.array([None, b"", b""], pa.binary()), blocks=blocks))
            publisher.finish()
    assert list(server.ids) == [b"x", b"i:1", b"i:2"]


def test_a_row_that_a_batch_may_not_have_is_named() -> None:
    """The commit says only that the batch is not complete."""
    with pytest.raises(PublishError, match=r"S refused a message on s: message size exceeds maximum allowed \(10054\)"):
        run(Server(lambda number: "10054" if number % 7 == 3 else ""), atomic_batch=7)


def test_what_does_not_pass_is_an_error() -> None:
    with pytest.raises(PublishError, match=r"S refused a message on s: message size exceeds maximum allowed \(10054\)"):
        run(Server(lambda number: "10054" if number == 9 else ""))
    with pytest.raises(PublishError, match="s went to stream T, not S"):
        run(Server(lambda number: "other"))


def test_patience_ends() -> None:
    for batch in (1, 5):
        with pytest.raises(PublishError, match=r"publishing to S: no success for 0\.1 s: 503"):
            run(Server(lambda number: "503"), retry_seconds=0.1, atomic_batch=batch)


def test_no_second_sending_when_the_ids_may_be_forgotten() -> None:
    server = Server(lambda number: "silence" if number == 40 else "")
    with pytest.raises(PublishError, match=r"remembers message ids for 0\.1 s: sending again could store it twice"):
        run(server, safe_seconds=0.1)
    assert len(server.stored) == 40


def test_patience_begins_with_the_first_failure() -> None:
    """However long rows took to come before that."""
    with Peer(Server(lambda number: "drop" if number == 3 else "")) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=1, retry_seconds=0.2, ids=b"i:")
        with contextlib.closing(link):
            for i in range(5):
                time.sleep(0.3)
                publisher.publish(columns([b"%d" % i]))
            publisher.finish()  # what was sent again last may have no ack before that
    assert publisher.stored + publisher.duplicates == 5


def test_what_the_server_takes_is_headers_and_payload() -> None:
    with Peer(Server(), {"max_payload": 100}) as peer:
        link = ServerLink(ServerOptions((peer.url,)))
        publisher = WindowedPublisher(link, "S", window=8, retry_seconds=1)
        publisher.publish(columns([bytes(100)]))
        publisher.finish()
        with pytest.raises(PublishError, match=r"s: a payload of 90 bytes with 17 of headers; the server takes 100"):
            blocks = pa.array([b"", b"NATS/1.0\r\nA:B\r\n\r\n"], pa.binary())
            publisher.publish(columns([b"", bytes(90)], blocks=blocks))
        link.close()


def test_the_next_server_is_taken() -> None:
    server = Server()
    gone = Peer(server)
    with Peer(server) as there:
        link = ServerLink(ServerOptions((gone.url, there.url)))
        publisher = WindowedPublisher(link, "S", window=4, retry_seconds=10, ids=b"i:")
        with contextlib.closing(link):
            for i in range(20):
                if i == 10:
                    gone.close()
                publisher.publish(columns([b"%d" % i]))
            publisher.finish()
    assert sorted(server.stored, key=int) == numbers(20)
