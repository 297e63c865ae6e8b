"""BlockStore on both kvs against a plain dict, over random histories."""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jetcluster.store import block_store, block_writer, kv, view
from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.blocks import BlockCache
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search import kept_filters, matches, queries, subject_index
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import ship
from tests.unit.stream.fake_store import NaiveStore

SUBJECTS = [b"a", b"a.b", b"a.c", b"a.b.c", b"b", b"b.*x", b"nul\x00", b"nul"]
MANY = [b"a.*", b"*.*x", b"a", b"*.b.*", b"x.*", b"y.*", b"nul", b"z.>"]
FILTERS = [b">", b"a.>", b"a.*", b"*", b"*.b.>", b"none", b"none.*", *SUBJECTS]
HEADERS = [b"", b"", b"NATS/1.0\r\nA: b\r\n\r\n"]
STREAM = 7


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    count = draw(st.integers(1, 12))
    pool = draw(st.sampled_from([SUBJECTS, [b"a"], [b"a.b", b"b"]]))
    subjects = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
    headers = draw(st.lists(st.sampled_from(HEADERS), min_size=count, max_size=count))
    length = draw(st.sampled_from([0, 3, 2_000]))
    return Batch.of(subjects, headers, [bytes([i]) * (length + i % 2) for i in range(count)])


class StoreMachine(RuleBasedStateMachine):
    """`seqs` are drawn as offsets from the ends of the stream, so that they mostly hit."""

    def open_kv(self) -> RocksKv:
        raise NotImplementedError

    @initialize(memory=st.booleans(), tiny_cache=st.booleans(), small=st.booleans(), seek=st.booleans())
    def begin(self, memory: bool, tiny_cache: bool, small: bool, seek: bool) -> None:
        # what only large streams do must be done by these small ones too
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(block_writer, "MIN_SCAN_BLOCKS", 0 if small else 64)
        self.patch.setattr(block_writer, "REINDEX_RATIO", 0 if seek else 8)
        self.patch.setattr(subject_index, "PRUNE_SUBJECTS", 2 if small else 1024)
        self.patch.setattr(block_writer, "REWRITE_BYTES", 0 if small else 4096)
        self.patch.setattr(queries, "MAX_WINDOW_MESSAGES", 3 if small else 512)
        self.patch.setattr(view, "MAX_WINDOW_MESSAGES", 3 if small else 512)
        self.patch.setattr(block_store, "MIN_MESSAGES", 3)
        self.patch.setattr(view, "BLOCKS_PER_STEP", 1 if small else 256)
        self.patch.setattr(kv, "CHUNK_PAIRS", 3 if small else 8192)
        self.patch.setattr(queries, "MAX_FILTER_SEQS", 15 if small else 1 << 20)
        self.patch.setattr(matches, "MAX_NOTED_REMOVALS", 6 if small else 65_536)
        self.patch.setattr(matches, "MAX_SINGLE_REMOVALS", 1 if small else 8)
        self.patch.setattr(queries, "SAMPLE_SUBJECTS", 1 if small else 256)
        self.patch.setattr(queries, "MAX_BACKWARD_BLOCKS", 1 if small else 64)
        self.patch.setattr(queries, "SEEK_COST", 0.01 if seek else 8.0)
        self.patch.setattr(subject_index, "MAX_HINTS", 2 if small else 65_536)
        self.patch.setattr(kept_filters, "MIN_KEPT_FILTERS", 2 if small else 8)
        self.patch.setattr(kept_filters, "MAX_KEPT_FILTERS", 3 if small else 64)
        self.patch.setattr(kept_filters, "MAX_KEPT_SUBJECTS", 4 if small else 1 << 20)
        self.kv = self.open_kv()
        self.memory = memory
        self.cache = BlockCache(1 if tiny_cache else 1 << 20)
        self.views: list[tuple[view.View, list[Msg]]] = []
        self.model = NaiveStore(memory=memory)
        self.store = BlockStore(self.kv, STREAM, memory=memory, cache=self.cache)
        # neighbours must neither show nor suffer
        self.others = [BlockStore(self.kv, STREAM + d, memory=memory, cache=self.cache) for d in (-1, 1)]
        for other in self.others:
            other.append(Batch.of([b"a", b"b"], [], [b"1", b"2"]), 3, 10)

    def some_seq(self, offset: int) -> int:
        return max(self.model.first_seq + offset if offset >= 0 else self.model.last_seq + 1 + offset, 0)

    @rule(batch=batches(), gap=st.sampled_from([0, 0, 0, 5]), later=st.integers(1, 100))
    def append(self, batch: Batch, gap: int, later: int) -> None:
        first_seq, ts = self.model.last_seq + 1 + gap, self.model.last_ts + later
        self.store.append(batch, first_seq, ts)
        self.model.last_seq += gap
        self.model.append(batch, first_seq, ts)

    @rule(subject_filter=st.sampled_from(FILTERS), offset=st.integers(-20, 20), given=st.integers(0, 10))
    def open_view(self, subject_filter: bytes, offset: int, given: int) -> None:
        seq = self.some_seq(offset)
        expected = list(self.model.scan(subject_filter, seq))
        opened = self.store.view(subject_filter, seq)
        assert opened.first() == (expected[0] if expected else None)
        self.read_view(opened, expected, given)

    @rule(subject_filter=st.sampled_from(FILTERS), offset=st.integers(-20, 20), given=st.integers(0, 10))
    def open_view_of_lasts(self, subject_filter: bytes, offset: int, given: int) -> None:
        seqs = self.store.last_seqs(subject_filter, self.some_seq(offset))
        self.read_view(self.store.view_of(seqs), [self.model.rows[seq] for seq in seqs], given)

    @precondition(lambda self: self.views)
    @rule(number=st.integers(0, 3), given=st.integers(0, 20))
    def go_on_with_a_view(self, number: int, given: int) -> None:
        self.read_view(*self.views.pop(number % len(self.views)), given)

    def read_view(self, opened: view.View, expected: list[Msg], given: int) -> None:
        """`given` messages, then a pause; what is left must stay as it is now."""
        found: list[Msg] = []
        while len(found) < given and (columns := opened.take(given - len(found), 3_000)).seqs:
            found += map(Msg, *columns)
        assert found == expected[: len(found)]
        expected = expected[len(found) :]
        if opened.ended or (not opened.frozen and len(found) < given):
            assert opened.ended and not expected
            opened.close()
        else:
            opened.hold()
            self.views.append((opened, expected))

    @rule(offset=st.integers(-20, 20))
    def delete(self, offset: int) -> None:
        seq = self.some_seq(offset)
        assert self.store.delete(seq) == self.model.delete(seq)

    @rule(subject_filter=st.sampled_from(FILTERS), keep=st.integers(0, 10))
    def purge(self, subject_filter: bytes, keep: int) -> None:
        assert self.store.purge(subject_filter, keep) == self.model.purge(subject_filter, keep)

    @rule(offset=st.integers(-20, 20))
    def compact(self, offset: int) -> None:
        seq = self.some_seq(offset)
        assert self.store.compact(seq) == self.model.compact(seq)

    @rule(beyond=st.integers(0, 5))
    def compact_beyond_the_end(self, beyond: int) -> None:
        seq = self.model.last_seq + beyond
        assert self.store.compact(seq) == self.model.compact(seq)

    @rule(
        max_msgs=st.sampled_from([-1, 1, 5, 20]),
        max_bytes=st.sampled_from([-1, 30, 500, 9_000]),
        per_subject=st.sampled_from([-1, 1, 2]),
    )
    def enforce(self, max_msgs: int, max_bytes: int, per_subject: int) -> None:
        gone = self.store.enforce(max_msgs, max_bytes, per_subject, SUBJECTS)
        assert gone == self.model.enforce(max_msgs, max_bytes, per_subject, SUBJECTS)

    @rule()
    def commit(self) -> None:
        self.kv.commit()

    @rule(last=st.booleans())
    def save_table(self, last: bool) -> None:
        self.store.save_table(1 << 20, last=last)

    @rule(state=st.binary(max_size=20))
    def reopen(self, state: bytes) -> None:
        self.store.save_machine_state(lambda: state)
        self.store.side_put(3, b"key", state)
        self.kv.commit()
        self.views.clear()
        self.reopen_kv()
        self.store = BlockStore(self.kv, STREAM, memory=self.memory, cache=self.cache)
        assert self.store.load_machine_state() == state
        assert list(self.store.side_scan(3)) == [(b"key", state)]

    def reopen_kv(self) -> None:
        self.cache = BlockCache()

    @rule(budget=st.sampled_from([1, 100_000, 1 << 30]), had=st.booleans())
    def export_and_import(self, budget: int, had: bool) -> None:
        copy = BlockStore(self.kv, 99, memory=self.memory, cache=self.cache)
        if had:  # something that is to go
            copy.append(Batch.of([b"old", b"older"], [], [b"", b"x"]), self.model.last_seq + 5, 1)
            self.kv.commit()
        giver = self.store.export()
        # the cut must stay as it was
        self.store.append(Batch.of([b"late"], [], [b""]), self.model.last_seq + 1, self.model.last_ts + 1)
        self.kv.commit()
        ship(giver, copy, self.kv, budget)
        self.store, before = copy, self.store
        self.check()
        self.store = before
        copy.remove()
        assert self.store.delete(self.model.last_seq + 1)
        self.model.last_seq += 1
        self.model.last_ts += 1
        if not self.model.rows:
            self.model.first_seq = self.model.last_seq + 1

    @rule(subject_filter=st.sampled_from(FILTERS), offset=st.integers(-20, 20))
    def ask(self, subject_filter: bytes, offset: int) -> None:
        seq = self.some_seq(offset)
        matching = list(self.model.scan(subject_filter, 0))
        from_seq = [m for m in matching if m.seq >= seq]
        up_to = [m for m in matching if m.seq <= seq]
        store = self.store
        assert list(store.queries.scan(subject_filter, seq)) == from_seq
        assert store.queries.count(subject_filter, seq) == len(from_seq)
        assert store.queries.count(subject_filter, 0) == len(matching)
        assert store.queries.next_by_subject(subject_filter, seq) == (from_seq[0] if from_seq else None)
        assert store.queries.last_by_subject(subject_filter, seq) == (up_to[-1] if up_to else None)
        assert store.queries.last_by_subject(subject_filter) == (matching[-1] if matching else None)
        subjects = {m.subject for m in matching}
        assert dict(store.queries.subjects(subject_filter)) == {s: self.model.subject(s) for s in subjects}
        assert dict(store.queries.subject_counts(subject_filter)) == {
            s: sum(m.subject == s for m in matching) for s in subjects
        }
        lasts = {m.subject: m.seq for m in up_to}
        assert store.last_seqs(subject_filter, seq) == sorted(lasts.values())

    @rule(
        subject_filter=st.sampled_from([b"a.>", b"a.*", b"*"]), doomed=st.lists(st.integers(-20, 20), max_size=3),
        batch=batches(),
    )  # fmt: skip
    def ask_again(self, subject_filter: bytes, doomed: list[int], batch: Batch) -> None:
        self.ask(subject_filter, 1)
        for offset in doomed:
            self.delete(offset)
        self.ask(subject_filter, 1)
        self.append(batch, 0, 1)
        self.ask(subject_filter, 1)

    @rule(offset=st.integers(-20, 20), shift=st.integers(-2, 2))
    def ask_by_seq_and_time(self, offset: int, shift: int) -> None:
        seq = self.some_seq(offset)
        found = self.model.rows.get(seq)
        assert self.store.get(seq) == found
        ts = (found.ts if found else self.model.last_ts) + shift
        later = [m.seq for m in self.model.rows.values() if m.ts >= ts]
        assert self.store.seq_at_time(ts) == min(later, default=self.model.last_seq + 1)
        subject = found.subject if found else b"a"
        assert self.store.queries.subject(subject) == self.model.subject(subject)
        assert self.store.last_seq_of(subject) == max((m.seq for m in self.model.scan(subject, 0)), default=0)

    @rule(
        asked=st.sampled_from(
            [[b">"], [b"a.>"], [b"a.*", b"a"], [b"b", b"*.b.>", b"none"], [b"a.>", b"*.b.>", b"b"], SUBJECTS, MANY]
        ),
        offset=st.integers(-20, 20),
        want=st.integers(1, 40),
    )
    def ask_as_a_consumer(self, asked: list[bytes], offset: int, want: int) -> None:
        seq = self.some_seq(offset)
        matching = sorted({m.seq for f in asked for m in self.model.scan(f, seq)})
        found = self.store.next_seqs(asked, seq, want)
        assert found == matching[:want]
        assert self.store.queries.count_any(asked, seq) == len(matching)
        every = [m for f in asked for m in self.model.scan(f, 0)]
        assert self.store.queries.last_of_any(asked) == max((m.seq for m in every), default=0)
        lasts = {m.subject: m.seq for m in sorted(every, key=lambda m: m.seq) if m.seq <= seq}
        assert self.store.last_seqs_any(asked, seq) == sorted(lasts.values())
        for seqs in (found, range(max(seq - 3, 0), seq + 50), range(seq, seq + 50, 3)):
            stored = [self.model.rows[s] for s in seqs if s in self.model.rows]
            assert self.store.reader.read(seqs) == stored
            assert list(zip(*self.store.read_columns(seqs), strict=True)) == stored

    @precondition(lambda self: self.model.rows)
    @rule(subject_filter=st.sampled_from(FILTERS), batch=batches(), doomed=st.integers(-20, 20))
    def mutate_during_scan(self, subject_filter: bytes, batch: Batch, doomed: int) -> None:
        scan = self.store.queries.scan(subject_filter, 0)
        first = next(scan, None)
        self.delete(doomed)
        if first is not None:
            self.append(batch, 0, 1)
        rest = [m for m in self.model.scan(subject_filter, 0) if first is None or m.seq > first.seq]
        assert list(scan) == ([] if first is None else rest)

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.state == self.model.state
        missing = [s for s in range(self.model.first_seq, self.model.last_seq + 1) if s not in self.model.rows]
        assert self.store.deleted(1_000) == missing
        assert self.store.deleted(2) == missing[:2]

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        assert [m.seq for m in self.store.queries.scan(b">", 0)] == sorted(self.model.rows)
        for opened, expected in self.views:
            found: list[Msg] = []
            while not opened.ended:
                found += map(Msg, *opened.take(5, 1))
            assert found == expected
        for other in self.others:
            assert [m.payload for m in other.queries.scan(b">", 0)] == [b"1", b"2"]
        self.patch.undo()
        self.store.remove()
        self.kv.commit()
        again = BlockStore(self.kv, STREAM, memory=self.memory)
        assert again.state == NaiveStore(memory=self.memory).state
        assert again.load_machine_state() is None
        self.kv.close()


class MemMachine(StoreMachine):
    def open_kv(self) -> RocksKv:
        return MemKv()


class RocksMachine(StoreMachine):
    def open_kv(self) -> RocksKv:
        self.path = Path(tempfile.mkdtemp(prefix="jetcluster-store-"))
        return self.open_again()

    def open_again(self) -> RocksKv:
        return RocksKv(self.path)

    def reopen_kv(self) -> None:
        super().reopen_kv()
        self.kv.flush_now()
        self.kv.close()
        self.kv = self.open_again()
        self.others = [BlockStore(self.kv, STREAM + d, memory=self.memory, cache=self.cache) for d in (-1, 1)]

    @rule(batch=batches(), doomed=st.integers(-20, 20), subject_filter=st.sampled_from(FILTERS))
    def abandon(self, batch: Batch, doomed: int, subject_filter: bytes) -> None:
        self.store.save_machine_state(b"before")
        self.kv.commit()
        model = copy.deepcopy(self.model)
        self.store.save_machine_state(b"after")
        self.append(batch, 0, 1)
        self.delete(doomed)
        self.purge(subject_filter, 0)
        self.others[0].append(Batch.of([b"x"], [], [b"3"]), self.others[0].last_seq + 1, 1_000)
        self.store.abandon()
        self.model = model
        self.check()
        assert self.store.load_machine_state() == b"before"
        assert self.others[0].delete(self.others[0].last_seq)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.path, ignore_errors=True)


TestOnMemKv = MemMachine.TestCase
TestOnMemKv.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestOnRocksKv = RocksMachine.TestCase
TestOnRocksKv.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("kv", [MemKv, None])
def test_removals_count_whatever_goes(kv: type[MemKv] | None, tmp_path: Path) -> None:
    store = BlockStore(RocksKv(tmp_path) if kv is None else kv(), STREAM, memory=False)
    seen = store.removals

    def gone(count: int) -> None:
        nonlocal seen
        assert store.removals == seen + count
        seen = store.removals

    for first in (1, 11, 21):
        store.append(Batch.of([b"a", b"b"] * 5, [], [b"x"] * 10), first, first)
    gone(0)
    store.delete(12)
    gone(1)
    store.delete(12)
    gone(0)
    store.delete_all([13, 14])
    gone(2)
    store.delete_all([2, 4, 6, 8])
    gone(4)
    store.compact(11)
    gone(6)
    store.enforce(max_msgs=12)
    gone(5)
    store.purge()
    gone(12)
    if kv is None:
        store.append(Batch.of([b"a"], [], [b"x"]), 31, 31)
        store.abandon()
        assert store.removals > seen


@pytest.mark.parametrize("seed", range(2))
def test_a_bucket_with_one_message_per_key_after_a_crash_is_that_of_the_last_commit(seed: int, tmp_path: Path) -> None:
    """With batches and bodies large enough that blocks are rewritten."""
    rng = random.Random(seed)
    keys = [b"$KV.b.%d" % n for n in range(60)]
    rocks = RocksKv(tmp_path)
    store = BlockStore(rocks, STREAM, memory=False)
    bucket: dict[bytes, tuple[int, bytes]] = {}
    committed = dict(bucket)
    seq = 1
    for step in range(100):
        count = rng.choice((1, 1, 5, 40))
        subjects = (
            [rng.choice(keys) for _ in range(count)] if step % 2 else [keys[(seq + n) % 60] for n in range(count)]
        )
        bodies = [b"%d" % (seq + n) * rng.choice((0, 1, 200)) for n in range(count)]
        store.append(Batch.of(subjects, [], bodies), seq, seq)
        before = len(bucket)
        bucket |= {subject: (seq + n, bodies[n]) for n, subject in enumerate(subjects)}
        assert store.enforce(0, 0, 1, subjects) == before + count - len(bucket)
        seq += count
        assert store.messages == len(bucket)
        assert store.byte_count == sum(30 + len(subject) + len(body) for subject, (_, body) in bucket.items())
        if rng.random() < 0.2:
            rocks.commit()
            committed = dict(bucket)
        if rng.random() < 0.1:
            rocks.close()  # open writes are lost
            rocks = RocksKv(tmp_path)
            store = BlockStore(rocks, STREAM, memory=False)
            bucket = dict(committed)
            seq = store.last_seq + 1
        assert store.num_subjects == len(bucket)
        assert {m.subject: (m.seq, m.payload) for m in store.queries.scan(b">", 0)} == bucket
    rocks.close()


def test_no_deleted_body_is_in_a_block_that_was_rewritten() -> None:
    """Deleting one by one erases; where that halves a block, the block is written anew instead."""
    memory = MemKv()
    store = BlockStore(memory, STREAM, memory=False)
    bodies = [b"body-%03d." % n + bytes(random.Random(n).randbytes(200)) for n in range(64)]
    store.append(Batch.of([b"a", b"b"] * 32, [], bodies), 1, 1)

    def stored() -> bytes:
        memory.commit()
        return b"".join(value for _, value in memory.scan(b"", b"\xff" * 16))

    size = len(stored())
    for seq in range(1, 61):
        assert store.delete(seq)
        there = stored()
        assert [n for n, body in enumerate(bodies) if body[-50:] in there] == list(range(seq, 64))
    assert len(stored()) < size / 3, "the dead ones take no room"


def test_delete_all_takes_what_is_there_and_side_tables_are_read_from_a_key_on() -> None:
    store = BlockStore(MemKv(), STREAM, memory=False)
    store.append(Batch.of([b"a", b"b", b"a", b"c"], [], [b"1", b"2", b"3", b"4"]), 1, 100)
    store.append(Batch.of([b"a"] * 3, [], [b"5", b"6", b"7"]), 5, 200)
    assert store.delete_all([2, 3, 6, 99]) == 3
    assert store.delete_all([2, 6]) == 0
    assert [store.contains(seq) for seq in range(9)] == [seq in (1, 4, 5, 7) for seq in range(9)]
    assert [message.seq for message in store.queries.scan(b">", 1)] == [1, 4, 5, 7]
    for key in (b"", b"b", b"a", b"c"):
        store.side_put(3, key, key * 2)
    assert list(store.side_scan(3, b"b")) == [(b"b", b"bb"), (b"c", b"cc")]
    assert len(list(store.side_scan(3))) == 4
