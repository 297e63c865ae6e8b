"""SOURCED: a mirror keeps what its upstream has, a source adds to the stream; nothing is lost or stored twice."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import sourced
from jetcluster.stream.apply.machine import REFUSED, StreamMachine
from jetcluster.stream.log import bodies, commands
from jetcluster.stream.log.bodies import cut
from jetcluster.stream.rules import StreamRules, link_key
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import block

T0 = 1_700_000_000_000_000_000
SECOND = 10**9
SOURCE = {"name": "UP"}
KEY = link_key(SOURCE)


class Stream:
    def __init__(self, **config: Any) -> None:
        self.kv = MemKv()
        self.store = BlockStore(self.kv, 7, memory=False)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store)
        self.index = 0
        self.now = T0 + 1000 * SECOND
        self.configure(**config)

    def apply(self, command: bytes) -> Any:
        self.index += 1
        return self.machine.apply(self.index, 1, command)

    def configure(self, **config: Any) -> None:
        self.apply(commands.encode_update_config(0, {"name": "S", **config}))

    def restart(self) -> None:
        before = self.machine.hash
        self.kv.commit()
        self.store = BlockStore(self.kv, 7, memory=False)
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store)
        assert self.machine.hash == before

    def mirror(self, after: int, *seqs: int, upto: int = 0, lag: int = 0, headers: bytes = b"", step: int = 1) -> Any:
        times = [T0 + seq * step for seq in seqs]
        count = len(seqs)
        runs = cut(list(seqs), times, [b"m"] * count, [headers] * count, [b"%d" % seq for seq in seqs])
        body = bodies.encode_sourced(b"", b"id", lag, after, upto, runs)
        return self.apply(commands.encode_sourced(self.now, body))

    def source(
        self, after: int, *seqs: int, upto: int = 0, identity: bytes = b"id", key: bytes = KEY, headers: bytes = b"",
    ) -> Any:  # fmt: skip
        batch = b""
        if seqs:
            batch = Batch.encode([b"s"] * len(seqs), [headers] * len(seqs), [b"%d" % seq for seq in seqs])
        body = bodies.encode_sourced(key, identity, 0, after, upto, (), seqs, batch)
        return self.apply(commands.encode_sourced(self.now, body))

    def stored(self) -> list[tuple[int, int, bytes]]:
        return [(m.seq, m.ts - T0, m.payload) for m in self.store.queries.scan(b">", 1)]

    def payloads(self) -> list[bytes]:
        return [payload for _, _, payload in self.stored()]


def code(result: Any) -> int:
    assert isinstance(result, ApiError), result
    return result.err_code


# ---- mirrors


def mirror(**config: Any) -> Stream:
    return Stream(mirror={"name": "UP"}, **config)


@pytest.fixture
def s() -> Stream:
    return mirror()


def test_a_mirror_keeps_sequences_and_times(s: Stream) -> None:
    assert s.mirror(0, 3, 4, 7, step=5) == 7
    assert s.stored() == [(3, 15, b"3"), (4, 20, b"4"), (7, 35, b"7")]
    assert (s.store.first_seq, s.store.last_seq, s.store.num_deleted) == (3, 7, 2)


def test_what_comes_twice_is_stored_once(s: Stream) -> None:
    s.mirror(0, 1, 2, 3)
    assert s.mirror(0, 1, 2, 3) == 3
    assert s.mirror(1, 2, 3, 4, 5) == 5
    assert s.payloads() == [b"1", b"2", b"3", b"4", b"5"]
    assert s.stored()[3] == (4, 4, b"4")


def test_a_command_behind_a_lost_one_is_refused(s: Stream) -> None:
    s.mirror(0, 1, 2)
    assert code(s.mirror(5, 6)) == 10003
    assert s.payloads() == [b"1", b"2"]
    assert s.mirror(2, 6) == 6  # this link saw what is between, and there was nothing


def test_the_end_of_the_upstream_may_be_gaps(s: Stream) -> None:
    assert s.mirror(0, upto=9) == 9
    assert (s.store.first_seq, s.store.last_seq) == (10, 9)
    assert s.mirror(9, 10, upto=20) == 20
    assert (s.store.messages, s.store.first_seq, s.store.last_seq) == (1, 10, 20)


def test_times_never_go_back(s: Stream) -> None:
    s.mirror(0, 1, 2, step=100)
    s.mirror(2, 3, step=1)
    assert [ts for _, ts, _ in s.stored()] == [100, 200, 201]


def test_limits_of_the_mirror_hold() -> None:
    s = mirror(max_msgs=2)
    s.mirror(0, 1, 2, 3, 4)
    assert s.payloads() == [b"3", b"4"]
    s.configure(mirror={"name": "UP"}, max_msgs=2, max_age=100 * SECOND)
    s.apply(commands.encode_expire(s.now))
    assert s.payloads() == []
    assert s.store.last_seq == 4


def test_a_full_mirror_takes_what_fits_and_goes_on_later() -> None:
    s = mirror(max_msgs=3, discard="new")
    assert code(s.mirror(0, 1, 2, 3, 4, 5)) == 10077
    assert s.payloads() == [b"1", b"2", b"3"]
    cursor = s.machine.cursor(b"")
    assert cursor is not None and cursor.lag == 2
    s.apply(commands.encode_purge(s.now))
    assert s.mirror(3, 4, 5) == 5
    assert s.payloads() == [b"4", b"5"]


@pytest.mark.parametrize("mirrors", [False, True])
def test_a_full_stream_takes_no_message_that_needs_more_bytes_than_the_one_that_it_replaces(*, mirrors: bool) -> None:
    config: dict[str, Any] = {"max_bytes": 32, "max_msgs_per_subject": 1, "discard": "new"}
    s = mirror(**config) if mirrors else Stream(sources=[SOURCE], **config)
    give = s.mirror if mirrors else s.source
    give(0)
    assert give(0, 9, upto=9) == 9
    assert code(give(9, 10, upto=10)) == 10077, "one digit more"
    assert s.payloads() == [b"9"]


def test_headers_act_only_where_the_mirror_allows_it() -> None:
    plain, rolling = mirror(), mirror(allow_rollup_hdrs=True, allow_msg_ttl=True)
    for s in (plain, rolling):
        s.mirror(0, 1, 2)
        s.mirror(2, 3, headers=block("Nats-Rollup: sub", "Nats-TTL: 5s", "Nats-Expected-Last-Sequence: 77"))
    assert plain.payloads() == [b"1", b"2", b"3"]
    assert rolling.payloads() == [b"3"]
    rolling.apply(commands.encode_expire(rolling.now))
    plain.apply(commands.encode_expire(plain.now))
    assert (rolling.payloads(), len(plain.payloads())) == ([], 3)


def test_a_sealed_mirror_takes_nothing() -> None:
    s = mirror(sealed=True)
    assert code(s.mirror(0, 1)) == 10109


def test_no_mirror_any_more(s: Stream) -> None:
    s.mirror(0, 1, 2)
    s.configure(subjects=["m"])
    assert code(s.mirror(2, 3)) == 10003
    assert s.machine.cursor(b"") is None
    first = s.apply(commands.encode_publish(s.now, Batch.encode([b"m"], [], [b"own"]))).first_seq
    assert first == 3
    assert s.stored()[-1][1] > s.stored()[-2][1]


def test_the_cursor_survives(s: Stream) -> None:
    s.mirror(0, 1, 2, lag=70)
    s.restart()
    cursor = s.machine.cursor(b"")
    assert cursor == sourced.Cursor(2, b"id", 70)
    assert s.mirror(2, 3) == 3


# ---- sources


def test_a_source_adds_with_own_sequences() -> None:
    s = Stream(sources=[SOURCE], subjects=["own"])
    s.apply(commands.encode_publish(s.now, Batch.encode([b"own"], [], [b"o"])))
    assert s.source(0) == 0
    assert s.source(0, 5, 9, upto=9) == 9
    assert s.payloads() == [b"o", b"5", b"9"]
    assert [seq for seq, _, _ in s.stored()] == [1, 2, 3]
    assert s.store.last_ts >= s.now


def test_a_source_goes_on_where_it_stood() -> None:
    s = Stream(sources=[SOURCE])
    s.source(0)
    assert s.source(0, 1, 2, upto=2) == 2
    assert s.source(0, 1, 2, 3, upto=3) == 3
    s.restart()
    assert s.source(1, 2, 3, 4, upto=4) == 4
    assert s.payloads() == [b"1", b"2", b"3", b"4"]
    assert code(s.source(6, 7, upto=7)) == 10003


def test_messages_before_the_link_has_said_where_it_begins_are_refused() -> None:
    s = Stream(sources=[SOURCE])
    assert code(s.source(5, 6, upto=6)) == 10003
    assert s.source(5) == 5
    assert s.source(5, 6, upto=6) == 6


def test_an_upstream_created_anew_is_read_from_its_beginning() -> None:
    s = Stream(sources=[SOURCE])
    s.source(0)
    s.source(0, 1, 2, upto=2)
    assert code(s.source(2, identity=b"other")) == 10003
    assert s.source(0, identity=b"other") == 0
    assert s.source(0, 1, identity=b"other", upto=1) == 1
    assert s.payloads() == [b"1", b"2", b"1"]


def test_ids_of_two_sources() -> None:
    other = {"name": "UP", "filter_subject": "x"}
    s = Stream(sources=[SOURCE, other], duplicate_window=60 * SECOND)
    for key in (KEY, link_key(other)):
        s.source(0, key=key)
        assert s.source(0, 1, key=key, upto=1, headers=block("Nats-Msg-Id: one")) == 1
    assert s.payloads() == [b"1"]


@pytest.mark.parametrize("window", [0, 60 * SECOND])
def test_the_last_id_is_known(window: int) -> None:
    s = Stream(sources=[SOURCE], subjects=["own"], duplicate_window=window)
    s.source(0)
    s.source(0, 1, upto=1, headers=block("Nats-Msg-Id: one"))

    def expect(msg_id: str) -> bool:
        headers = [block(f"Nats-Expected-Last-Msg-Id: {msg_id}")]
        return s.apply(commands.encode_publish(s.now, Batch.encode([b"own"], headers, [b"x"]))).verdicts is None

    assert not expect("two")
    assert expect("one")


def test_a_full_stream_keeps_its_place() -> None:
    s = Stream(sources=[SOURCE], max_msgs=2, discard="new")
    s.source(0)
    assert code(s.source(0, 1, 2, 3, upto=3)) == 10077
    cursor = s.machine.cursor(KEY)
    assert cursor is not None and (cursor.seq, cursor.lag) == (2, 1)
    s.apply(commands.encode_purge(s.now))
    assert s.source(2, 3, upto=3) == 3
    assert s.payloads() == [b"3"]


def test_a_source_taken_out_is_forgotten() -> None:
    s = Stream(sources=[SOURCE])
    s.source(0)
    s.configure(sources=[{"name": "ELSE"}])
    assert s.machine.cursor(KEY) is None
    assert code(s.source(0, 1)) == 10003


def test_the_streams_own_transform_applies() -> None:
    s = Stream(sources=[SOURCE], subject_transform={"src": "s", "dest": "t"})
    s.source(0)
    s.source(0, 1)
    assert [m.subject for m in s.store.queries.scan(b">", 1)] == [b"t"]


@pytest.mark.parametrize("cut_off", [1, 9, 20])
def test_not_a_command(cut_off: int) -> None:
    s = Stream(sources=[SOURCE])
    body = bodies.encode_sourced(KEY, b"id", 0, 0, 0, (), [1], Batch.encode([b"s"], [], [b"p"]))
    assert s.apply(commands.encode_sourced(s.now, body[:-cut_off])) is REFUSED


@pytest.mark.parametrize(("seq", "ts", "upto"), [
    (1 << 63, T0, 0), ((1 << 64) - 1, T0, 0), (1, T0, 1 << 63), (1, T0, (1 << 64) - 1),
    (1, 1 << 62, 0), (1, (1 << 63) - 1, 0), (1, -(1 << 63), 0),
])  # fmt: skip
def test_a_mirror_does_not_follow_beyond_what_a_stream_can_hold(seq: int, ts: int, upto: int) -> None:
    stream = Stream(mirror={"name": "UP"})
    body = bodies.encode_sourced(b"", b"id", 0, 0, upto, cut([seq], [ts], [b"m"], [b""], [b"x"]))
    refused = stream.apply(commands.encode_sourced(stream.now, body))
    assert isinstance(refused, ApiError) and refused.err_code == 10052
    assert stream.mirror(0, 1, 2) == 2
    stream.restart()
    assert stream.store.last_seq == 2
