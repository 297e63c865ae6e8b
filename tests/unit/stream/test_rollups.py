"""Rollups of very many messages: a job removes them in pieces, and the end is that of a rollup at once."""

from __future__ import annotations

import random

import pytest

from jetcluster.protocol import headers as header_block
from jetcluster.store.batch import Batch
from jetcluster.store.slices import Step
from jetcluster.stream.apply import jobs, rollups
from jetcluster.stream.log import commands
from jetcluster.stream.log.fast_parts import FastPart, FastRun
from jetcluster.stream.ports import BatchResult, JobStep, PublishResult
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.test_jobs import SMALL, SUBJECTS, Replica

FEW = 4
SUB, ALL = (header_block.build([(b"Nats-Rollup", kind)]) for kind in (b"sub", b"all"))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_DIRECT_REMOVALS", FEW)


def roll_up(replica: Replica, *subjects: bytes, header: bytes = SUB, at_once: bool = False) -> PublishResult:
    """Publish messages that roll up what is there on their subjects."""
    replica.now += 1000
    batch = Batch.encode(list(subjects), [header] * len(subjects), [b"rolled"] * len(subjects))
    result = replica.apply(commands.encode_publish(replica.now, batch, rolls_up=not at_once))
    assert isinstance(result, PublishResult)
    return result


def filled(*, step: Step = SMALL, **config: object) -> Replica:
    """40 messages on a.x, with others between."""
    replica = Replica(config, step=step)
    for _ in range(20):
        replica.publish([b"a.x", b"b.x", b"a.x"])
    return replica


def test_a_long_rollup_leaves_a_job_whose_end_its_ack_waits_for() -> None:
    replica, other = filled(), filled()
    result = roll_up(replica, b"a.x")
    assert result.waits == ((61, replica.index),) and replica.machine.jobs == 1
    assert replica.store.last_seq_of(b"a.x") == 61 and replica.store.count_of(b"a.x") > 10
    index = replica.index
    assert replica.machine.has_job(index)
    steps = replica.finish()
    assert steps[-1] == JobStep(index, 40, True) and len(steps) > 5 and not replica.machine.has_job(index)
    assert roll_up(other, b"a.x", at_once=True).waits == () and not other.machine.jobs
    assert replica.seqs() == other.seqs() == [*range(2, 60, 3), 61]


def test_a_long_rollup_in_an_atomic_batch_leaves_a_job_whose_end_the_batch_waits_for() -> None:
    replica, other = filled(allow_atomic=True), filled(allow_atomic=True)
    for one in (replica, other):
        one.publish([b"a.y"] * 30)
    blocks = [b"", SUB, SUB, b""]
    batch = Batch.encode([b"b.x", b"a.x", b"a.y", b"b.x"], blocks, [b"batched"] * 4)
    for one, at_once in ((replica, False), (other, True)):
        (command,) = commands.encode_atomic(one.now, batch, plain=False, allow_msg_id=True, rolls_up=not at_once)
        result = one.apply(command)
        assert result == BatchResult(94, 4, None, 0 if at_once else one.index)
    index = replica.index
    assert replica.machine.jobs == 2 and not other.machine.jobs
    steps = replica.finish()
    assert steps[-1].job == index and steps[-1].done and len(steps) > 10
    assert replica.seqs() == other.seqs() == [*range(2, 60, 3), 91, 92, 93, 94]


def test_a_short_rollup_in_an_atomic_batch_waits_for_nothing() -> None:
    replica = filled(step=Step(), allow_atomic=True)
    batch = Batch.encode([b"a.x"], [SUB], [b"batched"])
    (command,) = commands.encode_atomic(replica.now, batch, plain=False, allow_msg_id=True, rolls_up=True)
    assert replica.apply(command) == BatchResult(61, 1, None) and not replica.machine.jobs
    assert roll_up(replica, b"b.x", header=ALL).waits == (), "the next command has a context of its own"


def test_a_long_rollup_in_a_fast_batch_leaves_a_job() -> None:
    replica, other = filled(allow_batched=True), filled(allow_batched=True)
    batch = Batch.encode([b"a.x"], [SUB], [b"fast"])
    part = FastPart(b"id", b"stem", 10, False, False, [FastRun(0, 1, 1)])
    for one, at_once in ((replica, False), (other, True)):
        result = one.apply(commands.encode_fast(one.now, [part], batch, rolls_up=not at_once))
        assert isinstance(result, PublishResult) and result.waits == (() if at_once else ((61, one.index),))
    assert replica.machine.jobs == 1 and not other.machine.jobs
    replica.finish()
    assert replica.seqs() == other.seqs() == [*range(2, 60, 3), 61]


def test_a_short_rollup_and_one_of_everything_are_done_at_once() -> None:
    replica = filled()
    replica.publish([b"a.y"] * (FEW - 1))
    assert roll_up(replica, b"a.y").waits == () and not replica.machine.jobs
    assert replica.store.count_of(b"a.y") == 1
    assert roll_up(replica, b"a.x", header=ALL).waits == () and not replica.machine.jobs
    assert replica.seqs() == [65]


def test_what_fits_into_one_piece_waits_for_nothing() -> None:
    replica = filled(step=Step())
    assert roll_up(replica, b"a.x").waits == () and not replica.machine.jobs and replica.store.count_of(b"a.x") == 1


def test_a_rollup_of_a_subject_that_is_being_rolled_up_goes_with_it() -> None:
    replica = filled()
    first = roll_up(replica, b"a.x")
    ((_, job),) = first.waits
    for _ in range(jobs.MAX_JOBS + 5):
        assert roll_up(replica, b"a.x").waits == ((replica.store.last_seq, job),)
    assert replica.machine.jobs == 1
    replica.finish()
    assert replica.seqs() == [*range(2, 60, 3), 61 + jobs.MAX_JOBS + 5]


def test_a_stream_of_one_subject_is_cut_and_what_comes_later_stays() -> None:
    replica = Replica({})
    for _ in range(40):
        replica.publish([b"a.x"])
    job = roll_up(replica, b"a.x").waits[0][1]
    assert roll_up(replica, b"a.x").waits == ((42, job),)
    replica.publish([b"b.x", b"a.x"])
    assert roll_up(replica, b"a.x").waits[0][1] != job, "a cut to there would take b.x"
    replica.finish()
    assert replica.seqs() == [43, 45]


def test_two_subjects_of_one_command_have_a_job_each_and_both_acks_wait() -> None:
    replica = filled()
    replica.publish([b"a.y"] * 30)
    result = roll_up(replica, b"a.x", b"a.y")
    index = replica.index
    assert result.waits == ((91, index), (92, index)) and replica.machine.jobs == 2
    while replica.machine.jobs == 2:
        replica.step_on()
    assert replica.machine.has_job(index), "one of them is done"
    replica.finish()
    assert [replica.store.count_of(subject) for subject in (b"a.x", b"a.y")] == [1, 1]


def test_without_room_for_a_job_it_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_JOBS", 0)
    replica = filled()
    assert roll_up(replica, b"a.x").waits == () and replica.store.count_of(b"a.x") == 1


def test_the_end_is_that_of_rollups_at_once_wherever_a_replica_restarts_or_takes_over() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        config = rng.choice([{}, {"max_msgs_per_subject": 12}])
        replicas = [Replica(config), Replica(config)]
        plain = Replica(config)
        waiting = set()
        for _ in range(40):
            subjects = [rng.choice(SUBJECTS) for _ in range(rng.randint(1, 8))]
            rolls = rng.random() < 0.3
            for one in (*replicas, plain):
                if rolls:
                    result = roll_up(one, *subjects, at_once=one is plain)
                    waiting |= {seq for seq, _ in result.waits}
                else:
                    one.publish(subjects)
            if rng.random() < 0.5:
                for one in replicas:
                    one.step_on()
                plain.apply(commands.encode_continue(plain.now))
            one = rng.choice(replicas)
            if rng.random() < 0.2:
                one.reopen()
            elif rng.random() < 0.2:
                one.install(next(other for other in replicas if other is not one))
        for one in replicas:
            one.finish()
        assert replicas[0].everything() == replicas[1].everything()
        assert replicas[0].seqs() == plain.seqs(), seed
    assert waiting


def test_a_leader_sees_whether_a_rollup_may_be_long() -> None:
    replica = filled()
    rules = StreamRules.from_config({"name": "KV_S", "allow_rollup_hdrs": True})
    purge = header_block.build([(b"KV-Operation", b"PURGE")])

    def asked(*messages: tuple[bytes, bytes], rules: StreamRules = rules) -> bool:
        subjects, blocks = zip(*messages, strict=True)
        return rollups.may_be_long(replica.store, rules, subjects, blocks)

    assert asked((b"b.y", SUB), (b"a.x", SUB)) and asked((b"a.x", purge))
    assert not asked((b"a.x", b"")) and not asked((b"b.y", SUB)) and not asked((b"a.*", SUB))
    for other in ({}, {"allow_rollup_hdrs": True, "deny_purge": True}):
        assert not asked((b"a.x", SUB), rules=StreamRules.from_config({"name": "S", **other}))
    plain = StreamRules.from_config({"name": "S", "allow_rollup_hdrs": True})
    assert not asked((b"a.x", purge), rules=plain)
    mapped = {"allow_rollup_hdrs": True, "subject_transform": {"src": "z.>", "dest": "a.>"}}
    assert asked((b"z.x", SUB), rules=StreamRules.from_config({"name": "S", **mapped}))
