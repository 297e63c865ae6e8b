"""Commands that fail in their middle: refused by all replicas alike, and never half done (stream/apply/applier.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jetcluster.errors import ApiError
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.kv import KvFullError
from jetcluster.stream.apply import publish as publish_rules
from jetcluster.stream.apply.checks import SUBJECT_TOO_LONG
from jetcluster.stream.apply.machine import REFUSED, StateError
from jetcluster.stream.apply.publish import EXHAUSTED
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import UnknownCommandError
from jetcluster.stream.ports import BatchResult, PublishResult
from tests.unit.stream.extremes import T0
from tests.unit.stream.test_no_command_raises import Replica

CONFIG = {"name": "S", "subjects": ["a.>", "b"], "allow_atomic": True}


def publish(*payloads: bytes, subject: bytes = b"b") -> bytes:
    return commands.encode_publish(T0, Batch.encode([subject] * len(payloads), [], payloads))


def started(log: list[bytes] | None = None, **config: Any) -> Replica:
    replica = Replica([commands.encode_update_config(T0, CONFIG | config)] if log is None else log)
    replica.catch_up()
    return replica


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Callable[[Replica], None]:
    """Messages with the payload `bad` are stored, and then something goes wrong."""

    def spoil(replica: Replica) -> None:
        append = replica.store.append

        def fail(batch: Batch, first_seq: int, ts: int) -> None:
            append(batch, first_seq, ts)
            if batch.message(0)[2] == b"bad":
                raise error

        monkeypatch.setattr(replica.store, "append", fail)

    return spoil


@pytest.mark.parametrize(
    "error", [AssertionError(1), KeyError("x"), OverflowError(), ValueError(), ZeroDivisionError()]
)
@pytest.mark.parametrize("committed", [True, False])
def test_nothing_is_left_of_a_command_that_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception, *, committed: bool
) -> None:
    replica, twin = started(), started()
    failing(monkeypatch, error)(replica)
    for command in (publish(b"1"), publish(b"bad", b"2"), publish(b"3"), publish(b"bad"), publish(b"4")):
        for one in (replica, twin):
            if command == publish(b"1") and committed:
                one.kv.commit()
            one.log.append(command if one is replica or b"bad" not in command else commands.encode_expire(T0))
            one.catch_up()
    assert [index for index, _ in replica.refusals] == [3, 5]
    assert replica.refusals[0][1] is error
    assert [m.payload for m in replica.store.queries.scan(b">", 1)] == [b"1", b"3", b"4"]
    assert [m.payload for m in twin.store.queries.scan(b">", 1)] == [b"1", b"3", b"4"]
    assert replica.store.state == twin.store.state


def test_what_is_refused_counts_in_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [started(), started()]
    for replica in replicas:
        failing(monkeypatch, AssertionError())(replica)
        replica.log += [publish(b"1"), publish(b"bad"), publish(b"2")]
    assert replicas[0].catch_up()[-2] is REFUSED
    replicas[1].kv.commit()
    replicas[1].catch_up()
    assert replicas[0].machine.hash == replicas[1].machine.hash
    assert replicas[0].machine.applied_index == 4
    healthy = started()
    healthy.log += [publish(b"1"), publish(b"ok!"), publish(b"2")]
    healthy.catch_up()
    assert healthy.machine.hash != replicas[0].machine.hash


def test_a_replica_that_restarts_refuses_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is applied once more from the last commit, which may be none at all."""
    replica = started()
    failing(monkeypatch, AssertionError())(replica)
    monkeypatch.setattr(replica, "commit", lambda: None)  # the store's disk would have to be waited for
    replica.log += [publish(b"1"), publish(b"bad"), publish(b"2"), publish(b"bad"), publish(b"3")]
    replica.catch_up()
    before = replica.machine.hash, replica.store.state
    assert [index for index, _ in replica.refusals] == [3, 5]
    replica.kv.discard(5)
    replica.open()
    failing(monkeypatch, AssertionError())(replica)
    replica.catch_up()
    assert (replica.machine.hash, replica.store.state) == before
    assert [m.payload for m in replica.store.queries.scan(b">", 1)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("committed", [True, False])
def test_what_fails_in_one_process_alone_is_no_refusal(monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> None:
    """A cache, say: on the other replicas the same command is carried out, and here when everything is loaded anew."""
    replica, other = started(), started()
    append = replica.store.append
    broken = [KeyError("cache")]

    def once(batch: Batch, first_seq: int, ts: int) -> None:
        append(batch, first_seq, ts)
        if batch.message(0)[2] == b"2" and broken:
            raise broken.pop()

    monkeypatch.setattr(replica.store, "append", once)
    results = []
    for one in (replica, other):
        one.log.append(publish(b"1"))
        one.catch_up()
        if committed:
            one.kv.commit()
        one.log += [publish(b"2"), publish(b"3")]
        results.append(one.catch_up())
    assert results[0] == results[1] == [PublishResult(2, 1, None), PublishResult(3, 1, None)]
    assert replica.machine.hash == other.machine.hash
    assert replica.store.state == other.store.state
    assert [index for index, _ in replica.recoveries] == [3]
    assert not replica.refusals


def test_an_observer_that_fails_is_no_refusal() -> None:
    """Nobody looks on at the second try."""
    replica, other = started(), started()

    def fail(batch: Batch, first_seq: int, ts: int) -> None:
        raise ValueError(batch.count)

    replica.machine.observe(fail)
    for one in (replica, other):
        one.log += [publish(b"1"), publish(b"2")]
    assert replica.catch_up() == other.catch_up()
    assert replica.machine.hash == other.machine.hash
    assert not replica.refusals


@pytest.mark.parametrize(
    "error",
    [
        DamagedError(1, 2), KvFullError("full"), OSError(5, "Input/output error"), MemoryError(), RecursionError(),
        StateError("rows"), UnknownCommandError("kind 99"),
    ],
)  # fmt: skip
def test_trouble_of_the_machine_is_no_refusal(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The others may have applied the command: this replica stops, with the state of before."""
    replica = started()
    replica.log.append(publish(b"1"))
    replica.catch_up()
    replica.kv.commit()
    failing(monkeypatch, error)(replica)
    replica.log.append(publish(b"bad"))
    with pytest.raises(type(error)):
        replica.catch_up()
    assert replica.refusals == []
    assert replica.machine.applied_index == 2
    replica.kv.commit()
    replica.open()
    assert replica.machine.applied_index == 2
    assert [m.payload for m in replica.store.queries.scan(b">", 1)] == [b"1"]


def test_a_disk_that_fails_on_the_way_back_stops_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = started()
    failing(monkeypatch, AssertionError())(replica)
    replica.log += [publish(b"1"), publish(b"bad")]

    def unreadable(index: int) -> None:
        raise OSError("journal")

    monkeypatch.setattr(replica, "entry", unreadable)
    with pytest.raises(OSError, match="journal"):
        replica.catch_up()
    assert replica.refusals == []


def test_malformed_bytes_are_refused_without_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = started()
    monkeypatch.setattr(replica, "abandon", lambda: pytest.fail("nothing has changed"))
    replica.log += [publish(b"1"), publish(b"2")[:-1], b"", commands.encode_expire(T0) + b"x", publish(b"3")]
    results = replica.catch_up()
    assert [result is REFUSED for result in results] == [False, True, True, True, False]
    assert all(error is not None for _, error in replica.refusals)
    assert replica.store.messages == 2


def test_an_exhausted_sequence_is_an_answer() -> None:
    replica = started(first_seq=(1 << 63) - 1)
    replica.store.compact((1 << 64) - 3)  # as a version of before let a purge do
    replica.log += [publish(b"1"), publish(b"2", b"3"), publish(b"4")]
    stored, refused, last = replica.catch_up()
    assert stored == PublishResult((1 << 64) - 3, 1, None)
    assert isinstance(refused, PublishResult) and refused.verdicts == [EXHAUSTED] * 2
    assert last == PublishResult((1 << 64) - 2, 1, None)
    replica.log += [publish(b"5"), *commands.encode_atomic(T0, Batch.encode([b"b"], [], [b"6"]), plain=True,
                                                           allow_msg_id=False)]  # fmt: skip
    refused, batch = replica.catch_up()
    assert isinstance(refused, PublishResult) and refused.verdicts == [EXHAUSTED]
    assert batch == BatchResult(0, 0, EXHAUSTED)
    assert not replica.refusals


@pytest.mark.parametrize("dest", ["z.{{wildcard(1)}}.{{wildcard(1)}}", "z.{{wildcard(1)}}." + "y" * 65_400])
def test_a_transform_that_makes_a_subject_too_long_refuses_that_message(dest: str) -> None:
    replica = started(subject_transform={"src": "a.*", "dest": dest})
    long, short = b"a." + b"x" * 40_000, b"a.y"
    replica.log.append(commands.encode_publish(T0, Batch.encode([short, long, b"b"], [], [b"1", b"2", b"3"])))
    (result,) = replica.catch_up()
    assert isinstance(result, PublishResult) and result.verdicts == [1, SUBJECT_TOO_LONG, 2]
    assert [m.subject[:4] for m in replica.store.queries.scan(b">", 1)] == [b"z.y.", b"b"]
    replica.log += commands.encode_atomic(
        T0, Batch.encode([short, long], [], [b"", b""]), plain=True, allow_msg_id=False
    )
    replica.log += commands.encode_atomic(T0, Batch.encode([short], [], [b""]), plain=True, allow_msg_id=False)
    assert replica.catch_up() == [BatchResult(0, 0, SUBJECT_TOO_LONG), BatchResult(3, 1, None)]
    assert not replica.refusals


def test_what_a_transform_makes_of_many_subjects_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A destination as one of before may have it: each subject fits, and all of them are too much. Its bound is an
    eighth of the true one here."""
    bound = publish_rules.MAX_MAPPED_BYTES // 8
    monkeypatch.setattr(publish_rules, "MAX_MAPPED_BYTES", bound)
    for dest in ("z." + "y" * 60_000 + ".$1", "z." + "y" * 60_000 + ".$1.{{random(5)}}"):
        replica = started(subject_transform={"src": "a.*", "dest": dest}, duplicate_window=0)
        subjects = [b"a.%d" % n for n in range(190)]
        replica.log.append(commands.encode_publish(T0, Batch.encode(subjects, [], [b""] * len(subjects))))
        (result,) = replica.catch_up()
        assert isinstance(result, PublishResult) and result.verdicts is not None
        fitting = result.verdicts.index(SUBJECT_TOO_LONG)
        assert 125 < fitting <= bound // 60_000
        assert result.verdicts == [*range(1, fitting + 1), *[SUBJECT_TOO_LONG] * (len(subjects) - fitting)]
        assert not replica.refusals


def test_the_refusal_is_an_error_with_a_code() -> None:
    assert isinstance(REFUSED, ApiError)
    assert REFUSED.code == 500


def test_a_wildcard_of_two_thousand_tokens_is_carried_out() -> None:
    replica = started()
    replica.log.append(publish(b"1", subject=b"a" + b".x" * 2000))
    expected = [b"a" + b".*" * 2000, b"a" + b".*" * 1999 + b".x", b"a" + b".*.x" * 1000, b"a" + b".*" * 1999 + b".y"]
    for key in expected:
        headers = b"NATS/1.0\r\n" + b"Nats-Expected-Last-Subject-Sequence: 1\r\n"
        headers += b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n\r\n" % key
        replica.log.append(commands.encode_publish(T0, Batch.encode([b"b"], [headers], [b""])))
    *results, _ = replica.catch_up()
    assert [result.verdicts for result in results] == [None] * 4  # type: ignore[union-attr]
    assert replica.store.last_seq == 4
    assert not replica.refusals
