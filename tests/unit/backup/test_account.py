"""The questions to the servers, and what their answers become."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from jetcluster.backup import account
from jetcluster.backup.account import AccountReader, StreamSeen
from jetcluster.backup.sequences import Sequences
from jetcluster.client.listing import UnansweredError
from jetcluster.client.reply import NoRespondersError, ServerError
from jetcluster.client.servers import ServerOptions
from tests.unit.backup.fake_stream import FakeServer, message
from tests.unit.client.fake_server import Peer


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "LAG_SECONDS", 0.02)
    monkeypatch.setattr(account, "RETRY_SECONDS", 0.005)


@contextlib.contextmanager
def reader(server: FakeServer, patience: float = 5.0) -> Iterator[AccountReader]:
    with Peer(server) as peer, AccountReader(ServerOptions((peer.url,)), patience) as found:
        yield found


def seen(found: AccountReader) -> StreamSeen:
    stream = found.look("S")
    assert stream is not None
    return stream


def test_a_stream_is_what_its_leader_says() -> None:
    with reader(FakeServer([3, 4, 6])) as found:
        stream = seen(found)
        assert stream.live == Sequences.of([3, 4, 6])
        assert (stream.created, stream.last, stream.consumers, stream.direct) == ("then", 6, 0, True)
        assert found.look("T") is None
        assert found.read_bytes > 100
        assert list(found.configs()) == ["S0", "S1", "S2", "S3", "S4"]


def test_an_account_is_named_with_its_cluster() -> None:
    """So that two restores into it are seen."""
    server = FakeServer([1])
    with (
        Peer(server, {"cluster": "C"}) as peer, Peer(server) as other,  # a peer serves one connection at a time
        AccountReader(ServerOptions((peer.url, other.url))) as found,
    ):  # fmt: skip
        assert found.info() == {"streams": 1, "cluster": "C", "account": "APP"}
        server.user = None
        assert found.info() == {"streams": 1, "cluster": "C", "account": ""}
        assert found.look("S") is not None  # a user who may not ask that may go on


def test_a_stream_that_does_not_answer_is_not_left_out() -> None:
    server = FakeServer([1])
    server.names = ["R", "S", "T"]
    server.silent = {"S"}
    with reader(server, patience=0.1) as found, pytest.raises(UnansweredError, match="lacks S"):
        found.configs()
    server.silent = {"T"}  # deleted meanwhile
    with reader(server) as found:
        assert list(found.configs()) == ["R", "S"]


def test_too_many_deleted_messages_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "MAX_DELETED", 1)
    with reader(FakeServer([1, 4])) as found:
        assert seen(found).live is None
        assert [one.seq for one in found.whole("S")] == [1, 4]


def test_a_server_that_does_not_list_them_is_believed_nothing() -> None:
    server = FakeServer([1, 4])
    server.list_deleted = False
    with reader(server) as found:
        assert seen(found).live is None


@pytest.mark.parametrize("direct", [True, False])
def test_messages_come_byte_for_byte(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "BATCH", 3)
    monkeypatch.setattr(account, "REQUESTS", 2)
    server = FakeServer([1, 2, 5, 6, 7, 8, 11])
    server.direct = direct
    with reader(server) as found:
        wanted = Sequences.of([2, 5, 7, 8, 11])
        assert list(found.messages(seen(found), wanted)) == [message(seq) for seq in wanted]
        assert (server.batches > 0, server.singles > 0) == (direct, not direct)


def test_what_a_replica_does_not_have_is_asked_of_the_leader() -> None:
    server = FakeServer([1, 2, 3, 4, 5, 6])
    for seq in (2, 5, 6):
        del server.replica[seq]
    with reader(server) as found:
        stream = seen(found)
        del server.leader[5]  # deleted meanwhile
        assert stream.live is not None
        assert [one.seq for one in found.messages(stream, stream.live)] == [1, 2, 3, 4, 6]
        assert server.singles == 3


@pytest.mark.thorough
@pytest.mark.parametrize("replica", ["leader", "empty"])
@pytest.mark.parametrize(("largest", "most"), [(1 << 20, 64), (32 << 20, 2), (1 << 30, 1)])
def test_few_large_messages_are_in_memory_at_a_time(largest: int, most: int, replica: str) -> None:
    """Without Direct Gets, and where a replica answers that has none."""
    server = FakeServer(list(range(1, 301)))
    server.direct = replica == "empty"
    server.replica.clear()
    with Peer(server, {"max_payload": largest}) as peer, AccountReader(ServerOptions((peer.url,))) as found:
        messages = found.messages(seen(found), Sequences(((1, 300),)))
        assert next(messages) == message(1)
        assert server.singles == most
        assert list(messages) == [message(seq) for seq in range(2, 301)]
        assert server.singles == 300


def test_a_mirror_that_answers_is_not_believed() -> None:
    server = FakeServer([1, 2])
    server.answering = b"COPY"
    with reader(server) as found:
        stream = seen(found)
        assert stream.live is not None
        assert list(found.messages(stream, stream.live)) == [message(1), message(2)]
        assert server.singles == 2


def test_many_missing_messages_are_looked_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account, "SINGLE_GETS", 10)
    server = FakeServer(list(range(1, 101)))
    with reader(server) as found:
        stream = seen(found)
        for seq in range(20, 101):
            del server.replica[seq]
            if seq > 25:
                del server.leader[seq]
        server.last = 100
        assert stream.live is not None
        assert [one.seq for one in found.messages(stream, stream.live)] == list(range(1, 26))
        assert server.singles == 6


def test_requests_are_repeated_while_nobody_answers() -> None:
    server = FakeServer([1])
    busy = b"HMSG %(reply)b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    with reader(server) as found:
        server.failures = [busy, busy, busy]
        stream = seen(found)
        server.failures = [busy, busy]
        assert list(found.singles("S", Sequences.of([1]))) == [message(1)]
        server.failures = [busy]
        assert stream.live is not None
        assert list(found.messages(stream, stream.live)) == [message(1)]
    with reader(server, patience=0.02) as found:
        server.failures = [busy] * 100
        with pytest.raises(NoRespondersError):
            found.look("S")


def test_a_server_that_was_never_reached_is_no_reason_to_wait() -> None:
    with AccountReader(ServerOptions(("nats://127.0.0.1:1",)), 60.0) as found, pytest.raises(ServerError):
        found.look("S")


def test_consumers_come_with_what_is_pending() -> None:
    server = FakeServer([1, 2, 3])
    server.consumers = {"a": {"config": {"durable_name": "a"}, "state": {"pending": {"1": {"Sequence": 1}}}}, "b": {}}
    with reader(server) as found:
        assert found.consumers("S") == server.consumers


def test_a_server_with_older_archives_tells_the_ack_floors() -> None:
    server = FakeServer([1, 2, 3])
    server.consumers = {"a": {}, "b": {}}
    server.format = b"meta.inf"
    floor = {"consumer_seq": 3, "stream_seq": 4}
    with reader(server) as found:
        state = {"config": {}, "state": {"delivered": floor, "ack_floor": floor}}
        assert found.consumers("S") == {"a": state, "b": state}
