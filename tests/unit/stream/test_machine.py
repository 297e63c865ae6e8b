from __future__ import annotations

import pytest

from jetcluster.errors import ApiError
from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StateError, StreamMachine
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import UnknownCommandError
from jetcluster.stream.ports import Duplicate, PublishResult, Result
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import NaiveStore, block

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000

Message = tuple[str, bytes, bytes]


class Stream:
    """A machine with an index that counts itself and a clock that the test moves."""

    def __init__(self, **config: object) -> None:
        config.setdefault("duplicate_window", 120 * SECOND)
        self.store = NaiveStore(memory=config.get("storage") == "memory")
        self.machine = StreamMachine("S", StreamRules.from_config({}), self.store)
        self.index = 0
        self.now = T0
        self.apply(commands.encode_update_config(0, {"name": "S", **config}))

    def apply(self, command: bytes) -> Result:
        self.index += 1
        return self.machine.apply(self.index, 1, command)

    def publish(self, *messages: Message) -> PublishResult:
        subjects = [subject.encode() for subject, _, _ in messages]
        batch = Batch.encode(subjects, [h for _, h, _ in messages], [p for _, _, p in messages])
        result = self.apply(commands.encode_publish(self.now, batch))
        assert isinstance(result, PublishResult)
        return result

    def one(self, subject: str, *fields: str, payload: bytes = b"x") -> object:
        """Publishes one message; its sequence, Duplicate, or (err_code, description)."""
        result = self.publish((subject, block(*fields) if fields else b"", payload))
        verdict = result.verdicts[0] if result.verdicts is not None else result.first_seq
        return (verdict.err_code, verdict.description) if isinstance(verdict, ApiError) else verdict

    def restart(self) -> None:
        before = self.machine
        self.machine = StreamMachine("S", StreamRules.from_config({"name": "S"}), self.store.reopen())
        assert self.machine.hash == before.hash and self.machine.applied_index == before.applied_index
        assert self.machine.config == before.config

    def seqs(self) -> list[int]:
        return sorted(self.store.rows)


def plain(n: int, subject: str = "a") -> list[Message]:
    return [(subject, b"", b"%d" % i) for i in range(n)]


@pytest.fixture
def stream() -> Stream:
    return Stream()


def test_a_plain_batch_is_stored_as_it_came_with_times_one_nanosecond_apart(stream: Stream) -> None:
    assert stream.publish(*plain(3)) == PublishResult(1, 3, None)
    stream.now -= 5 * SECOND  # the next leader's clock is behind
    assert stream.publish(*plain(2)) == PublishResult(4, 2, None)
    assert [m.ts - T0 for m in stream.store.rows.values()] == [0, 1, 2, 3, 4]
    assert stream.store.appends == 2


def test_user_headers_alone_do_not_split_the_batch(stream: Stream) -> None:
    assert stream.publish(("a", block("X: 1"), b""), ("b", b"", b"y")) == PublishResult(1, 2, None)
    assert stream.store.appends == 1


def test_state_survives_a_restart_and_indexes_may_not_repeat() -> None:
    stream = Stream(max_msgs=5)
    stream.publish(*plain(9))
    stream.restart()
    assert stream.machine.rules.max_msgs == 5
    assert stream.publish(*plain(1)) == PublishResult(10, 1, None)
    stream.index -= 1
    with pytest.raises(AssertionError):
        stream.publish(*plain(1))


def test_unreadable_machine_state_is_an_error(stream: Stream) -> None:
    stream.store.machine_state = b"\x07" + bytes(60)
    with pytest.raises(StateError):
        stream.machine.reload()


def test_unknown_command_stops_the_replica_without_a_trace(stream: Stream) -> None:
    before = stream.machine.hash
    for newer in (commands.HEAD.pack(99, 0, T0), commands.HEAD.pack(commands.PUBLISH, 64, T0)):
        with pytest.raises(UnknownCommandError):
            stream.apply(newer)
    assert (stream.machine.hash, stream.machine.applied_index) == (before, 1)


def test_hash_tells_different_commands_results_and_positions_apart() -> None:
    hashes = []
    for variant in range(4):
        stream = Stream(max_msg_size=1 if variant == 1 else 100)
        stream.index += variant == 2
        stream.publish(("a", b"", b"zz" if variant == 3 else b"yy"))
        hashes.append(stream.machine.hash)
    assert len(set(hashes)) == 4


# Nats-Msg-Id


def test_duplicate_is_acked_with_the_first_sequence_and_not_stored(stream: Stream) -> None:
    ids = [block("Nats-Msg-Id: 1"), block("Nats-Msg-Id: 2"), block("Nats-Msg-Id: 1"), b""]
    result = stream.publish(*[("a", headers, b"") for headers in ids])
    assert result == PublishResult(1, 4, [1, 2, Duplicate(1), 3])
    assert stream.one("b", "Nats-Msg-Id: 2") == Duplicate(2)
    assert stream.seqs() == [1, 2, 3]


def test_all_messages_of_a_batch_with_new_ids_are_one_append(stream: Stream) -> None:
    result = stream.publish(*[("a", block(f"Nats-Msg-Id: {i}"), b"") for i in range(50)])
    assert result == PublishResult(1, 50, None)
    assert stream.store.appends == 1


@pytest.mark.parametrize(
    ("headers", "msg_id"),
    [
        (block("Nats-Msg-Id:  x "), b"x"),
        (block("X: 1", "Nats-Msg-Id:x", "Y: 2"), b"x"),
        (block("Nats-Msg-Id:"), b""),
        (block("X: 1\nNats-Msg-Id: x"), b""),
        (b"NATS/1.0\r\nNats-Msg-Id: x", b"x"),
        (block("Nats-Msg-Id-Other: x"), b""),
        (block("Nats-Msg-Id: x", "Nats-Msg-Id: y"), b"x"),
    ],
)
def test_the_quick_look_at_ids_sees_what_the_closer_one_sees(headers: bytes, msg_id: bytes) -> None:
    assert nats_fields(headers).get(b"Nats-Msg-Id", b"") == msg_id
    stream = Stream()
    for _ in range(2):
        stream.publish(("a", headers, b""))
    assert stream.seqs() == ([1] if msg_id else [1, 2])
    last = "Nats-Expected-Last-Msg-Id: x"
    assert stream.one("a", last) == (2 if msg_id else (10070, "wrong last msg ID: "))


@pytest.mark.parametrize("restart", [False, True])
def test_the_window_ends_exactly_and_also_after_a_restart(restart: bool) -> None:
    stream = Stream(duplicate_window=10 * SECOND)
    assert stream.one("a", "Nats-Msg-Id: x") == 1
    stream.now += 10 * SECOND - 1
    if restart:
        stream.restart()
    assert stream.one("a", "Nats-Msg-Id: x") == Duplicate(1)
    stream.now += 1
    assert stream.one("a", "Nats-Msg-Id: x") == 2
    stream.now += 9 * SECOND
    assert stream.one("a", "Nats-Msg-Id: x") == Duplicate(2)


def test_ids_of_deleted_messages_are_remembered_across_a_restart(stream: Stream) -> None:
    stream.one("a", "Nats-Msg-Id: x")
    stream.apply(commands.encode_purge(T0))
    stream.restart()
    assert stream.one("a", "Nats-Msg-Id: x") == Duplicate(1)


def test_window_zero_switches_deduplication_off_and_forgets(stream: Stream) -> None:
    stream.one("a", "Nats-Msg-Id: x")
    stream.apply(commands.encode_update_config(T0, {"name": "S", "duplicate_window": 0}))
    assert stream.one("a", "Nats-Msg-Id: x") == 2
    stream.apply(commands.encode_update_config(T0, {"name": "S", "duplicate_window": SECOND}))
    assert stream.one("a", "Nats-Msg-Id: x") == 3


def test_shorter_window_counts_at_once(stream: Stream) -> None:
    stream.one("a", "Nats-Msg-Id: x")
    stream.apply(commands.encode_update_config(T0, {"name": "S", "duplicate_window": SECOND}))
    stream.now += SECOND
    assert stream.one("a", "Nats-Msg-Id: x") == 2


def test_duplicate_wins_over_a_stale_expectation(stream: Stream) -> None:
    assert stream.one("a", "Nats-Msg-Id: x", "Nats-Expected-Last-Sequence: 0") == 1
    assert stream.one("a", "Nats-Msg-Id: x", "Nats-Expected-Last-Sequence: 0") == Duplicate(1)


# expectations and refusals


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        (["Nats-Expected-Stream: S"], 4),
        (["Nats-Expected-Stream: T"], (10060, "expected stream does not match")),
        (["Nats-Expected-Last-Sequence: 3"], 4),
        (["Nats-Expected-Last-Sequence: 2"], (10071, "wrong last sequence: 3")),
        (["Nats-Expected-Last-Sequence: junk"], (10071, "wrong last sequence: 3")),
        (["Nats-Expected-Last-Sequence: -1"], (10071, "wrong last sequence: 3")),
        (["Nats-Expected-Last-Subject-Sequence: 1"], 4),
        (["Nats-Expected-Last-Subject-Sequence: 0"], (10071, "wrong last sequence: 1")),
        (["Nats-Expected-Last-Subject-Sequence: 2", "Nats-Expected-Last-Subject-Sequence-Subject: k.b"], 4),
        (
            ["Nats-Expected-Last-Subject-Sequence: 1", "Nats-Expected-Last-Subject-Sequence-Subject: k.b"],
            (10071, "wrong last sequence: 2"),
        ),
        (["Nats-Expected-Last-Subject-Sequence: 3", "Nats-Expected-Last-Subject-Sequence-Subject: k.*"], 4),
        (["Nats-Expected-Last-Subject-Sequence: 0", "Nats-Expected-Last-Subject-Sequence-Subject: other"], 4),
        (
            ["Nats-Expected-Last-Subject-Sequence-Subject: k.a"],
            (10193, "missing sequence for expected last sequence per subject"),
        ),
        (["Nats-Expected-Last-Msg-Id: m3"], 4),
        (["Nats-Expected-Last-Msg-Id: m2"], (10070, "wrong last msg ID: m3")),
        (["Nats-Rollup: sub"], (10111, "rollup not permitted")),
        (["Nats-TTL: 5"], (10166, "per-message TTL is disabled")),
        (["Nats-Incr: 1"], (10168, "message counters is disabled")),
        (["Nats-Batch-Id: b"], (10174, "atomic publish is disabled")),
        (["Nats-Batch-Id:"], 4),
        (["Nats-Schedule: @every 1s"], (10188, "message schedules is disabled")),
        (["Nats-Stream-Source: x"], (10227, "message stream source header is not allowed")),
        (["nats-expected-stream: T"], 4),
        (["Nats-Expected-Stream: S", "Nats-Expected-Stream: T"], 4),
    ],
)
def test_publish_headers(fields: list[str], verdict: object, stream: Stream) -> None:
    stream.one("k.a")
    stream.one("k.b")
    stream.one("k.c", "Nats-Msg-Id: m3")
    assert stream.one("k.a", *fields) == verdict
    assert stream.seqs() == ([1, 2, 3, 4] if verdict == 4 else [1, 2, 3])
    assert stream.one("k.a") == (5 if verdict == 4 else 4), "a refusal takes no sequence and leaves the stream usable"


def test_expectations_see_the_messages_before_them_in_the_same_command(stream: Stream) -> None:
    last, subject = "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"
    result = stream.publish(
        ("a", block(f"{last}: 0", "Nats-Msg-Id: i"), b""),
        ("b", block(f"{last}: 1", "Nats-Expected-Last-Msg-Id: i"), b""),
        ("a", block(f"{subject}: 1"), b""),
        ("c", block(f"{subject}: 3", f"{subject}-Subject: >"), b""),
        ("b", block(f"{subject}: 2"), b""),
        ("b", b"", b""),
    )
    assert result == PublishResult(1, 6, None)


def test_expectation_in_a_batch_that_evicts_the_subject_it_asks_about() -> None:
    stream = Stream(max_msgs=2)
    stream.publish(*plain(1, "old"))
    field = "Nats-Expected-Last-Subject-Sequence"
    result = stream.publish(
        ("a", block("X: 1"), b""), ("b", b"", b""), ("c", block(f"{field}: 0", f"{field}-Subject: old"), b"")
    )
    assert result.verdicts is None
    assert stream.seqs() == [3, 4]


def test_wrong_last_msg_id_leaves_an_r3_stream_usable(stream: Stream) -> None:
    assert stream.one("a", "Nats-Expected-Last-Msg-Id: zzz") == (10070, "wrong last msg ID: ")
    assert stream.one("a", "Nats-Msg-Id: 1") == 1
    stream.restart()
    assert stream.one("a", "Nats-Expected-Last-Msg-Id: 1") == 2
    assert stream.one("a", "Nats-Expected-Last-Msg-Id: 1") == (10070, "wrong last msg ID: ")


def test_max_msg_size_counts_headers_and_payload() -> None:
    stream = Stream(max_msg_size=20)
    assert stream.publish(("a", b"", b"x" * 20), ("a", b"", b"")) == PublishResult(1, 2, None)
    verdicts = stream.publish(("a", b"", b"x" * 21), ("a", b"", b"y")).verdicts
    assert verdicts is not None and isinstance(verdicts[0], ApiError)
    assert (verdicts[0].err_code, verdicts[1]) == (10054, 3)
    assert stream.one("a", "X: 1", payload=b"123456")[0] == 10054  # type: ignore[index]


def test_header_block_above_64k(stream: Stream) -> None:
    assert stream.one("a", "X: " + "y" * 65_518) == 1  # 65,535 bytes
    assert stream.one("a", "X: " + "y" * 65_519) == (10097, "header size exceeds maximum allowed of 64k")


def test_sealed_refuses_publish_delete_purge_but_not_updates(stream: Stream) -> None:
    stream.one("a")
    stream.apply(commands.encode_update_config(T0, {"name": "S", "sealed": True}))
    assert stream.one("a") == (10109, "invalid operation on sealed stream")
    assert stream.one("a", "Nats-Msg-Id: 1") == (10109, "invalid operation on sealed stream")
    for command in (commands.encode_purge(T0), commands.encode_delete_msg(T0, 1)):
        result = stream.apply(command)
        assert isinstance(result, ApiError) and result.err_code == 10109


# limits


def test_discard_old_by_messages_bytes_and_subject() -> None:
    stream = Stream(max_msgs=3)
    stream.publish(*plain(5))
    assert stream.seqs() == [3, 4, 5]
    stream = Stream(max_bytes=2 * 32)
    stream.publish(*plain(5))
    assert stream.seqs() == [4, 5]
    stream = Stream(max_msgs_per_subject=1)
    stream.publish(*plain(2, "a"), *plain(3, "b"), *plain(1, "a"))
    assert stream.seqs() == [5, 6]


def test_discard_new_by_messages_takes_what_fits() -> None:
    stream = Stream(max_msgs=3, discard="new")
    result = stream.publish(*plain(5))
    assert result.verdicts is not None and result.verdicts[:3] == [1, 2, 3]
    assert [v.description for v in result.verdicts[3:] if isinstance(v, ApiError)] == ["maximum messages exceeded"] * 2
    assert stream.one("a") == (10077, "maximum messages exceeded")
    assert stream.store.appends == 1


@pytest.mark.parametrize(("storage", "record"), [("file", 30 + 1 + 1), ("memory", 16 + 1 + 1)])
def test_discard_new_by_bytes(storage: str, record: int) -> None:
    stream = Stream(max_bytes=record * 2, discard="new", storage=storage)
    assert [stream.one("a") for _ in range(3)] == [1, 2, (10077, "maximum bytes exceeded")]


def test_discard_new_lets_a_message_replace_one_of_its_subject() -> None:
    stream = Stream(max_msgs=2, max_msgs_per_subject=1, discard="new")
    verdicts = stream.publish(*plain(1, "a"), *plain(2, "b"), *plain(1, "a"), *plain(1, "c")).verdicts
    assert verdicts is not None and verdicts[:4] == [1, 2, 3, 4]
    assert isinstance(verdicts[4], ApiError) and verdicts[4].err_code == 10077
    assert stream.seqs() == [3, 4]


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("history", [1, 3])
def test_discard_new_by_bytes_holds_where_messages_are_replaced(storage: str, history: int) -> None:
    """Each of `history` messages of a subject at its limit may be replaced by one that is no longer than the oldest."""
    full = (10077, "maximum bytes exceeded")
    record = (30 if storage == "file" else 16) + 1 + 100
    stream = Stream(max_bytes=record * history, max_msgs_per_subject=history, discard="new", storage=storage)
    for _ in range(history):
        stream.one("a", payload=b"x" * 100)
    last = history
    for size, taken in ((101, False), (5000, False), (100, True), (99, True), (1, True)):
        last += taken
        assert stream.one("a", payload=b"x" * size) == (last if taken else full)
        assert stream.store.byte_count <= record * history
    assert stream.one("b", payload=b"x" * 1000) == full


def test_more_bytes_for_less_room_are_refused_also_where_the_number_of_messages_is_the_limit() -> None:
    record = 30 + 1 + 10
    stream = Stream(max_msgs=2, max_bytes=2 * record, max_msgs_per_subject=1, discard="new")
    assert [stream.one(subject, payload=b"x" * 10) for subject in "ab"] == [1, 2]
    assert stream.one("a", payload=b"x" * 11) == (10077, "maximum bytes exceeded")
    assert stream.one("c", payload=b"") == (10077, "maximum messages exceeded")
    assert stream.one("a", payload=b"x" * 10) == 3
    verdicts = stream.publish(("a", b"", b"x"), ("a", b"", b"xx"), ("b", b"", b"x" * 9)).verdicts
    assert verdicts is not None and verdicts[::2] == [4, 5] and isinstance(verdicts[1], ApiError)


def test_discard_new_per_subject() -> None:
    stream = Stream(max_msgs_per_subject=2, discard="new", discard_new_per_subject=True)
    verdicts = stream.publish(*plain(3, "a"), *plain(1, "b")).verdicts
    assert verdicts is not None and verdicts[:2] + verdicts[3:] == [1, 2, 3]
    assert stream.one("a") == (10077, "maximum messages per subject exceeded")
    stream.apply(commands.encode_delete_msg(T0, 1))
    assert stream.one("a") == 4


def test_a_lower_limit_removes_what_is_too_much_where_full_subjects_refuse_too() -> None:
    refusing = {"name": "S", "discard": "new", "discard_new_per_subject": True}
    stream = Stream(**refusing, max_msgs_per_subject=4)
    stream.publish(*plain(4, "a"), *plain(2, "b"), *plain(4, "c"))
    assert stream.apply(commands.encode_update_config(T0, {**refusing, "max_msgs_per_subject": 3})) == 2
    assert stream.store.count_of(b"a") == stream.store.count_of(b"c") == 3
    assert stream.one("a") == (10077, "maximum messages per subject exceeded")
    assert stream.apply(commands.encode_update_config(T0, {**refusing, "max_msgs_per_subject": 3})) == 0
    assert stream.one("b") == 11


def test_shrunk_limits_hold_at_once(stream: Stream) -> None:
    stream.publish(*plain(6, "a"), *plain(6, "b"))
    assert stream.apply(commands.encode_update_config(T0, {"name": "S", "max_msgs_per_subject": 4})) == 4
    assert stream.apply(commands.encode_update_config(T0, {"name": "S", "max_msgs": 5})) == 3
    assert stream.seqs() == [6, 9, 10, 11, 12]
    config = {"name": "S", "max_age": 10 * SECOND - 8}  # message n has the time T0 + n - 1
    assert stream.apply(commands.encode_update_config(T0 + 10 * SECOND, config)) == 2
    assert stream.seqs() == [10, 11, 12]


def test_discard_new_never_evicts_when_limits_shrink(stream: Stream) -> None:
    stream.publish(*plain(6))
    assert stream.apply(commands.encode_update_config(T0, {"name": "S", "max_msgs": 2, "discard": "new"})) == 0
    assert len(stream.seqs()) == 6


def test_expiry_uses_the_max_age_in_force_at_its_place_in_the_log() -> None:
    stream = Stream(max_age=5 * SECOND)
    stream.publish(*plain(2))
    stream.now += SECOND
    stream.publish(*plain(1))
    assert stream.apply(commands.encode_expire(T0 + 5 * SECOND - 1)) == 0
    assert stream.apply(commands.encode_expire(T0 + 5 * SECOND)) == 1
    stream.apply(commands.encode_update_config(T0, {"name": "S", "max_age": 60 * SECOND}))
    assert stream.apply(commands.encode_expire(T0 + 20 * SECOND)) == 0
    stream.now = T0  # behind the clock that the expiry brought
    stream.publish(*plain(1))
    assert stream.store.last_ts > T0 + 20 * SECOND


def test_next_expiry_is_when_the_oldest_message_is_removed() -> None:
    stream = Stream(max_age=5 * SECOND)
    assert stream.machine.next_expiry is None
    stream.publish(*plain(2))
    due = stream.machine.next_expiry
    assert due is not None
    assert stream.apply(commands.encode_expire(due - 1)) == 0
    assert stream.apply(commands.encode_expire(due)) == 1
    stream.apply(commands.encode_update_config(T0, {"name": "S"}))
    assert stream.machine.next_expiry is None


def test_the_configuration_comes_from_the_log_alone() -> None:
    mine = {"name": "S", "max_msgs": 1, "storage": "memory", "first_seq": 9}
    machine = StreamMachine("S", StreamRules.from_config(mine), NaiveStore())
    assert (machine.configured, machine.config) == (False, {"name": "S", "storage": "memory"})
    assert machine.rules.max_msgs == 0 and machine.rules.memory
    machine.apply(1, 1, commands.encode_update_config(T0, mine))
    assert machine.configured and machine.config == mine and machine.rules.max_msgs == 1
    again = StreamMachine("S", StreamRules.from_config({}), machine.store)
    assert again.configured and again.config == mine and again.store.last_seq == 8


def test_an_older_configuration_changes_nothing(stream: Stream) -> None:
    """Proposed by a leader whose node has not heard of the newest one."""
    stream.apply(commands.encode_update_config(T0, {"name": "S", "max_msgs": 100}, 7))
    stream.publish(*plain(10))
    for revision in (3, 7):
        assert stream.apply(commands.encode_update_config(T0, {"name": "S", "max_msgs": 2}, revision)) == 0
    assert stream.machine.rules.max_msgs == 100 and len(stream.seqs()) == 10
    stream.restart()
    assert stream.machine.config_revision == 7
    assert stream.apply(commands.encode_update_config(T0, {"name": "S", "max_msgs": 2}, 8)) == 8


def test_first_seq_counts_for_a_new_stream_only() -> None:
    stream = Stream(first_seq=100)
    assert stream.one("a") == 100
    stream.apply(commands.encode_update_config(T0, {"name": "S", "first_seq": 500}))
    stream.restart()
    assert stream.one("a") == 101


# rollup


def test_rollup() -> None:
    stream = Stream(allow_rollup_hdrs=True)
    stream.publish(*plain(2, "a"), *plain(2, "b"))
    result = stream.publish(("a", b"", b""), ("a", block("Nats-Rollup: SUB"), b""), ("b", b"", b""))
    assert result == PublishResult(5, 3, None)
    assert stream.seqs() == [3, 4, 6, 7]
    assert stream.one("c", "Nats-Rollup: all") == 8
    assert stream.seqs() == [8]
    assert stream.one("c", "Nats-Rollup: most") == (10111, 'rollup value invalid: "most"')


# purge


@pytest.mark.parametrize(
    ("filter", "seq", "keep", "removed", "left", "next_seq"),
    [
        (b"", 0, 0, 6, [], 7),
        (b"", 3, 0, 2, [3, 4, 5, 6], 7),
        (b"", 10, 0, 6, [], 10),
        (b"", 7, 0, 6, [], 7),
        (b"", 1, 0, 0, [1, 2, 3, 4, 5, 6], 7),
        (b"a.x", 1, 0, 0, [1, 2, 3, 4, 5, 6], 7),
        (b"", 0, 2, 4, [5, 6], 7),
        (b"", 0, 9, 0, [1, 2, 3, 4, 5, 6], 7),
        (b"a.x", 0, 0, 3, [2, 4, 6], 7),
        (b"a.*", 0, 0, 6, [], 7),
        (b">", 3, 0, 2, [3, 4, 5, 6], 7),
        (b"a.x", 4, 0, 2, [2, 4, 5, 6], 7),
        (b"a.x", 0, 1, 2, [2, 4, 5, 6], 7),
        (b"a.x", 0, 3, 0, [1, 2, 3, 4, 5, 6], 7),
        (b"zz", 0, 0, 0, [1, 2, 3, 4, 5, 6], 7),
    ],
)
def test_purge(filter: bytes, seq: int, keep: int, removed: int, left: list[int], next_seq: int) -> None:
    stream = Stream()
    for _ in range(3):
        stream.publish(("a.x", b"", b""), ("a.y", b"", b""))
    assert stream.apply(commands.encode_purge(T0, filter, seq, keep)) == removed
    assert stream.seqs() == left
    assert stream.store.state.first_seq == (left[0] if left else next_seq)
    assert stream.one("a.x") == next_seq


@pytest.mark.parametrize(("config", "command", "code", "text"), [
    ({}, commands.encode_purge(T0, b"", 2, 2), 10003, "bad request"),
    ({"deny_purge": True}, commands.encode_purge(T0), 10110, "stream purge not permitted"),
    ({"deny_delete": True}, commands.encode_delete_msg(T0, 1), 10057, "message delete not permitted"),
    ({}, commands.encode_delete_msg(T0, 2), 10043, "sequence 2 not found"),
    ({}, commands.encode_delete_msg(T0, 9), 10057, "stream store EOF"),
    ({}, commands.encode_delete_msg(T0, 0), 10057, "no message found"),
    ({"storage": "memory"}, commands.encode_delete_msg(T0, 9), 10043, "sequence 9 not found"),
    ({"storage": "memory"}, commands.encode_delete_msg(T0, 0), 10043, "sequence 0 not found"),
])  # fmt: skip
def test_refused_administration(config: dict[str, object], command: bytes, code: int, text: str) -> None:
    stream = Stream(**config)
    stream.publish(*plain(3))
    stream.store.delete(2)
    result = stream.apply(command)
    assert isinstance(result, ApiError) and (result.err_code, result.description) == (code, text)
    assert stream.seqs() == [1, 3]


def test_delete_takes_one_message(stream: Stream) -> None:
    stream.publish(*plain(3))
    assert stream.apply(commands.encode_delete_msg(T0, 2)) == 1
    assert stream.seqs() == [1, 3]


@pytest.mark.parametrize("erase", [True, False])
def test_no_erase_leaves_the_bytes_until_their_block_is_compacted(erase: bool) -> None:
    kv = MemKv()
    machine = StreamMachine("S", StreamRules.from_config({}), BlockStore(kv, 1, memory=False))
    machine.apply(1, 1, commands.encode_update_config(0, {"name": "S"}))
    batch = Batch.encode([b"a"] * 9, [], [b"secret-%d" % n for n in range(9)])
    machine.apply(2, 1, commands.encode_publish(T0, batch))
    assert machine.apply(3, 1, commands.encode_delete_msg(T0, 4, erase=erase)) == 1
    assert machine.store.get(4) is None
    value = kv.get(keys.block(1, 1))
    assert value is not None and (b"secret-3" in value) is not erase
    repeated = machine.apply(4, 1, commands.encode_delete_msg(T0, 4, erase=erase))
    assert isinstance(repeated, ApiError) and repeated.err_code == 10043


@pytest.mark.parametrize("seq", [1 << 63, keys.MAX_SEQ - 1, keys.MAX_SEQ])
def test_no_number_takes_a_stream_to_the_end_of_its_sequences(seq: int) -> None:
    """Behind the last sequence there is no room for a message: apply would fail on all replicas."""
    stream = Stream(first_seq=seq)
    assert stream.one("a") == 1
    refused = stream.apply(commands.encode_purge(T0, seq=seq))
    assert isinstance(refused, ApiError) and refused.err_code == 10003
    assert stream.one("a") == 2
    assert stream.apply(commands.encode_purge(T0, b"a", seq)) == 2, "by subject it only says what goes"
    assert stream.one("a") == 3


def test_a_stream_may_go_as_far_as_half_of_what_a_sequence_can_be() -> None:
    farthest = (1 << 63) - 1
    stream = Stream()
    assert stream.apply(commands.encode_purge(T0, seq=farthest)) == 0
    assert [stream.one("a"), stream.one("a")] == [farthest, farthest + 1]
    assert Stream(first_seq=farthest).one("a") == farthest


@pytest.mark.parametrize("counts", [(-1, 0, 1, 0), (1, 40, 1, 0), (5, 200, 7, 10), (3, 2, 1, 3), (0, 0, 9, 7)])
def test_a_store_that_cannot_be_is_noticed(counts: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(subjects=["s"])
    stream.publish(("s", b"", b"1"))
    messages, size, first_seq, last_seq = counts
    kind, state = type(stream.store), stream.store.state
    monkeypatch.setattr(kind, "blocks", state._replace(messages=messages, bytes=size, first_seq=first_seq))
    monkeypatch.setattr(kind, "last_seq", property(lambda store: last_seq, lambda store, seq: None), raising=False)
    with pytest.raises(AssertionError):
        stream.publish(("s", b"", b"2"))
