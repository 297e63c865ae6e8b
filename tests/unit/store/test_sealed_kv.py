"""The data store with encryption at rest: nothing to read on the disk, the same answers, transfers with any other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetcluster.sealing.ciphers import AES, CHACHAPOLY
from jetcluster.store import keys, sealed_kv, transfer
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.sealed_kv import SealedKv, SealedReader
from jetcluster.store.transfer import START, Scrub
from jetcluster.stream.ports import NAMED_TABLES, SIDE_CONSUMERS, SIDE_WAITING
from testkit.twins.encryption import store_seal
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import Shipped, filled, records, ship, steps
from tests.unit.store.test_block_store import RocksMachine

OWN = 9
HEADERS = b"NATS/1.0\r\nName: header\r\n\r\n"


def sealed(path: Path, cipher: str = AES) -> SealedKv:
    return SealedKv(path, store_seal(cipher))


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[SealedKv]:
    opened = sealed(tmp_path / "sealed")
    yield opened
    opened.close()


class SealedMachine(RocksMachine):
    def open_kv(self) -> RocksKv:
        self.path = Path(tempfile.mkdtemp(prefix="jetcluster-store-"))
        return sealed(self.path)

    def open_again(self) -> RocksKv:
        return sealed(self.path)


TestOnSealedKv = SealedMachine.TestCase
TestOnSealedKv.settings = settings(
    max_examples=10, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("cipher", [AES, CHACHAPOLY])
def test_no_payload_and_no_name_is_readable_on_the_disk(tmp_path: Path, cipher: str) -> None:
    kv = sealed(tmp_path, cipher)
    store = BlockStore(kv, 1, memory=False)
    for number in range(50):
        store.append(
            Batch.of([b"orders.subject", b"eu.berlin"], [HEADERS, b""], [b"secret body" * 9] * 2),
            store.last_seq + 1,
            number + 1,
        )  # fmt: skip
    store.side_put(SIDE_WAITING, b"\0\0\0\1_INBOX.reply", b"")
    store.side_put(SIDE_CONSUMERS, b"\0\0\0\1", b"a consumer and its filter")
    store.save_machine_state(b"the machine's state")
    kv.put(b"\0meta", b"a configuration")
    assert store.get(1) is not None and list(store.side_scan(SIDE_WAITING)) == [(b"\0\0\0\1_INBOX.reply", b"")]
    kv.flush_now()
    store.delete(3)
    kv.commit()
    kv.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    hexed = stored.lower()  # RocksDB's log would have keys in hexadecimal
    for text in (
        b"orders",
        b"berlin",
        b"secret body",
        b"Name: header",
        b"INBOX",
        b"consumer and",
        b"machine's",
        b"configuration",
    ):
        assert text not in stored and text.hex().encode() not in hexed, text
    kv = sealed(tmp_path, cipher)
    again = BlockStore(kv, 1, memory=False)
    assert again.messages == 99 and again.count_of(b"eu.berlin") == 50
    message = again.get(1)
    assert message is not None and (message.subject, message.payload) == (b"orders.subject", b"secret body" * 9)
    kv.close()
    reader = SealedReader(tmp_path, store_seal(cipher))
    assert BlockStore(reader, 1, memory=False).state == again.state
    reader.close()


# -- transfers


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small ranges, and many pauses."""
    monkeypatch.setattr(transfer, "RANGE_BYTES", 200)
    monkeypatch.setattr(sealed_kv, "_STEP_NAMES", 3)


def some(kv: RocksKv, stream: int, blocks: int = 40) -> BlockStore:
    store = filled(kv, stream, blocks=blocks)
    for number in range(30):
        store.side_put(SIDE_WAITING, b"\0\0\0\1_INBOX.%d" % (number * 7919 % 100), b"")
        store.side_put(SIDE_CONSUMERS, b"\0\0\0%c" % number, b"row %d" % number)
        store.side_put(16, b"%d" % (number * 7919 % 97), b"batch %d" % number)
    kv.commit()
    return store


@pytest.mark.parametrize("giver", ["plain", "sealed"])
@pytest.mark.parametrize("taker", ["plain", "sealed"])
def test_stores_with_and_without_a_key_take_from_each_other(
    giver: str, taker: str, small: None, tmp_path: Path
) -> None:
    source_kv = sealed(tmp_path / "source") if giver == "sealed" else MemKv()
    kv = sealed(tmp_path / "target", CHACHAPOLY) if taker == "sealed" else MemKv()
    source = some(source_kv, 1)
    target = some(kv, OWN, blocks=25)
    ship(source.export(), target, kv)
    assert target.state == source.state
    assert sorted(records(kv, OWN)) == sorted(records(source_kv, 1))
    source.delete_all(range(5, 60, 3))
    source.append(Batch.of([b"new.subject"], [], [b"new"]), source.last_seq + 1, 10**6)
    shipped = ship(source.export(), target, kv)
    assert sorted(records(kv, OWN)) == sorted(records(source_kv, 1))
    assert target.last_seq_of(b"new.subject") == source.last_seq
    assert shipped.fetched < shipped.compared, "blocks that are equal are not sent"
    source_kv.close()
    kv.close()


@pytest.mark.parametrize("crash", [False, True], ids=["another giver", "a restart"])
def test_a_transfer_to_a_sealed_store_goes_on_wherever_it_is_cut(small: None, crash: bool, tmp_path: Path) -> None:
    source_kv = MemKv()
    source = some(source_kv, 1, blocks=12)
    cut_after = 0
    done = False
    while not done:
        path = tmp_path / str(cut_after)
        kv: RocksKv = sealed(path)
        target = BlockStore(kv, OWN, memory=False)
        going = steps(source.export(), target.import_begin(), kv, 1, Shipped())
        done = not all(next(going, "end") != "end" for _ in range(cut_after))
        if crash:
            kv.flush_now()
            kv.close()
            kv = sealed(path)
            target = BlockStore(kv, OWN, memory=False)
            assert target.incomplete
        ship(source.export(), target, kv)
        assert target.state == source.state
        assert sorted(records(kv, OWN)) == sorted(records(source_kv, 1))
        kv.close()
        cut_after += 5


def test_room_that_is_given_up_keeps_what_was_taken(small: None, kv: SealedKv) -> None:
    source_kv = MemKv()
    source = some(source_kv, 1)
    target = some(kv, OWN, blocks=60)
    taker = target.import_begin()
    for number, _ in enumerate(steps(source.export(), taker, kv, 1, Shipped())):
        if number % 10 == 3:
            taker.give_up_rest()
    for _ in target.import_end():
        pass
    assert sorted(records(kv, OWN)) == sorted(records(source_kv, 1))


NAMES = st.binary(max_size=4)
POSTINGS = st.dictionaries(st.tuples(NAMES, st.integers(0, 3)), st.binary(max_size=3), max_size=30)
TABLES = st.sampled_from([*NAMED_TABLES, 1, 8, 17, 255])
ROWS = st.dictionaries(st.tuples(TABLES, st.binary(max_size=6)), st.binary(max_size=3), max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(postings=POSTINGS, rows=ROWS, low=st.binary(max_size=8), high=st.binary(max_size=8), flushed=st.booleans())
def test_a_view_has_all_pairs_in_the_order_of_their_keys(
    kv: SealedKv, postings: dict[tuple[bytes, int], bytes], rows: dict[tuple[int, bytes], bytes],
    low: bytes, high: bytes, flushed: bool,
) -> None:  # fmt: skip
    pairs = {keys.posting_prefix(1, name) + keys.seq_suffix(seq): value for (name, seq), value in postings.items()}
    pairs |= {keys.side(1, table, key): value for (table, key), value in rows.items()}
    for key, value in pairs.items():
        kv.put(key, value)
    if flushed:
        kv.commit()
    for kind in (keys.POSTING, keys.SIDE):
        prefix, end = keys.stream_prefix(kind, 1), keys.stream_end(kind, 1)
        for start, stop in ((prefix, end), (prefix + low, end), (prefix, prefix + high), (prefix + low, prefix + high)):
            if start < stop:
                expected = sorted((key, value) for key, value in pairs.items() if start <= key < stop)
                assert list(kv.snapshot().scan(start, stop)) == expected
        assert sorted(kv.scan(prefix, end)) == sorted((key, value) for key, value in pairs.items() if key[0] == kind)
    kv.delete_range(keys.stream_prefix(keys.POSTING, 1), keys.stream_end(keys.POSTING, 1))
    kv.delete_each([key for key in pairs if key[0] == keys.SIDE])
    kv.commit()


def no_order(self: sealed_kv.SealedSnapshot, prefix: bytes) -> Iterator[None]:
    raise AssertionError("the names of a whole stream are put in order at once")
    yield


def test_a_frozen_view_reads_one_subject_without_all_the_others(kv: SealedKv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Putting the names of a million subjects in order takes seconds, in which nothing else happens."""
    monkeypatch.setattr(sealed_kv.SealedSnapshot, "_find_heads", no_order)
    store = filled(kv, 1)
    expected = [store.queries.next_by_subject(b"a", seq) for seq in (5, 7)]
    view = store.view(b"a", 1)
    view.hold()
    store.purge()
    assert view.frozen
    columns = view.take(2, 1 << 20)
    assert columns.seqs == [message.seq for message in expected if message is not None]
    view.close()


def test_an_announcement_ends_before_names_that_are_not_prepared(kv: SealedKv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_kv.SealedSnapshot, "_find_heads", no_order)
    giver = some(kv, 1).export()
    place, kinds = START, []
    while (kind := transfer.KINDS[place[0]]) != keys.POSTING:
        kinds.append(kind)
        place = giver.announce(place, 1 << 30)[-1].end
    assert kinds == [keys.BLOCK, keys.INFO]
    with pytest.raises(AssertionError, match="in order at once"):
        giver.announce(place, 1 << 30)


# -- damage


def test_bytes_that_were_changed_or_moved_do_not_open(tmp_path: Path) -> None:
    kv = sealed(tmp_path)
    store = BlockStore(kv, 1, memory=False)
    for number in range(1, 4):
        store.append(Batch.of([b"a"], [], [b"%d" % number * 50]), number, number)
    kv.flush_now()
    kv.close()
    plain = RocksKv(tmp_path)
    first, second = (plain.get(keys.block(1, seq)) for seq in (1, 2))
    assert first is not None and second is not None
    plain.put(keys.block(1, 1), second)
    plain.put(keys.block(1, 2), second[:40] + bytes([second[40] ^ 1]) + second[41:])
    plain.flush_now()
    plain.close()
    kv = sealed(tmp_path)
    for seq in (1, 2):
        with pytest.raises(KvDamagedError, match="does not open"):
            kv.get(keys.block(1, seq))
    assert not kv.damage, "RocksDB's files are sound"
    store = BlockStore(kv, 1, memory=False)
    for seq in (1, 2):
        with pytest.raises(DamagedError):
            store.get(seq)
    assert store.get(3) is not None
    scrub = Scrub(kv, 1, store.begin_check)
    with pytest.raises(DamagedError):
        while not scrub.done:
            scrub.step(1)
    kv.close()


def test_a_scrub_reads_each_record_once_in_whatever_order(kv: SealedKv, monkeypatch: pytest.MonkeyPatch) -> None:
    store = some(kv, 1)
    expected = sorted((key[0], key) for key, _ in records(kv, 1))
    read: list[tuple[int, bytes]] = []
    verify = transfer.verify

    def note(kind: int, key: bytes, value: bytes) -> None:
        read.append((kind, key[:1] + key[keys.STREAM_PREFIX :]))
        verify(kind, key, value)

    monkeypatch.setattr(transfer, "verify", note)
    scrub = Scrub(kv, 1, store.begin_check)
    while not scrub.done:
        scrub.step(1)
    assert sorted(read) == expected
