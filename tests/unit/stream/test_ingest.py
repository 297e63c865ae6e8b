from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from jetcluster import errors
from jetcluster.protocol import headers as header_block
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    LeavingError,
    NotLeaderError,
    RaftError,
    StorageFullError,
)
from jetcluster.stream.lead import ingest as ingest_module
from jetcluster.stream.lead.answers import FIRST_WINDOW_BYTES
from jetcluster.stream.lead.atomic_stage import AtomicStage, BatchLimits, BatchQuota
from jetcluster.stream.lead.ingest import BATCH_BYTES, BATCH_MESSAGES, MAX_TURN_UNITS, OPEN_INDEX, Ingest
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import Publish
from jetcluster.stream.ports import Duplicate, PublishResult
from jetcluster.stream.rules import StreamRules
from testkit.twins.time import ManualTime
from tests.unit.stream.fake_store import ClientOrigin, FakeBus, ServerOrigin, block

CLIENT = ClientOrigin()
ROLLUP = header_block.build([(b"Nats-Rollup", b"sub")])


class Log:
    """`propose` that keeps what it gets."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.error: RaftError | None = None

    def propose(self, command: bytes) -> int:
        if self.error is not None:
            raise self.error
        self.commands.append(command)
        return 100 + len(self.commands)

    def publishes(self) -> list[Publish]:
        decoded = [commands.decode(command) for command in self.commands]
        return [each for each in decoded if isinstance(each, Publish)]


class Rig:
    def __init__(self, limits: BatchLimits | None = None, **options: object) -> None:
        self.log, self.bus, self.time = Log(), FakeBus(), ManualTime()
        self.turn: list[Callable[[], None]] = []
        rules = StreamRules.from_config({"name": "S", "allow_atomic": True})
        self.abandoned: list[tuple[bytes, str]] = []
        self.stage = AtomicStage(rules, BatchQuota(limits), self.time, lambda *event: self.abandoned.append(event))
        self.ingest = Ingest("S", self.log.propose, self.bus, self.time, self.turn.append, self.stage, **options)  # type: ignore[arg-type]

    def publish(self, n: int = 1, reply: bytes = b"r", headers: bytes = b"", payload: bytes = b"x") -> None:
        for _ in range(n):
            self.ingest.on_message(b"a", reply, headers, payload, CLIENT)

    def end_turn(self) -> None:
        due, self.turn[:] = list(self.turn), []
        for callback in due:
            callback()

    def errors(self) -> list[int]:
        return [json.loads(payload)["error"]["err_code"] if payload else 503 for _, payload, _ in self.bus.sent]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_one_command_per_turn_stamped_with_the_leaders_time(rig: Rig) -> None:
    rig.publish(3)
    assert len(rig.turn) == 1 and not rig.log.commands
    rig.end_turn()
    (publish,) = rig.log.publishes()
    assert (publish.ts, publish.batch.count) == (rig.time.time_ns(), 3)
    rig.publish()
    rig.end_turn()
    assert len(rig.log.commands) == 2


def test_acks_come_with_apply_and_in_bulk() -> None:
    rig = Rig(domain="D")
    rig.publish(2)
    rig.publish(1, reply=b"")
    rig.end_turn()
    assert rig.bus.sent == []
    rig.ingest.on_applied(101, PublishResult(7, 3, None))
    assert rig.bus.sent == [
        (b"r", b'{"stream":"S","domain":"D","seq":7}', b""),
        (b"r", b'{"stream":"S","domain":"D","seq":8}', b""),
    ]
    assert rig.bus.bulks == 1
    assert (rig.ingest.pending_messages, rig.ingest.pending_bytes) == (0, 0)


def test_the_ack_of_a_long_rollup_waits_for_its_job_and_no_other_ack_does() -> None:
    asked: list[tuple[bytes, ...]] = []
    rig = Rig(rolls_up=lambda subjects, headers: bool(asked.append((*subjects, *headers))) or headers[-1] == ROLLUP)
    rig.publish(1, reply=b"r1")
    rig.end_turn()
    assert not asked, "without headers nothing is asked"
    for reply, headers in ((b"r2", b""), (b"r3", ROLLUP), (b"r4", b"")):
        rig.publish(1, reply=reply, headers=headers)
    rig.publish(1, reply=b"r5", headers=ROLLUP)
    rig.end_turn()
    assert [one.rolls_up for one in rig.log.publishes()] == [False, True] and len(asked) == 1
    rig.ingest.on_applied(101, PublishResult(1, 1, None))
    rig.ingest.on_applied(102, PublishResult(2, 4, [2, 3, errors.by_code(10054), 4], ((3, 102), (4, 90))))
    assert [reply for reply, _, _ in rig.bus.sent] == [b"r1", b"r2", b"r4"]
    assert not rig.ingest.pending_messages
    rig.ingest.on_job_done(7)
    rig.ingest.on_job_done(90)
    rig.ingest.on_job_done(102)
    assert [(reply, json.loads(ack)["seq"]) for reply, ack, _ in rig.bus.sent[3:]] == [(b"r5", 4), (b"r3", 3)]
    rig.ingest.on_job_done(102)
    assert len(rig.bus.sent) == 5


def test_so_many_acks_wait_for_jobs_and_one_that_leads_no_more_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "MAX_HELD_ACKS", 1)
    rig = Rig()
    rig.publish(3)
    rig.end_turn()
    rig.ingest.on_applied(101, PublishResult(1, 3, None, ((1, 101), (3, 101))))
    assert [json.loads(ack)["seq"] for _, ack, _ in rig.bus.sent] == [2, 3]
    rig.ingest.clear()
    rig.ingest.on_job_done(101)
    assert len(rig.bus.sent) == 2


def test_several_commands_in_flight_are_acked_with_their_own_results(rig: Rig) -> None:
    for reply in (b"r1", b"r2"):
        rig.publish(1, reply=reply)
        rig.end_turn()
    rig.ingest.on_applied(101, PublishResult(1, 1, [errors.by_code(10054)]))
    rig.ingest.on_applied(102, PublishResult(1, 1, [Duplicate(4)]))
    assert [(reply, json.loads(ack)["seq"]) for reply, ack, _ in rig.bus.sent] == [(b"r1", 0), (b"r2", 4)]


@pytest.mark.parametrize(("n", "size"), [(BATCH_MESSAGES, 1), (BATCH_BYTES // 1024 + 1, 1023)])
def test_a_full_batch_does_not_wait_for_the_end_of_the_turn(n: int, size: int, rig: Rig) -> None:
    rig.publish(n, payload=b"x" * size)
    assert len(rig.log.commands) == 1
    rig.publish()
    assert len(rig.turn) == 1, "one flush per turn"
    rig.end_turn()
    assert sum(each.batch.count for each in rig.log.publishes()) == n + 1


def test_batches_of_some_streams_are_shorter(rig: Rig) -> None:
    rig.ingest.batch_messages = 3
    rig.publish(7)
    rig.end_turn()
    assert [each.batch.count for each in rig.log.publishes()] == [3, 3, 1]


def test_headers_are_stored_without_status_and_request_info(rig: Rig) -> None:
    rig.publish()
    rig.publish(headers=b"NATS/1.0 503 Hello\r\nA: 1\r\n\r\n")
    rig.publish(headers=block("A: 2", "Nats-Request-Info: {}", "B: 3"))
    rig.publish()
    rig.end_turn()
    (publish,) = rig.log.publishes()
    assert [headers for _, headers, _ in publish.batch.messages()] == [b"", block("A: 1"), block("A: 2", "B: 3"), b""]
    rig.publish()
    rig.end_turn()
    assert not rig.log.publishes()[1].batch.has_headers


def test_a_schedule_of_another_account_is_refused_by_every_replica() -> None:
    """Nobody has asked whether who has sent it may use the subjects that it names."""
    schedule = ("Nats-Schedule: @every 1s", "Nats-Schedule-Target: a.secret")
    rig = Rig()
    rig.publish(headers=block("Nats-Request-Info: {}", *schedule))
    rig.publish(headers=block(*schedule))
    rig.end_turn()
    (publish,) = rig.log.publishes()
    imported, own = [headers for _, headers, _ in publish.batch.messages()]
    assert imported == block("Nats-Schedule-Target: a.secret", "Nats-Scheduler: imported")
    assert own == block(*schedule)


def test_an_ack_subject_gets_nothing_that_would_be_an_ack() -> None:
    """An empty message there acknowledges: a delivery that came here is not this stream's to acknowledge."""
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    rig = Rig()
    for reply in (ack, b"r"):
        rig.publish(reply=reply, headers=block("Nats-Batch-Id: u", f"Nats-Batch-Sequence: {1 + (reply == b'r')}"))
    rig.log.error = LeavingError(None)
    for reply in (ack, b"r"):
        rig.publish(reply=reply)
    rig.end_turn()
    assert [subject for subject, _, _ in rig.bus.sent] == [b"r", b"r"]


@pytest.mark.parametrize(
    ("error", "code", "headers"),
    [
        (LeavingError(None), 503, b"NATS/1.0 503\r\n\r\n"),
        (BackpressureError("full"), 10167, b"NATS/1.0 429 Too Many Requests\r\n\r\n"),
        (StorageFullError("disk"), 10077, b""),
        (EntryTooLargeError("9 MB"), 10054, b""),
        (RaftError("?"), 10008, b""),
    ],
)
def test_what_cannot_be_proposed_is_refused_at_once(error: RaftError, code: int, headers: bytes, rig: Rig) -> None:
    rig.log.error = error
    rig.publish(2)
    rig.publish(1, reply=b"")
    rig.end_turn()
    assert rig.errors() == [code, code]
    assert {sent[2] for sent in rig.bus.sent} == {headers}
    assert (rig.ingest.refused, rig.ingest.pending_messages) == (3, 0)
    rig.log.error = None
    rig.publish()
    rig.end_turn()
    assert len(rig.log.commands) == 1


def test_who_leads_no_more_does_not_say_that_nothing_was_stored(rig: Rig) -> None:
    """The next leader may have got the same message."""
    rig.log.error = NotLeaderError("n2")
    rig.publish(2)
    rig.end_turn()
    assert rig.bus.sent == []
    assert (rig.ingest.refused, rig.ingest.pending_messages) == (2, 0)


def test_lost_leadership_leaves_the_clients_without_an_answer(rig: Rig) -> None:
    for reply in (b"r1", b"r2"):
        rig.publish(1, reply=reply)
        rig.end_turn()
    rig.ingest.on_dropped(102)
    rig.ingest.on_applied(101, PublishResult(1, 1, None))
    rig.ingest.on_applied(102, PublishResult(2, 1, None))  # another leader's command by now
    assert [sent[0] for sent in rig.bus.sent] == [b"r1"]
    assert (rig.ingest.pending_messages, rig.ingest.pending_bytes) == (0, 0)


@pytest.mark.parametrize("option", ["max_pending_messages", "max_pending_bytes"])
def test_what_waits_is_bounded(option: str) -> None:
    rig = Rig(**{option: 1})
    rig.publish(5)
    rig.end_turn()
    rig.publish(2)
    rig.publish(1, reply=b"")
    assert rig.errors() == [10167, 10167]
    assert not rig.turn, "nothing to flush"
    rig.ingest.on_applied(101, PublishResult(1, 5, None))
    rig.publish()
    rig.end_turn()
    assert len(rig.log.commands) == 2


def test_no_ack_streams_answer_nothing() -> None:
    rig = Rig(no_ack=True)
    rig.publish(2)
    rig.end_turn()
    rig.ingest.on_applied(101, PublishResult(1, 2, None))
    rig.log.error = StorageFullError("disk")
    rig.publish()
    rig.end_turn()
    assert rig.bus.sent == []


def test_commands_of_others_are_not_acked(rig: Rig) -> None:
    rig.ingest.on_applied(55, PublishResult(1, 2, None))
    assert rig.bus.sent == []


def test_publishers_wait_while_enough_waits_to_be_applied() -> None:
    class Waiting(ClientOrigin):
        def __init__(self) -> None:
            self.valves: list[object] = []

        def wait_at(self, valve: object) -> None:
            self.valves.append(valve)

    rig, origin = Rig(), Waiting()
    rig.ingest.on_message(b"a", b"r", b"", b"x" * FIRST_WINDOW_BYTES, origin)
    rig.end_turn()
    assert origin.valves == []
    rig.ingest.on_message(b"a", b"r", b"", b"x", origin)
    rig.ingest.on_message(b"a", b"r", b"", b"x", CLIENT)  # cannot wait
    assert origin.valves == [rig.ingest.valve]
    rig.end_turn()
    assert len(rig.log.commands) == 2, "they wait with what comes next; nothing is refused"
    assert rig.ingest.on_messages([(b"a", b"r", b"", b"x"), (b"b", b"r", b"", b"x")], origin) == 1
    assert origin.valves == [rig.ingest.valve] * 2, "the second one waits with its publisher"
    rig.end_turn()
    rig.ingest.on_applied(101, PublishResult(1, 1, None))
    assert not rig.ingest.valve.closed
    rig.ingest.on_message(b"a", b"r", b"", b"x" * 2 * FIRST_WINDOW_BYTES, origin)
    rig.end_turn()
    assert rig.ingest.valve.closed
    rig.ingest.on_dropped(0)
    assert not rig.ingest.valve.closed, "nobody waits for what is given up"


def expecting(key: bytes) -> bytes:
    fields = b"Nats-Expected-Last-Subject-Sequence: 0\r\nNats-Expected-Last-Subject-Sequence-Subject: " + key
    return b"NATS/1.0\r\n" + fields + b"\r\n\r\n"


def test_a_wildcard_among_too_many_subjects_is_refused_before_it_gets_into_the_log(rig: Rig) -> None:
    asked: list[bytes] = []
    rig.ingest.wildcards.width = lambda wanted: asked.append(wanted) or (MAX_TURN_UNITS + (wanted == b"*.wide"))  # type: ignore[func-returns-value]
    for key in (b"a.literal", b"k.*", b"*.wide"):
        rig.publish(headers=expecting(key))
    rig.end_turn()
    assert asked == [b"k.*", b"*.wide"]
    assert [publish.batch.count for publish in rig.log.publishes()] == [2]
    assert rig.errors() == [10077]


def test_the_wildcards_of_a_turn_have_a_bound_together(rig: Rig) -> None:
    rig.ingest.wildcards.width = lambda wanted: 20_000
    keys = [b"a.*.b.%b" % (b"*." * n + b"x") for n in range(30)]
    for key in keys:
        rig.publish(headers=expecting(key))
    rig.end_turn()
    (publish,) = rig.log.publishes()
    assert publish.batch.count == 4
    assert rig.errors() == [10077] * 26
    rig.publish(headers=expecting(keys[0]))  # another turn
    rig.end_turn()
    assert [publish.batch.count for publish in rig.log.publishes()] == [4, 1]


@pytest.mark.parametrize("width", [20_000, 5])
def test_many_wildcards_that_are_one_search_or_narrow_are_taken(width: int, rig: Rig) -> None:
    rig.ingest.wildcards.width = lambda wanted: width
    for n in range(200):
        rig.publish(headers=expecting(b"a.*.x%d" % n))
        rig.publish(headers=expecting(b"a.*.x"))
    rig.end_turn()
    assert sum(publish.batch.count for publish in rig.log.publishes()) == 400
    assert not rig.bus.sent


@pytest.mark.parametrize("messages", [4, 8])
def test_the_wildcards_of_an_atomic_batch_have_a_bound_together(messages: int, rig: Rig) -> None:
    """However many turns they came in."""
    rig.ingest.wildcards.width = lambda wanted: 20_000
    for n in range(1, messages + 1):
        fields = [f"Nats-Batch-Id: u\r\nNats-Batch-Sequence: {n}", "Nats-Expected-Last-Subject-Sequence: 0"]
        fields += ["Nats-Expected-Last-Subject-Sequence-Subject: a.*." + "*." * n + "x"]
        rig.publish(headers=block(*fields, *["Nats-Batch-Commit: 1"] * (n == messages)))
        rig.end_turn()
    assert len(rig.log.commands) == (messages == 4)
    assert [payload for _, payload, _ in rig.bus.sent[: messages - 1]] == [b""] * (messages - 1)
    rig.bus.sent[: messages - 1] = []
    assert rig.errors() == [10077] * (messages == 8)


def test_a_wildcard_of_too_many_tokens_is_refused(rig: Rig) -> None:
    for tokens in (2047, 2048):
        rig.publish(headers=expecting(b"a" + b".*" * tokens))
    rig.end_turn()
    assert [publish.batch.count for publish in rig.log.publishes()] == [1]
    assert rig.errors() == [10077]


def test_a_subject_that_no_batch_can_hold_is_refused_and_those_around_it_are_not(rig: Rig) -> None:
    for subject, reply in (
        (b"a", b"r1"),
        (b"a." + b"x" * 65_534, b"r2"),
        (b"b." + b"y" * 65_533, b"r3"),
        (b"c", b"r4"),
    ):
        rig.ingest.on_message(subject, reply, block("X: 1") if reply == b"r4" else b"", reply, CLIENT)
    rig.end_turn()
    assert [(reply, rig.errors()) for reply, _, _ in rig.bus.sent] == [(b"r2", [10077])]
    (publish,) = rig.log.publishes()
    assert [payload for _, _, payload in publish.batch.messages()] == [b"r1", b"r3", b"r4"]
    assert publish.batch.message(2)[1] == block("X: 1")
    rig.bus.sent.clear()
    rig.ingest.on_applied(101, PublishResult(1, 3, None))
    assert [reply for reply, _, _ in rig.bus.sent] == [b"r1", b"r3", b"r4"]
    assert rig.ingest.pending_messages == 0
    rig.ingest.on_message(b"z" * 65_536, b"r5", b"", b"", CLIENT)
    rig.end_turn()
    assert len(rig.log.commands) == 1 and rig.bus.sent[-1][0] == b"r5"


def test_a_command_that_all_replicas_refuse_is_answered(rig: Rig) -> None:
    rig.publish(2)
    rig.end_turn()
    rig.ingest.on_refused(101, errors.by_code(10051, err="no"))
    assert rig.errors() == [10051, 10051]
    assert (rig.ingest.pending_messages, rig.ingest.pending_bytes) == (0, 0)
    rig.ingest.on_refused(77, errors.by_code(10051, err="no"))  # of somebody else
    assert len(rig.bus.sent) == 2


def test_where_in_the_log_the_newest_copy_of_the_server_is(rig: Rig) -> None:
    ingest = rig.ingest
    ingest.on_message(b"a", b"reply", b"", b"x", CLIENT)
    ingest.on_message(b"a", b"", b"", b"x", CLIENT)
    ingest.on_message(b"a", b"reply", b"", b"a request of the server's own", ServerOrigin())
    ingest.flush()
    assert ingest.copied == 0
    ingest.on_message(b"a", b"", b"", b"copy", ServerOrigin())
    assert ingest.copied == OPEN_INDEX
    ingest.flush()
    assert ingest.copied == 102
    ingest.on_message(b"a", b"reply", b"", b"x", CLIENT)
    ingest.flush()
    assert ingest.copied == 102
    ingest.on_dropped(102)
    assert ingest.copied == 0
    ingest.on_message(b"a", b"", b"", b"copy", ServerOrigin())
    rig.log.error = NotLeaderError("n2")
    ingest.flush()
    assert ingest.copied == 0


def test_messages_together_are_as_if_they_came_one_by_one() -> None:
    """`on_messages` is a shorter way for plain ones, and leaves the rest to `on_message`."""
    rng = random.Random(3)
    for _ in range(200):
        limits = {"max_pending_messages": [4, 1000][rng.randrange(2)], "max_pending_bytes": 1 << 20}
        one, other = Rig(**limits), Rig(**limits)
        for rig in (one, other):
            rig.ingest.batch_messages = 7
        for _ in range(rng.randrange(1, 8)):
            subject = [b"a", b"b", b"s" * 70_000][min(rng.randrange(20), 2) if rng.randrange(9) == 0 else 0]
            size = [1, 5, 100_000][min(rng.randrange(12), 2) if rng.randrange(3) == 0 else 0]
            replies = [
                [b"", b"_INBOX.r", b"_INBOX.b.1.0.0.0.$FI"][rng.randrange(2 + (rng.randrange(9) == 0))]
                for _ in range(5)
            ]
            messages = [(subject, reply, b"", b"x" * size) for reply in replies[: rng.randrange(1, 6)]]
            headed = block("A", "b") if rng.randrange(4) == 0 else b""
            for rig in (one, other):
                if headed:
                    rig.ingest.on_message(b"a", b"h", headed, b"x", CLIENT)
            rest = messages
            while rest:
                rest = rest[one.ingest.on_messages(rest, CLIENT) :]
            for message in messages:
                other.ingest.on_message(*message, CLIENT)
            if rng.randrange(2):
                for rig in (one, other):
                    rig.end_turn()
            assert one.log.commands == other.log.commands and one.bus.sent == other.bus.sent
            assert len(one.turn) == len(other.turn)
            assert one.ingest.pending_bytes == other.ingest.pending_bytes
