"""Snapshots: acknowledged as they come, ended when the consumers are there, refused when they are cut off."""

from __future__ import annotations

import pytest

from jetcluster.backup.snapshot_reader import SnapshotEndedError, consumers_in, entries
from jetcluster.client.connection import Connection
from tests.unit.backup.fake_stream import FakeServer, message
from tests.unit.client.fake_server import Peer


def test_all_messages_come_and_every_piece_is_acknowledged() -> None:
    with Peer(FakeServer(list(range(1, 40)))) as peer, Connection([peer.url]) as connection:
        found = [entry for entry in entries(connection, "S", 5.0, consumers=False) if entry.seq]
        assert [(one.seq, one.name, one.payload) for one in found] == [
            (seq, message(seq).subject, message(seq).payload) for seq in range(1, 40)
        ]
        connection.flush()
        acks = [subject for subject, *_ in peer.published if subject.startswith(b"$JS.SNAPSHOT.ACK.")]
        assert acks[:24] == [b"$JS.SNAPSHOT.ACK.S.x.64.%d" % number for number in range(24)]


def test_consumers_are_read_and_the_rest_is_not_waited_for() -> None:
    server = FakeServer(list(range(1, 40)))
    server.consumers = {"a": {"config": {}}, "b": {"config": {"x": 1}}}
    with Peer(server) as peer, Connection([peer.url]) as connection:
        assert consumers_in(connection, "S", 5.0) == server.consumers
        acks = [subject for subject, *_ in peer.published if subject.startswith(b"$JS.SNAPSHOT.ACK.")]
        assert acks[-1].startswith(b"$JS.SNAPSHOT.ACK.S.x.0."), "so that the sender sees that nobody is there"
        assert consumers_in(connection, "S", 5.0) == server.consumers  # over the same connection
        server.consumers = {}
        assert consumers_in(connection, "S", 5.0) == {}


def test_a_snapshot_that_is_cut_off_is_told() -> None:
    server = FakeServer(list(range(1, 40)))
    server.ended = b"NATS/1.0 408 No Flow Response\r\n\r\n"
    with (
        Peer(server) as peer,
        Connection([peer.url]) as connection,
        pytest.raises(SnapshotEndedError, match="No Flow Response"),
    ):
        list(entries(connection, "S", 5.0, consumers=False))


def test_a_server_with_too_many_snapshots_is_asked_again_later() -> None:
    error = b'{"error":{"code":500,"err_code":10064,"description":"snapshot failed: too many"}}'
    server = FakeServer([1])
    server.failures = [b"MSG %%(reply)b 1 %d\r\n%b\r\n" % (len(error), error)]
    with (
        Peer(server) as peer,
        Connection([peer.url]) as connection,
        pytest.raises(SnapshotEndedError, match="too many"),
    ):
        consumers_in(connection, "S", 5.0)
