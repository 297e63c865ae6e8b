"""Long commands in pieces: the end is that of the same commands in one piece, on every replica, wherever one restarts
or takes the state over; and no command does more than a piece."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jetcluster.errors import ApiError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.slices import STEP, Step
from jetcluster.stream.apply import jobs
from jetcluster.stream.apply.jobs import StreamJob, StreamJobError
from jetcluster.stream.apply.machine import StateError, StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.ports import SIDE_JOBS, JobStep, PublishResult, Result
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import ship

T0 = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
SMALL = Step(subjects=2, messages=3, looked=4, blocks=2, size=400, cut=3, cut_blocks=2, rest=1)
SUBJECTS = [b"a.x", b"a.y", b"a.z", b"b.x", b"b.y", b"c"]
FILTERS = [b"", b">", b"a.>", b"*.x", b"a.x", b"*.*", b"c", b"d"]


class Replica:
    def __init__(self, config: dict[str, Any], *, step: Step = SMALL) -> None:
        self.step = step
        self.index = 0
        self.now = T0
        self.kv = MemKv()
        self.reopen()
        self.update(config)

    def reopen(self) -> None:
        self.kv.commit()
        self.store = BlockStore(self.kv, 1, memory=False)
        self.store.slices.step = self.step
        self.machine = StreamMachine("S", StreamRules.from_config({"name": "S"}), self.store)

    def install(self, source: Replica) -> None:
        source.kv.commit()
        ship(source.store.export(), self.store, self.kv)
        self.machine.reload()

    def apply(self, command: bytes) -> Result:
        self.index += 1
        return self.machine.apply(self.index, 1, command)

    def update(self, config: dict[str, Any]) -> Result:
        wanted = {"name": "S", "allow_rollup_hdrs": True, **config}
        return self.apply(commands.encode_update_config(self.now, wanted))

    def publish(self, subjects: Sequence[bytes]) -> Result:
        payloads = [b"%d" % i for i in range(len(subjects))]
        self.now += 1000
        return self.apply(commands.encode_publish(self.now, Batch.encode(subjects, [], payloads)))

    def purge(self, subject_filter: bytes, seq: int = 0, keep: int = 0) -> Result:
        return self.apply(commands.encode_purge(self.now, subject_filter, seq, keep))

    def step_on(self) -> Result:
        return self.apply(commands.encode_continue(self.now))

    def finish(self) -> list[Result]:
        found = []
        while self.machine.jobs:
            found.append(self.step_on())
            assert len(found) < 10_000
        return found

    def seqs(self) -> list[int]:
        return [m.seq for m in self.store.queries.scan(b">", 1)]

    def everything(self) -> object:
        self.store.touch()
        self.kv.commit()
        return list(self.kv.scan(b"", b"\xff" * 9)), self.store.state, self.machine.hash


def filled(count: int, per_block: int = 1, **config: Any) -> Replica:
    replica = Replica(config)
    for start in range(0, count, per_block):
        replica.publish([b"k.%d" % seq for seq in range(start, start + per_block)])
    return replica


# -- what a client sees ------------------------------------------------------------------------------------------------


def test_a_small_purge_is_one_command_with_its_answer() -> None:
    replica = Replica({}, step=Step())
    replica.publish([b"a.x", b"a.y", b"b.x"])
    assert replica.purge(b"a.>") == 2
    assert replica.machine.jobs == 0
    assert replica.step_on() == 0


@pytest.mark.parametrize(
    ("subject_filter", "seq", "keep", "left"),
    [
        (b"k.*", 0, 0, []),
        (b"*.*", 0, 0, []),
        (b"k.*", 15, 0, list(range(15, 21))),
        (b"*.*", 0, 4, [17, 18, 19, 20]),
        (b"k.>", 0, 4, [17, 18, 19, 20]),
        (b"", 0, 8, list(range(13, 21))),
        (b"", 9, 0, list(range(9, 21))),
        (b"*.*", 0, 30, list(range(1, 21))),
        (b"*.none", 0, 0, list(range(1, 21))),
    ],
)
@pytest.mark.parametrize("per_block", [1, 5])
def test_a_long_purge_ends_with_the_number_of_all_its_pieces(
    subject_filter: bytes, seq: int, keep: int, left: list[int], per_block: int
) -> None:
    replica = filled(20, per_block)
    index = replica.index + 1
    first = replica.purge(subject_filter, seq, keep)
    steps = replica.finish()
    assert replica.seqs() == left
    if steps:
        assert isinstance(first, JobStep) and not first.done
        assert steps[-1] == JobStep(index, 20 - len(left), True)
    else:
        assert first == 20 - len(left)


def test_what_comes_after_a_purge_stays() -> None:
    replica = filled(20)
    replica.purge(b"k.*")
    late = replica.publish([b"k.1", b"k.new", b"k.19"])
    assert isinstance(late, PublishResult)
    replica.finish()
    assert replica.seqs() == [21, 22, 23]
    assert replica.purge(b"k.1") == 1


def test_a_purge_of_everything_is_one_command_whatever_is_open() -> None:
    replica = filled(20)
    replica.purge(b"*.*")
    assert replica.machine.jobs == 1
    removed = replica.purge(b"", 1000)
    assert isinstance(removed, int) and removed > 0
    assert (replica.store.messages, replica.store.last_seq) == (0, 999)
    replica.publish([b"k.1"])
    replica.finish()
    assert replica.seqs() == [1000]


def test_purges_wait_for_their_turn_when_it_matters_and_only_so_many_wait() -> None:
    replica = filled(20)
    replica.purge(b"*.*", 15)
    assert isinstance(replica.purge(b"*.*", keep=10), JobStep)  # all that is not purged yet is no reason to keep less
    for _ in range(jobs.MAX_JOBS - 2):
        assert isinstance(replica.purge(b"*.*", keep=10), JobStep)
    refused = replica.purge(b"*.*", keep=10)
    assert isinstance(refused, ApiError) and (refused.code, refused.err_code) == (503, 10023)
    replica.finish()
    assert replica.seqs() == [15, 16, 17, 18, 19, 20]


def test_limits_hold_in_the_end_and_new_messages_push_out_none_that_stays() -> None:
    replica = Replica({})
    for _ in range(8):
        replica.publish([b"a.x", b"a.y"])
    replica.publish([b"c"])
    # First one per subject, then three in all: what the 16 others are in excess must not cost the one of c.
    replica.update({"max_msgs_per_subject": 1, "max_msgs": 3})
    assert replica.machine.jobs
    replica.publish([b"a.x"])
    replica.publish([b"a.x"])
    assert replica.store.messages > 3
    replica.finish()
    assert replica.seqs() == [16, 17, 19]


def test_a_subject_that_has_been_passed_keeps_to_its_limit() -> None:
    replica = Replica({})
    replica.publish([b"c"])
    for _ in range(9):
        replica.publish([b"a.x", b"a.x"])
    replica.update({"max_msgs_per_subject": 1})
    assert replica.machine.jobs
    replica.publish([b"c", b"c"])
    assert replica.store.count_of(b"c") == 1
    replica.publish([b"a.x"] * 5)
    replica.finish()
    assert [replica.store.count_of(s) for s in (b"a.x", b"c")] == [1, 1]


def test_limits_that_change_under_way_are_those_in_force() -> None:
    replica = Replica({})
    for _ in range(12):
        replica.publish([b"a.x", b"a.y"])
    replica.update({"max_msgs_per_subject": 8})
    replica.update({"max_msgs_per_subject": 2})
    assert replica.machine.jobs == 1
    replica.finish()
    assert replica.seqs() == [21, 22, 23, 24]


@pytest.mark.parametrize("discard", [{}, {"discard": "new", "discard_new_per_subject": True}])
def test_a_limit_that_falls_again_while_others_wait_leaves_the_newest(discard: dict[str, Any]) -> None:
    replica = Replica({**discard, "max_msgs_per_subject": 20})
    for subject in [b"a.x"] * 15 + [b"b.x"] * 15 + [b"a.x"] * 5:
        replica.publish([subject])
    replica.update({**discard, "max_msgs_per_subject": 12})
    while replica.store.count_of(b"a.x") > 12:
        replica.step_on()
    for _ in range(4):  # what is left of the first fifteen is passed
        replica.step_on()
    replica.purge(b"b.*", keep=3)
    assert replica.machine.jobs == 2
    replica.update({**discard, "max_msgs_per_subject": 2})
    replica.finish()
    assert replica.seqs() == [29, 30, 34, 35]


def test_during_a_purge_a_full_stream_pushes_out_nothing_that_stays() -> None:
    replica = Replica({"max_msgs": 12})
    replica.publish([b"keep"])
    for i in range(11):
        replica.publish([b"k.%d" % i])
    replica.purge(b"k.*")
    assert replica.machine.jobs
    replica.publish([b"new"])
    replica.finish()
    assert replica.seqs() == [1, 13]
    replica.purge(b"none.*")
    for _ in range(20):
        replica.publish([b"new"])
    assert replica.store.messages == 12


def test_a_stream_that_grew_past_its_limit_during_a_purge_is_cut_to_it() -> None:
    replica = filled(12, max_msgs=12)
    replica.purge(b"*.none")
    assert replica.machine.jobs
    for _ in range(20):
        replica.publish([b"k.1"])
    assert replica.store.messages == 32
    replica.finish()
    assert replica.seqs() == list(range(21, 33))


def test_expiry_removes_a_piece_and_is_due_at_once() -> None:
    replica = filled(20, max_age=3600 * SECOND)
    now = replica.now = T0 + 7200 * SECOND
    for _ in range(5):
        replica.publish([b"young"])
    left = []
    while (due := replica.machine.next_expiry) is not None and due <= now:
        replica.apply(commands.encode_expire(now))
        left.append(replica.store.messages)
    assert left[-1] == 5
    assert len(left) > 3


def test_replacing_takes_the_small_at_once_and_the_rest_after_it() -> None:
    replica = filled(20)
    replica.publish([b"info"])
    batch = Batch.encode([b"info"], [], [b"new"])
    result = replica.apply(commands.encode_replace(T0, [(b"info", 21)], [b"info", b"*.*"], batch))
    assert result == 22
    assert replica.store.count_of(b"info") == 1
    assert replica.machine.jobs == 1
    replica.finish()
    assert replica.seqs() == [22]


def test_replacing_is_never_refused_for_what_waits() -> None:
    replica = filled(20)
    replica.purge(b"*.*", 15)
    for _ in range(jobs.MAX_JOBS - 1):
        replica.purge(b"*.*", keep=10)
    result = replica.apply(commands.encode_replace(T0, [], [b"k.*"], Batch.encode([b"info"], [], [b"new"])))
    assert result == 21
    assert replica.seqs() == [21]


def test_a_job_survives_its_record() -> None:
    job = StreamJob(5, jobs.SUBJECTS, 7, 8, 9, 10, 11, b"a.>", b"a.b\0", 2)
    assert jobs.decode(job.key, job.encode()) == job
    for row in (b"", job.encode()[:20], b"\xff" + job.encode()[1:]):
        with pytest.raises(StreamJobError):
            jobs.decode(job.key, row)


def test_a_damaged_record_is_an_error_at_the_start() -> None:
    replica = filled(20)
    replica.store.side_put(SIDE_JOBS, b"x", b"")
    with pytest.raises(StateError):
        replica.reopen()


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subjects", [97, 1])
def test_no_command_does_more_than_a_piece(monkeypatch: pytest.MonkeyPatch, subjects: int) -> None:
    """Counted: blocks read and messages removed, per command; publishes while a job is open are some of them."""
    replica = Replica({})
    for start in range(0, 400, 4):
        replica.publish([b"k.%d" % (seq % subjects) for seq in range(start, start + 4)])
    reads: list[int] = []
    reader = replica.store.reader
    batch = reader.batch
    monkeypatch.setattr(reader, "batch", lambda at: (reads.append(at), batch(at))[1])
    worst = {"reads": 0, "removed": 0, "commands": 0}

    def watched(command: bytes) -> None:
        reads.clear()
        before = replica.store.messages
        replica.apply(command)
        worst["reads"] = max(worst["reads"], len(reads))
        worst["removed"] = max(worst["removed"], before - replica.store.messages)
        worst["commands"] += 1

    config = {"name": "S", "max_msgs_per_subject": 3, "max_msgs": 200}
    for command in (
        commands.encode_purge(T0, b"k.*", 50),
        commands.encode_purge(T0, b"", 100),
        commands.encode_purge(T0, b"*.*", 0, 250),
        commands.encode_update_config(T0, config),
        commands.encode_purge(T0, b"*.1", 0, 0),
    ):
        watched(command)
        while replica.machine.jobs:
            replica.now += 1000
            watched(commands.encode_publish(replica.now, Batch.encode([b"k.0"], [], [b""])))
            watched(commands.encode_continue(T0))
    watched(commands.encode_update_config(T0, {"name": "S", "max_age": SECOND}))
    for _ in range(50):
        replica.publish([b"k.1", b"k.2", b"k.3", b"k.4"])
    replica.now = T0 + 3600 * SECOND
    for _ in range(10):
        replica.publish([b"young"])
    while (due := replica.machine.next_expiry) is not None and due <= replica.now:
        watched(commands.encode_expire(replica.now))
    assert replica.store.messages == 10
    assert worst["commands"] > 100, worst
    # A command may end one phase and begin the next: a piece of each. Blocks are read to look and to change them.
    assert worst["reads"] <= 12
    assert worst["removed"] <= 8


WORDS = [b"a", b"x", b"*", b">", b"", b"\xff", b"\0"]
LONG = b"a" * 70_000
ODD_FILTERS = st.sampled_from(
    [
        *(b".".join(words) for count in range(4) for words in itertools.product(WORDS, repeat=count)),
        # Few of them: a pattern of a long word takes long to compile.
        *[LONG, b"*." + LONG, LONG + b".*", LONG + b".>", b"a." + LONG, LONG + b"." + LONG + b".*"] * 20,
    ]
)
"""All filters of up to three words, and long ones."""


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            ODD_FILTERS,
            st.integers(0, 60) | st.integers(0, 1 << 40),
            st.integers(0, 9) | st.integers(0, (1 << 64) - 1),
        ),
        max_size=8,
    )
)
def test_no_purge_raises_whatever_it_says(purges: list[tuple[bytes, int, int]]) -> None:
    replica = Replica({})
    for number in range(8):
        replica.publish([b"a.x", b"a.\xff", b"x.%d" % number, b"\0"])
    for purge in purges:
        replica.purge(*purge)
        replica.publish([b"a.x"])
    replica.reopen()
    replica.finish()


# -- the model ---------------------------------------------------------------------------------------------------------

Line = tuple[str, tuple[Any, ...]]


# Strategies made once: one that is made for every draw costs more than the test of what it draws.
MAX_MSGS = st.sampled_from([0, 0, 7, 15])
PER_SUBJECT = st.sampled_from([0, 0, 2, 5])
SUBJECT = st.sampled_from(SUBJECTS)
COUNTS = st.integers(1, 6)
FILTER = st.sampled_from(FILTERS)
KEEPS = st.sampled_from([0, 0, 1, 3, 6])
SEQS = st.sampled_from([0, 0, 5, 20, 60])
LIMITS = st.tuples(st.sampled_from([0, 4, 10]), st.sampled_from([0, 1, 3]))
ONE_SEQ = st.tuples(st.integers(1, 40))
KINDS = st.lists(
    st.sampled_from(
        ["publish"] * 4 + ["continue"] * 3 + ["purge"] * 2 + ["update", "restart", "install", "delete"]
    ),
    min_size=5, max_size=40,
)  # fmt: skip


@st.composite
def scripts(draw: st.DrawFn) -> tuple[dict[str, Any], list[Line]]:
    config: dict[str, Any] = {"max_msgs": draw(MAX_MSGS), "max_msgs_per_subject": draw(PER_SUBJECT)}
    steps: list[Line] = []
    for kind in draw(KINDS):
        if kind == "publish":
            steps.append((kind, ([draw(SUBJECT) for _ in range(draw(COUNTS))],)))
        elif kind == "purge":
            keep = draw(KEEPS)
            seq = 0 if keep else draw(SEQS)
            steps.append((kind, (draw(FILTER), seq, keep)))
        elif kind == "update":
            steps.append((kind, draw(LIMITS)))
        elif kind == "delete":
            steps.append((kind, draw(ONE_SEQ)))
        else:
            steps.append((kind, ()))
    return config, steps


@settings(max_examples=400, deadline=None)
@example(
    # A block without messages is known to the replica that emptied it, and not to one that starts.
    (
        {"max_msgs": 0, "max_msgs_per_subject": 0},
        [("publish", (subjects,)) for subjects in ([b"a.x"], [b"a.y"], [b"a.x"], [b"a.x", b"a.y"])]
        + [("update", (4, 3))]
        + [("publish", ([subject],)) for subject in (b"a.x", b"a.x", b"a.x", b"a.y")]
        + [("restart", ())],
    )
)
@example(
    # What is published while a purge waits behind lower limits counts for these.
    (
        {"max_msgs": 0, "max_msgs_per_subject": 0},
        [
            *(("publish", (subjects,)) for subjects in ([b"a.x"], [b"a.x"] * 3, [b"a.x", b"b.x", b"a.x", b"a.y"])),
            ("update", (4, 0)),
            ("purge", (b"a.>", 0, 0)),
            ("publish", ([b"a.x"] * 2,)),
        ],
    )
)
@given(scripts())
def test_the_end_is_that_of_the_same_commands_in_one_step(script: tuple[dict[str, Any], list[Line]]) -> None:
    """And two replicas are the same in every byte after every command, one of which restarts and is replaced."""
    config, steps = script
    steady, restless, whole = Replica(config), Replica(config), Replica(config, step=STEP)
    limited = bool(config["max_msgs_per_subject"])
    pushed_out = bool(config["max_msgs"])
    for kind, args in steps:
        if kind == "restart":
            restless.reopen()
            continue
        if kind == "install":
            restless = _copy(restless, steady)
            continue
        if kind == "continue":
            assert steady.step_on() == restless.step_on()
        elif kind == "publish":
            results = [replica.publish(*args) for replica in (steady, restless, whole)]
            assert results[0] == results[1] == results[2]
        elif kind == "purge":
            keeps = args[2] or any(job.keep for job in steady.machine._jobs._jobs)
            if keeps and steady.machine.jobs:
                continue  # which ones are the newest depends on what else is under way
            assert steady.purge(*args) == restless.purge(*args)
            whole.purge(*args)
            whole.finish()
        elif kind == "delete":
            if steady.machine.jobs:
                continue  # a message that a purge may have removed already
            for replica in (steady, restless, whole):
                replica.apply(commands.encode_delete_msg(T0, *args))
        elif kind == "update":
            if steady.machine.jobs:
                continue  # the limits in force count, not those that were
            limited = bool(args[1])
            pushed_out = pushed_out or bool(args[0])
            wanted = {"max_msgs": args[0], "max_msgs_per_subject": args[1]}
            assert steady.update(wanted) == restless.update(wanted)
            whole.update(wanted)
            whole.finish()
        if limited:
            # A purge that keeps the newest finds them first: see above.
            while any(
                job.phase in (jobs.NEW, jobs.COUNT, jobs.FIND) and job.keep for job in steady.machine._jobs._jobs
            ):
                assert steady.step_on() == restless.step_on()
        assert steady.everything() == restless.everything()
    assert steady.finish() == restless.finish()
    assert steady.everything() == restless.everything()
    if pushed_out and steady.seqs() != whole.seqs():
        # A purge is over when its job is, and may come after what was published meanwhile: limits count that first.
        most, last = steady.machine.rules.max_msgs, steady.store.last_seq
        assert len(steady.seqs()) <= (most or len(steady.seqs()))
        assert all(last - seq >= most for seq in set(whole.seqs()) - set(steady.seqs())), "newer ones pushed it out"
        return
    assert steady.seqs() == whole.seqs()
    assert steady.store.state == whole.store.state


def _copy(old: Replica, source: Replica) -> Replica:
    old.install(source)
    old.store.slices.step = SMALL
    old.index, old.now = source.index, source.now
    return old
