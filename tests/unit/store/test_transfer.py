"""Catch-up by difference: what two stores do not have in common, wherever it lies and whenever the transfer is cut."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.replica.catchup import Room
from jetcluster.store import keys, transfer
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KeyValue, KvDamagedError, KvFullError, MemSnapshot
from jetcluster.store.rocks import Snapshot
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import (
    END,
    KINDS,
    START,
    Giver,
    Range,
    Taker,
    decode_places,
    decode_ranges,
    encode_places,
)
from jetcluster.store.transfer import encode_ranges as encode
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import Shipped, filled, records, ship, steps

OWN = 9


@pytest.fixture(params=["rocks", "mem"])
def kv(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocksKv]:
    opened: RocksKv = RocksKv(tmp_path / "source") if request.param == "rocks" else MemKv()
    yield opened
    opened.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Many small ranges."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 200)
    return 200


def all_ranges(giver: Giver, budget: int = 1 << 30) -> list[Range]:
    found: list[Range] = []
    while not found or found[-1].end != END:
        found += giver.announce(found[-1].end if found else START, budget)
    return found


# -- equal afterwards, whatever there was


def test_the_cut_stays_while_the_source_goes_on(kv: RocksKv) -> None:
    store = filled(kv)
    state, messages = store.state, list(store.queries.scan(b">", 1))
    giver = store.export()
    store.purge()
    store.append(Batch.of([b"new"], [], [b""]), store.last_seq + 1, 10**6)
    store.side_delete(2, b"id-1")
    store.save_machine_state(b"applied 18")
    kv.commit()
    target_kv = MemKv()
    target = BlockStore(target_kv, OWN, memory=False)
    target.append(Batch.of([b"old"], [], [b"to be replaced"]), 1, 1)
    target.save_machine_state(lambda: b"forgotten")
    ship(giver, target, target_kv)
    for opened in (target, BlockStore(target_kv, OWN, memory=False)):
        assert opened.state == state
        assert list(opened.queries.scan(b">", 1)) == messages
        assert opened.queries.last_by_subject(b"old") is None
        assert opened.load_machine_state() == b"applied 17"
        assert list(opened.side_scan(2)) == [(b"", b""), (b"id-1", b"\x01")]
    target.append(Batch.of([b"a"], [], [b"on"]), target.last_seq + 1, 10**6)
    assert target.count_of(b"a") == sum(m.subject == b"a" for m in messages) + 1


STORE_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.sampled_from([b"a", b"b", b"much longer than the others"])),
        st.tuples(st.just("delete"), st.integers(1, 60), st.just(b"")),
        st.tuples(st.just("compact"), st.integers(1, 30), st.just(b"")),
        st.tuples(st.just("purge"), st.integers(0, 3), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("side"), st.integers(0, 300), st.binary(max_size=8)),
        st.tuples(st.just("side_delete"), st.integers(0, 3), st.binary(max_size=1)),
    ),
    max_size=25,
)


def play(store: BlockStore, done: list[tuple[str, int, bytes]], salt: bytes) -> None:
    for step, number, what in done:
        if step == "append":
            payloads = [b"%b%d" % (salt, number)] * number
            store.append(Batch.of([what] * number, [], payloads), store.last_seq + 1, store.last_ts + 1)
        elif step == "delete":
            store.delete(number)
        elif step == "compact":
            store.compact(number)
        elif step == "purge":
            store.purge(what, keep=number)
        elif step == "side":
            store.side_put(number % 4, what, salt * number)
        else:
            store.side_delete(number, what)
    store.save_machine_state(salt)


@given(common=STORE_STEPS, theirs=STORE_STEPS, ours=STORE_STEPS, size=st.sampled_from([1, 50, 300, 32 << 10]))
@settings(max_examples=120, deadline=None)
def test_two_histories_become_equal_byte_for_byte(
    common: list[tuple[str, int, bytes]],
    theirs: list[tuple[str, int, bytes]],
    ours: list[tuple[str, int, bytes]],
    size: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "RANGE_BYTES", size)
        source_kv, target_kv = MemKv(), MemKv()
        source, target = BlockStore(source_kv, 1, memory=False), BlockStore(target_kv, OWN, memory=False)
        neighbour = filled(target_kv, 10)
        play(source, common + theirs, b"x")
        play(target, common, b"x")
        play(target, ours, b"y")
        giver = source.export()
        again = source.export()
        ship(giver, target, target_kv, budget=size)
        assert records(target_kv, OWN) == records(source_kv, 1)
        assert target.state == source.state
        assert neighbour.state == BlockStore(target_kv, 10, memory=False).state
        assert ship(again, target, target_kv).fetched == 0, "there is nothing left to send"


SIDES = st.dictionaries(st.binary(max_size=3), st.binary(max_size=40), max_size=40)


@given(theirs=SIDES, ours=SIDES, size=st.sampled_from([1, 20, 100]), budget=st.sampled_from([1, 3_000, 1 << 20]))
@settings(max_examples=200, deadline=None)
def test_any_pairs_of_one_kind(theirs: dict[bytes, bytes], ours: dict[bytes, bytes], size: int, budget: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "RANGE_BYTES", size)
        source, target = MemKv(), MemKv()
        for kv, stream, pairs in ((source, 1, theirs), (target, OWN, ours)):
            for key, value in pairs.items():
                kv.put(keys.stream_prefix(keys.SIDE, stream) + key, value)
        shipped = Shipped()
        taker = Taker(target, OWN)
        for _ in steps(Giver(source.snapshot(), 1), taker, target, budget, shipped):
            pass
        taker.finish()
        assert records(target, OWN) == records(source, 1)
        different = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)}
        assert shipped.fetched <= len(different) * (size + 8 + 3 + 40)


# -- as much as differs


@pytest.mark.parametrize("changed", [0, 1, 10, 100])
def test_bytes_sent_are_proportional_to_the_difference(changed: int) -> None:
    source_kv, target_kv = MemKv(), MemKv()
    source = BlockStore(source_kv, 1, memory=False)
    for i in range(2_000):
        source.append(Batch.of([b"k.%d" % (i % 50)] * 2, [], [os.urandom(500)] * 2), source.last_seq + 1, i)
    target = BlockStore(target_kv, OWN, memory=False)
    first = ship(source.export(), target, target_kv)
    assert first.fetched == first.compared > 2_000_000
    for seq in random.Random(1).sample(range(1, 4_000), changed):
        source.delete(seq)
    then = ship(source.export(), target, target_kv)
    assert records(target_kv, OWN) == records(source_kv, 1)
    # a message deleted: its block is erased there, and its info written anew, and the state
    assert then.fetched <= changed * 2 * (transfer.RANGE_BYTES + 2_000) + 1_000
    assert changed or then.fetched < 200, "the state record, at most"
    assert then.announcements < then.compared // 100


def test_what_is_new_at_the_end_and_gone_at_the_beginning_is_all_that_moves() -> None:
    source_kv, target_kv = MemKv(), MemKv()
    source = BlockStore(source_kv, 1, memory=False)
    target = BlockStore(target_kv, OWN, memory=False)

    def write(blocks: int) -> None:
        for _ in range(blocks):
            source.append(Batch.of([b"s"] * 10, [], [os.urandom(100)] * 10), source.last_seq + 1, source.last_ts + 1)

    write(3_000)
    ship(source.export(), target, target_kv)
    source.compact(5_000)
    write(100)
    shipped = ship(source.export(), target, target_kv)
    assert shipped.compared > 2_500_000
    assert shipped.fetched < 300_000
    assert records(target_kv, OWN) == records(source_kv, 1)


def test_a_change_of_the_giver_between_two_rounds_is_sent_in_the_second(small: int) -> None:
    source_kv, target_kv = MemKv(), MemKv()
    source = filled(source_kv, blocks=500)
    target = BlockStore(target_kv, OWN, memory=False)
    giver = source.export()
    source.append(Batch.of([b"a"], [], [b"late"]), source.last_seq + 1, 10**6)
    ship(giver, target, target_kv)
    assert target.last_seq == source.last_seq - 1
    second = ship(source.export(), target, target_kv)
    assert target.last_seq == source.last_seq
    assert 0 < second.fetched < 10 * small


# -- cut anywhere


@pytest.mark.parametrize("crash", [False, True], ids=["another giver", "a restart"])
def test_a_transfer_that_is_cut_after_any_range_goes_on_there(small: int, crash: bool, tmp_path: Path) -> None:
    source_kv = MemKv()
    source = filled(source_kv)
    whole = len(all_ranges(source.export()))
    for cut_after in range(whole + 1):
        path = tmp_path / str(cut_after)
        kv = RocksKv(path)
        target = BlockStore(kv, OWN, memory=False)
        before, after = Shipped(), Shipped()
        going = steps(source.export(), target.import_begin(), kv, 1, before)
        for _ in range(cut_after):
            next(going)
        if crash:
            kv.flush_now()
            kv.close()
            kv = RocksKv(path)
            target = BlockStore(kv, OWN, memory=False)
            assert target.incomplete
        taker = target.import_begin()
        for _ in steps(source.export(), taker, kv, 1 << 20, after):
            pass
        for _ in target.import_end():
            pass
        assert before.fetched + after.fetched == before.fetched + after.compared - sum(
            one.size for one in all_ranges(source.export())[:cut_after]
        )
        assert target.state == source.state
        assert records(kv, OWN) == records(source_kv, 1)
        kv.close()


@pytest.mark.parametrize("ranges", [0, 1, 5])
def test_what_is_half_imported_shows_nothing_until_it_is_whole(small: int, tmp_path: Path, ranges: int) -> None:
    source_kv = MemKv()
    source = filled(source_kv)
    kv = RocksKv(tmp_path)
    target, neighbour = filled(kv, OWN, blocks=30), filled(kv, 10)
    going = steps(source.export(), target.import_begin(), kv)
    for _ in range(ranges):
        next(going)
    empty = BlockStore(MemKv(), 1, memory=False)
    for opened in (target, BlockStore(kv, OWN, memory=False)):
        assert opened.incomplete
        assert (opened.state, opened.load_machine_state()) == (empty.state, None)
        assert opened.get(20) is None
    kv.flush_now()
    kv.close()
    kv = RocksKv(tmp_path)
    again = BlockStore(kv, OWN, memory=False)
    assert again.incomplete and again.state == empty.state
    stored = records(kv, OWN)
    again.save_machine_state(b"of an empty store")  # as a state machine over it does
    kv.commit()
    assert records(kv, OWN) == stored, "nothing is written to it"
    assert BlockStore(kv, 10, memory=False).state == neighbour.state
    ship(source.export(), again, kv)
    assert not again.incomplete and again.state == source.state
    assert not BlockStore(kv, OWN, memory=False).incomplete
    kv.close()


def test_an_import_that_does_not_agree_with_itself_stays_incomplete() -> None:
    source_kv, kv = MemKv(), MemKv()
    source = filled(source_kv)
    posting = next(key for key, _ in source_kv.scan(keys.stream_prefix(keys.POSTING, 1), keys.stream_end(3, 1)))
    source_kv.delete(posting)
    target = BlockStore(kv, OWN, memory=False)
    with pytest.raises(DamagedError):
        ship(source.export(), target, kv)
    assert target.incomplete and target.messages == 0
    assert BlockStore(kv, OWN, memory=False).incomplete


def test_a_wiped_import_leaves_nothing_but_its_mark() -> None:
    kv = MemKv()
    target = filled(kv, OWN)
    going = steps(filled(MemKv(), blocks=40).export(), target.import_begin(), kv)
    next(going)
    target.import_wipe()
    assert [key[:1] for key, _ in records(kv, OWN)] == [bytes([keys.INSTALLING])]
    assert BlockStore(kv, OWN, memory=False).incomplete


# -- damage


@pytest.mark.parametrize("kind", [keys.BLOCK, keys.INFO, keys.POSTING, keys.SIDE, keys.STATE])
def test_a_damaged_record_of_ones_own_is_another_content(small: int, kind: int) -> None:
    source_kv, target_kv = MemKv(), MemKv()
    source = filled(source_kv)
    target = BlockStore(target_kv, OWN, memory=False)
    ship(source.export(), target, target_kv)
    start, end = keys.stream_prefix(kind, OWN), keys.stream_end(kind, OWN)
    key, value = next(pair for pair in target_kv.scan(start, end) if pair[1])
    target_kv.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    shipped = ship(source.export(), target, target_kv)
    assert 0 < shipped.fetched < 3 * small
    assert records(target_kv, OWN) == records(source_kv, 1)


class Unreadable:
    """Fails where a record lies that the store below cannot read."""

    def __init__(self, snapshot: Snapshot, at: bytes) -> None:
        self._snapshot = snapshot
        self._at = at

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for key, value in self._snapshot.scan(start, end):
            if key == self._at:
                raise KvDamagedError("Corruption: block checksum mismatch")
            yield key, value


def test_what_the_store_below_cannot_read_of_ones_own_is_replaced(small: int) -> None:
    source_kv, target_kv = MemKv(), MemKv()
    source = filled(source_kv)
    target = BlockStore(target_kv, OWN, memory=False)
    ship(source.export(), target, target_kv)
    bad = keys.block(OWN, target.blocks.firsts[5])
    target_kv.put(bad, b"nobody can read this")
    taker = target.import_begin()
    giver = source.export()
    fetched = 0
    for one in all_ranges(giver):
        wanted = taker.compare(one, Unreadable(target_kv.snapshot(), bad))
        if wanted is not None:
            assert wanted.keys is None
            fetched += one.size
            taker.take(wanted, giver.read([(one.start, one.end)]))
    for _ in target.import_end():
        pass
    assert 0 < fetched < 3 * small
    assert records(target_kv, OWN) == records(source_kv, 1)


@pytest.mark.parametrize("kind", [keys.BLOCK, keys.INFO, keys.POSTING])
def test_a_giver_announces_no_damaged_record(kind: int) -> None:
    kv = MemKv()
    source = filled(kv)
    pairs = kv.scan(keys.stream_prefix(kind, 1), keys.stream_end(kind, 1))
    key, value = next(pair for pair in pairs if len(pair[1]) > 4)
    kv.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    with pytest.raises(DamagedError):
        all_ranges(source.export())


def test_a_giver_whose_store_fails_says_so() -> None:
    kv = MemKv()
    filled(kv)
    giver = Giver(Unreadable(kv.snapshot(), keys.stream_prefix(keys.STATE, 1)), 1)
    with pytest.raises(DamagedError):
        all_ranges(giver)
    with pytest.raises(DamagedError):
        giver.read([(bytes([len(KINDS) - 1]), END)])


def test_flipped_bits_are_noticed_before_anything_is_written() -> None:
    source = filled(MemKv())
    giver = source.export()
    kv = MemKv()
    target = filled(kv, OWN, blocks=3)
    taker = target.import_begin()
    before = records(kv, OWN)
    wanted = taker.compare(all_ranges(giver)[0], taker.view())
    assert wanted is not None
    data = giver.read([(START, wanted.range.end)])
    for bit in range(0, len(data) * 8, 7):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError):
            taker.take(wanted, bytes(damaged))
    for wrong in (data[:-1], data + b"x", b""):
        with pytest.raises(DamagedError):
            taker.take(wanted, wrong)
    assert records(kv, OWN) == before
    taker.take(wanted, data)


def test_ranges_left_out_and_content_not_taken_are_noticed(small: int) -> None:
    giver = filled(MemKv()).export()
    found = all_ranges(giver)
    kv = MemKv()
    taker = BlockStore(kv, OWN, memory=False).import_begin()
    view = taker.view()
    with pytest.raises(DamagedError):
        taker.compare(found[1], view)
    for one in found[:-1]:
        wanted = taker.compare(one, view)
        if wanted is not None:
            taker.take(wanted, giver.read([(one.start, one.end)]))
    with pytest.raises(DamagedError):
        taker.finish()
    wanted = taker.compare(found[-1], view)
    assert wanted is not None
    with pytest.raises(DamagedError):
        taker.finish()


def test_pairs_that_are_cut_otherwise_have_another_digest() -> None:
    digests = set()
    for pairs in ([(b"ab", b"c")], [(b"a", b"bc")], [(b"a", b""), (b"b", b"c")], [(b"abc", b"")], [(b"", b"abc")]):
        kv = MemKv()
        for key, value in pairs:
            kv.put(keys.stream_prefix(keys.SIDE, 1) + key, value)
        digests.add(next(one.digest for one in all_ranges(Giver(kv.snapshot(), 1)) if one.pairs))
    assert len(digests) == 5


# -- what a peer may say


def test_a_peer_cannot_write_outside_of_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = MemKv()
    other = filled(kv, 3)
    before = records(kv, 3)
    evil = MemKv()
    side = keys.stream_prefix(keys.SIDE, 1)
    evil.put(side + b"m", b"inside")
    evil.put(side + b"z", b"outside")
    giver = Giver(evil.snapshot(), 1)
    data = giver.read([(b"\3", b"\4")])
    lie = Range(b"\3", b"\3n", len(data), 2, transfer._digest(data))
    taker = Taker(kv, OWN)
    taker.place = b"\3"
    wanted = taker.compare(lie, taker.view())
    assert wanted is not None
    with pytest.raises(DamagedError):
        taker.take(wanted, data)
    assert records(kv, OWN) == []
    assert records(kv, 3) == before and BlockStore(kv, 3, memory=False).state == other.state


def test_ranges_and_places_travel_and_nonsense_is_refused(small: int) -> None:
    found = all_ranges(filled(MemKv()).export())
    data = encode(found)
    assert decode_ranges(START, data) == found
    for cut in range(1, len(encode(found[-1:]))):
        with pytest.raises(DamagedError):
            decode_ranges(START, data[:-cut])
    with pytest.raises(DamagedError):
        decode_ranges(found[3].start, data)  # ends before it begins
    with pytest.raises(DamagedError):
        decode_ranges(START, encode([found[0]._replace(end=b"\2")]))
    with pytest.raises(DamagedError):
        decode_ranges(START, encode([found[0]._replace(end=b"\1\0")]))
    with pytest.raises(DamagedError):
        decode_ranges(START, encode([found[0]._replace(size=transfer.MAX_RANGE_BYTES + 1)]))
    places = [START, b"\2abc", END]
    assert decode_places(encode_places(places)) == places
    for bad in (b"\1", encode_places(places)[:-1], encode_places([b""]), encode_places([END + b"\0"])):
        with pytest.raises(DamagedError):
            decode_places(bad)


# -- in bounded steps


class Counting:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.read = 0

    def scan(self, start: bytes, end: bytes) -> Iterator[KeyValue]:
        for pair in self._snapshot.scan(start, end):
            self.read += 1
            yield pair


def test_a_stream_with_the_longest_subjects_can_be_given() -> None:
    """The place behind such a subject has no room in an announcement: no other replica could ever catch up."""
    source_kv, kv = MemKv(), MemKv()
    source = filled(source_kv, 1)
    for first in b"mno":
        subject = bytes((first,)) * MAX_SUBJECT
        source.append(Batch.of([subject, b"z", subject], [], [b"x"] * 3), source.last_seq + 1, source.last_ts + 1)
    target = filled(kv, OWN, blocks=3)
    ship(source.export(), target, kv)
    assert records(kv, OWN) == records(source_kv, 1)
    assert target.last_seq_of(b"o" * MAX_SUBJECT) == source.last_seq


def test_no_step_reads_much_more_than_it_was_asked_for() -> None:
    kv = MemKv()
    for number in range(10_000):
        kv.put(keys.side(1, 1, b"%06d" % number), b"." * 20)
    snapshot = Counting(kv.snapshot())
    giver = Giver(snapshot, 1)
    place, total = START, 0
    while place != END:
        snapshot.read = 0
        found = giver.announce(place, 100 * transfer.PAIR_COST)
        place = found[-1].end
        total += snapshot.read
        assert snapshot.read <= 100 + transfer.RANGE_BYTES // 30
    assert total == 10_000
    own = Counting(kv.snapshot())
    taker = Taker(MemKv(), 1)
    for one in all_ranges(Giver(MemSnapshot([]), 1)):
        wanted = taker.compare(one, own)
        assert (wanted is not None) == (one.start == b"\3")
        assert wanted is None or wanted.keys is None
    assert own.read <= 2, "that it differs from nothing is known with the first pair"


def test_what_only_the_receiver_has_goes_in_one_step() -> None:
    kv = MemKv()
    for number in range(10_000):
        kv.put(keys.side(OWN, 1, b"%06d" % number), b"." * 20)
    taker = Taker(kv, OWN)
    for _ in steps(Giver(MemSnapshot([]), 1), taker, kv):
        pass
    assert records(kv, OWN) == []


# -- a disk that is too small


@pytest.mark.thorough
async def test_an_import_gives_back_what_the_disk_cannot_hold(tmp_path: Path) -> None:
    """A disk of 24 MB that others use too: what was here goes where there is no room for both, a state that is too
    large leaves nothing behind, and a small one comes after it."""
    total = 24 << 20

    def free() -> int:
        return total - sum(file.stat().st_size for file in tmp_path.iterdir() if file.is_file())

    def state(messages: int) -> Giver:
        store = BlockStore(MemKv(), 1, memory=False)
        for i in range(messages):
            store.append(Batch.of([b"a"], [], [os.urandom(500_000)]), i + 1, i + 1)
        store.save_machine_state(b"applied")
        return store.export()

    async def take(giver: Giver) -> int:
        """Counts how often something had to be freed."""
        taker = target.import_begin()
        room = Room(kv, target, taker, "S")
        for one in all_ranges(giver):
            wanted = taker.compare(one, taker.view())
            if wanted is not None:
                await room.make(one.size)
                taker.take(wanted, giver.read([(one.start, one.end)]))
                kv.commit()
        for _ in target.import_end():
            pass
        await kv.flush()
        return room.reclaimed

    kv = RocksKv(tmp_path, free_bytes=free, total_bytes=total)
    filled(kv, 8)
    target = BlockStore(kv, OWN, memory=False)
    for i in range(18):
        target.append(Batch.of([b"a"], [], [os.urandom(500_000)]), i + 1, i + 1)
    await kv.flush()
    assert await take(state(16)), "the old state and the new one do not fit both"
    assert target.messages == 16
    with pytest.raises(KvFullError, match="no room for the state of S"):
        await take(state(60))
    target.import_wipe()
    await target.reclaim()
    assert free() > total * 3 // 4, "the half of it is gone"
    kv.close()
    kv = RocksKv(tmp_path, free_bytes=free, total_bytes=total)
    target = BlockStore(kv, OWN, memory=False)
    assert target.incomplete
    await take(state(5))
    assert target.messages == 5
    assert BlockStore(kv, 8, memory=False).messages == 55
    kv.close()
