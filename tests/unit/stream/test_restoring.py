"""RESTORE in apply: sequences and times are kept, twice is once, nothing else happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import restoring
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.log import commands
from jetcluster.stream.log.bodies import encode_runs
from jetcluster.stream.ports import SIDE_COUNTED
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import block

SECOND = 1_000_000_000
CONFIG: dict[str, Any] = {"name": "S", "storage": "file", "num_replicas": 1, "subjects": ["s.>"], "allow_msg_ttl": True}
MESSAGES = [
    Msg(3, 100, b"s.a", b"", b"three"),
    Msg(4, 101, b"s.b", b"NATS/1.0\r\nX: 1\r\n\r\n", b"four"),
    Msg(5, 500, b"s.a", b"", b"five"),
    Msg(9, 500, b"s.c", b"NATS/1.0\r\nNats-TTL: 5s\r\n\r\n", b"nine"),
]


class Stream:
    def __init__(self, config: dict[str, Any]) -> None:
        self.kv = MemKv()
        self.store = BlockStore(self.kv, 1, memory=False)
        self.machine = StreamMachine("S", StreamRules.from_config(config), self.store)
        self.index = 0
        self.update(config, 1)

    def apply(self, command: bytes) -> Any:
        self.index += 1
        return self.machine.apply(self.index, 1, command)

    def update(self, config: dict[str, Any], revision: int) -> None:
        self.apply(commands.encode_update_config(1, config, revision))

    def restore(self, messages: list[Msg]) -> Any:
        return self.apply(commands.encode_restore(1, encode_runs(list(restoring.each_run(messages)))))

    def messages(self) -> list[Msg]:
        return list(self.store.queries.scan(b">", 1))


@pytest.fixture
def stream() -> Stream:
    return Stream({**CONFIG, "restoring": True})


def test_runs_join_what_goes_on_by_one() -> None:
    assert [(run.seq, run.ts, run.batch.count) for run in restoring.each_run(MESSAGES)] == [
        (3, 100, 2), (5, 500, 1), (9, 500, 1),
    ]  # fmt: skip
    assert list(restoring.each_run([])) == []


def test_sequences_times_and_the_last_sequence_are_kept(stream: Stream) -> None:
    assert stream.restore(MESSAGES) == 4
    assert stream.restore(MESSAGES) == 0  # again, after a change of leaders
    assert stream.apply(commands.encode_restore_end(1, 12, 500)) == 0
    stream.update(CONFIG, 2)
    assert stream.messages() == MESSAGES
    state = stream.store.state
    assert (state.first_seq, state.last_seq, state.messages, state.num_deleted) == (3, 12, 4, 6)
    stream.apply(commands.encode_publish(1, Batch.encode([b"s.x"], [], [b"new"])))
    message = stream.store.get(13)
    assert message is not None
    assert message.ts > 500


def test_an_empty_archive_keeps_the_last_sequence(stream: Stream) -> None:
    assert stream.apply(commands.encode_restore_end(1, 7, 0)) == 0
    assert (stream.store.first_seq, stream.store.last_seq) == (8, 7)


def test_nothing_else_is_taken_meanwhile(stream: Stream) -> None:
    stream.restore(MESSAGES[:1])
    stream.apply(commands.encode_publish(1, Batch.encode([b"s.x"], [], [b"no"])))
    assert isinstance(stream.apply(commands.encode_purge(1)), ApiError)
    assert isinstance(stream.apply(commands.encode_delete_msg(1, 3)), ApiError)
    assert stream.messages() == MESSAGES[:1]
    assert stream.machine.rules.subjects == ()
    assert not stream.machine.rules.allow_direct


def test_an_ordinary_stream_takes_no_archive() -> None:
    stream = Stream(CONFIG)
    assert isinstance(stream.restore(MESSAGES), ApiError)
    assert isinstance(stream.apply(commands.encode_restore_end(1, 12, 0)), ApiError)
    assert stream.messages() == []


def test_ttls_hold_again(stream: Stream) -> None:
    stream.restore(MESSAGES)
    stream.apply(commands.encode_restore_end(1, 9, 500))
    stream.update(CONFIG, 2)
    stream.apply(commands.encode_expire(20 * SECOND))
    assert [message.seq for message in stream.messages()] == [3, 4, 5]


def test_a_ttl_that_ends_meanwhile_leaves_its_marker_afterwards() -> None:
    """The archive may hold a newer message of the subject, and rules of markers are not in force yet."""
    config = {**CONFIG, "allow_rollup_hdrs": True, "subject_delete_marker_ttl": 60 * SECOND}
    stream = Stream({**config, "restoring": True})
    stream.restore(MESSAGES)
    assert stream.machine.next_expiry is None
    stream.apply(commands.encode_restore_end(1, 9, 500))
    assert stream.machine.next_expiry is None
    stream.apply(commands.encode_update_config(20 * SECOND, config, 2))
    assert [(message.seq, message.subject) for message in stream.messages()[:3]] == [
        (3, b"s.a"),
        (4, b"s.b"),
        (5, b"s.a"),
    ]
    (marker,) = stream.messages()[3:]
    assert (marker.seq, marker.subject) == (10, b"s.c") and b"Nats-Marker-Reason: MaxAge" in marker.headers
    assert stream.machine.next_expiry is not None, "that of the marker"


def test_limits_hold_when_it_is_done(stream: Stream) -> None:
    stream.restore(MESSAGES)
    assert stream.store.messages == 4
    stream.update({**CONFIG, "max_msgs": 2}, 2)
    assert [message.seq for message in stream.messages()] == [5, 9]


def test_commands_are_decoded_strictly() -> None:
    runs = encode_runs(restoring.each_run(MESSAGES))
    decoded = commands.decode(commands.encode_restore(5, runs))
    assert isinstance(decoded, commands.Restore)
    assert [run.seq for run in decoded.runs] == [3, 5, 9]
    backwards = encode_runs(list(restoring.each_run(MESSAGES))[::-1])
    for bad in (runs[:-1], backwards):
        with pytest.raises(commands.CommandError):
            commands.decode(commands.encode_restore(5, bad))
    with pytest.raises(commands.CommandError):
        commands.decode(commands.encode_restore_end(1, 2, 3) + b"x")


def sent(msg_id: str, **config: Any) -> tuple[Stream, Any]:
    """A stream made of three messages with ids, restored at 100 s; what publishing `msg_id` then gives."""
    config = {**CONFIG, "duplicate_window": 60 * SECOND, **config}
    stream = Stream({**config, "restoring": True})
    messages = [
        Msg(seq, seconds * SECOND, b"s.a", b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\n\r\n" % seq, b"")
        for seq, seconds in ((2, 30), (3, 50), (4, 90))
    ]
    runs = encode_runs(list(restoring.each_run(messages)))
    stream.apply(commands.encode_restore(100 * SECOND, runs))
    stream.apply(commands.encode_restore_end(100 * SECOND, 4, 90 * SECOND))
    stream.update(config, 2)
    headers = f"NATS/1.0\r\nNats-Msg-Id: {msg_id}\r\n\r\n".encode()
    return stream, stream.apply(commands.encode_publish(105 * SECOND, Batch.encode([b"s.a"], [headers], [b""])))


@pytest.mark.parametrize(("msg_id", "seq"), [("id-4", 4), ("id-3", 3), ("id-2", None), ("id-9", None)])
def test_message_ids_inside_the_window_are_known_again(msg_id: str, seq: int | None) -> None:
    stream, _ = sent(msg_id)
    assert stream.store.last_seq == (4 if seq else 5)


def test_ids_are_forgotten_in_time_and_survive_a_restart() -> None:
    stream, _ = sent("id-4")
    again = StreamMachine("S", StreamRules.from_config(CONFIG), stream.store)
    assert again.dedupe_ids == stream.machine.dedupe_ids == 2
    headers = b"NATS/1.0\r\nNats-Msg-Id: id-3\r\n\r\n"
    stream.apply(commands.encode_publish(111 * SECOND, Batch.encode([b"s.a"], [headers], [b""])))
    assert stream.store.last_seq == 5


def test_the_last_message_id_is_known_again() -> None:
    stream, _ = sent("id-4")
    headers = b"NATS/1.0\r\nNats-Expected-Last-Msg-Id: id-4\r\n\r\n"
    stream.apply(commands.encode_publish(106 * SECOND, Batch.encode([b"s.a"], [headers], [b""])))
    assert stream.store.last_seq == 5


def test_a_stream_without_a_window_remembers_nothing() -> None:
    stream, _ = sent("id-4", duplicate_window=0)
    assert (stream.machine.dedupe_ids, stream.store.last_seq) == (0, 5)


@pytest.mark.parametrize(("seq", "ts"), [(1 << 63, 100), (3, 1 << 62), (3, (1 << 63) - 1), (3, -(1 << 63))])
def test_what_no_stream_can_hold_is_refused(stream: Stream, seq: int, ts: int) -> None:
    """Stored, it would raise at the next commit or publish, on all replicas alike."""
    refused = stream.restore([Msg(seq, ts, b"s.a", b"", b"x")])
    assert isinstance(refused, ApiError) and refused.err_code == 10062
    refused = stream.apply(commands.encode_restore_end(1, seq, ts))
    assert isinstance(refused, ApiError) and refused.err_code == 10062
    stream.update(CONFIG, 2)
    stream.apply(commands.encode_publish(1, Batch.encode([b"s.a"], [b""], [b""])))
    stream.kv.commit()
    assert stream.store.last_seq == 1


@pytest.mark.parametrize("counted", [True, False])
def test_a_restored_counter_goes_on_with_what_it_has_counted_of_sources(counted: bool) -> None:
    """Also one that has no sources any more; older servers restore it without (level 7)."""
    config = {**CONFIG, "allow_msg_counter": True}
    stream = Stream({**config, "restoring": True})
    header = block("Nats-Incr: 5", 'Nats-Counter-Sources: {"UP":{"a":"5"}}')
    runs = encode_runs(list(restoring.each_run([Msg(1, 100, b"a", header, b'{"val":"5"}')])))
    assert stream.apply(commands.encode_restore(1, runs, counted=counted)) == 1
    stream.apply(commands.encode_restore_end(1, 1, 100))
    stream.update(config, 2)
    batch = Batch.encode([b"a"], [block("Nats-Incr: 1")], [b""])
    stream.apply(commands.encode_publish(200, batch))
    fields = nats_fields(stream.messages()[-1].headers)
    assert fields.get(b"Nats-Counter-Sources") == (b'{"UP":{"a":"5"}}' if counted else None)
    assert stream.messages()[-1].payload == b'{"val":"6"}'


def test_a_stream_that_counts_nothing_takes_no_note_of_it(stream: Stream) -> None:
    runs = encode_runs(list(restoring.each_run(MESSAGES)))
    stream.apply(commands.encode_restore(1, runs, counted=True))
    stream.update({**CONFIG}, 2)
    assert not stream.machine.tracks_sources and stream.store.side_get(SIDE_COUNTED, b"") is None
