"""A deleted message's bytes are gone from its block, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.sealing.ciphers import AES
from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.sealed_kv import SealedKv
from testkit.twins.encryption import store_seal
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import ship

STREAM = 3
SECRET = b"QzX93kJw71Lm"
HEADERS = b"NATS/1.0\r\nKey: the-secret-header\r\n\r\n"


def filled(kv: MemKv | RocksKv, subjects: list[bytes], *, headers: bool = True) -> BlockStore:
    store = BlockStore(kv, STREAM, memory=False)
    payloads = [b"payload-%d" % n for n in range(len(subjects))]
    payloads[3] = SECRET
    blocks = [HEADERS if n == 3 else b"" for n in range(len(subjects))] if headers else []
    store.append(Batch.of(subjects, blocks, payloads), 1, 1_000)
    return store


def everything(store: BlockStore) -> list[object]:
    return [store.get(seq) for seq in range(1, store.last_seq + 1)]


@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize(
    "subjects",
    [[b"one"] * 10, [b"s.%d" % n for n in range(10)], [b"s.%d" % (n % 3) for n in range(10)]],
    ids=["one subject", "own subjects", "shared subjects"],
)
def test_the_bytes_are_gone_and_the_other_messages_stay(headers: bool, subjects: list[bytes]) -> None:
    kv = MemKv()
    store = filled(kv, subjects, headers=headers)
    before = everything(store)
    value = kv.get(keys.block(STREAM, 1))
    assert value is not None and SECRET in value
    assert store.delete(4) and not store.delete(4)
    before[3] = None
    assert everything(store) == before
    value = kv.get(keys.block(STREAM, 1))
    assert value is not None
    assert SECRET not in value and b"secret" not in value
    assert (subjects[3] in value) == (subjects.count(subjects[3]) > 1), "a subject goes with its last message"
    kv.commit()
    again = BlockStore(kv, STREAM, memory=False)
    assert everything(again) == before
    assert list(again.queries.subjects(b">")) == list(store.queries.subjects(b">"))
    for seq in (1, 2, 3, 5, 6, 7, 8, 9, 10):
        assert again.delete(seq)
    assert again.messages == 0 and kv.get(keys.block(STREAM, 1)) is None


def test_limits_do_not_write_blocks_anew() -> None:
    kv = MemKv()
    store = filled(kv, [b"s.%d" % n for n in range(10)])
    before = kv.get(keys.block(STREAM, 1))
    assert store.delete_all([4]) == 1
    assert kv.get(keys.block(STREAM, 1)) == before


def on_disk(path: Path) -> bool:
    tables = list(path.glob("*.sst"))
    assert tables
    return any(SECRET in table.read_bytes() for table in tables)


async def test_a_flush_takes_the_bytes_from_the_disk(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path)
    store = filled(kv, [b"s.%d" % n for n in range(10)])
    await kv.flush()
    assert on_disk(tmp_path), "compression would hide it"
    store.delete_all([5])
    await kv.flush()
    assert on_disk(tmp_path)
    store.delete(4)
    await kv.flush()
    assert not on_disk(tmp_path)
    assert store.get(4) is None and store.get(3) is not None
    kv.close()


async def test_so_does_one_after_the_last_message_of_a_block(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path)
    store = BlockStore(kv, STREAM, memory=False)
    store.append(Batch.of([b"a"], [], [SECRET]), 1, 1_000)
    store.append(Batch.of([b"a"], [], [b"stays"]), 2, 2_000)
    await kv.flush()
    assert on_disk(tmp_path)
    store.delete(1)
    await kv.flush()
    assert not on_disk(tmp_path)
    kv.close()


async def test_so_does_a_later_one_for_what_is_erased_while_it_works(tmp_path: Path) -> None:
    kv = RocksKv(tmp_path, owner_flushes=True)

    async def before() -> None:
        if kv.get(b"secret"):
            kv.outdated(b"secret")
            kv.put(b"secret", b"")

    kv.put(b"secret", SECRET)
    await kv.flush()
    kv.serve(before, lambda: None)
    kv.put(b"other", b"1")
    await kv.flush()
    assert not kv.get(b"secret") and on_disk(tmp_path)
    await kv.flush()
    assert not on_disk(tmp_path)
    kv.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_so_does_one_of_the_next_process(tmp_path: Path, encrypted: bool) -> None:
    def opened() -> RocksKv:
        return SealedKv(tmp_path, store_seal(AES)) if encrypted else RocksKv(tmp_path)

    kv = opened()
    store = filled(kv, [b"s.%d" % n for n in range(10)])
    await kv.flush()
    tables = {path.name for path in tmp_path.glob("*.sst")}
    store.delete(4)
    kv.flush_now()
    kv.close()
    assert tables <= {path.name for path in tmp_path.glob("*.sst")}, "the older block is there"
    kv = opened()
    await kv.flush()
    assert not tables & {path.name for path in tmp_path.glob("*.sst")}
    assert encrypted or not on_disk(tmp_path)
    kv.close()


def erased_elsewhere() -> BlockStore:
    """The state of another server, which has carried out what this one has not."""
    giver = filled(MemKv(), [b"s.%d" % n for n in range(10)])
    giver.delete(4)
    giver.append(Batch.of([b"later"], [], [b"later"]), 11, 2_000)
    return giver


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("how", ["goes on", "restarts", "has no room"])
async def test_a_state_of_a_server_that_has_erased_it_takes_it_from_the_disk(
    tmp_path: Path, how: str, encrypted: bool
) -> None:
    def opened() -> RocksKv:
        return SealedKv(tmp_path, store_seal(AES)) if encrypted else RocksKv(tmp_path)

    kv = opened()
    store = filled(kv, [b"s.%d" % n for n in range(10)])
    await kv.flush()
    tables = {path.name for path in tmp_path.glob("*.sst")}
    giver = erased_elsewhere()
    if how == "has no room":
        taker = store.import_begin()
        taker.give_up_rest()
        store.import_wipe()
    ship(giver.export(), store, kv)
    if how == "restarts":
        kv.flush_now()
        kv.close()
        assert tables <= {path.name for path in tmp_path.glob("*.sst")}, "the older block is there"
        kv = opened()
    await kv.flush()
    assert not tables & {path.name for path in tmp_path.glob("*.sst")}
    assert encrypted or not on_disk(tmp_path)
    again = BlockStore(kv, STREAM, memory=False)
    assert everything(again) == everything(giver)
    kv.close()


class Noting(MemKv):
    """Notes what is outdated."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[bytes, bytes]] = []

    def outdated(self, start: bytes, end: bytes = b"") -> None:
        self.noted.append((start, end or start + b"\0"))


def test_what_a_state_does_not_replace_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.store.transfer.RANGE_BYTES", 1)
    kv = Noting()
    store = BlockStore(kv, STREAM, memory=False)
    giver = BlockStore(MemKv(), 1, memory=False)
    for opened in (store, giver):
        for number in range(1, 10):
            opened.append(Batch.of([b"a", b"b"], [], [b"%d" % number] * 2), 2 * number - 1, number)
    giver.delete(7)
    for number in range(10, 20):
        giver.append(Batch.of([b"a"], [], [b"later"]), 9 + number, number)
    ship(giver.export(), store, kv)
    block = keys.block(STREAM, 7)
    assert kv.noted == [(keys.block(STREAM, 5) + b"\0", block + b"\0")]
    kv.noted.clear()
    table = keys.stream_prefix(keys.TABLE, STREAM)
    kv.put(table, b"the subjects")
    ship(giver.export(), store, kv)
    assert kv.noted == [(table, table + b"\0")] and kv.get(table) is None


def test_so_is_nothing_of_a_replica_that_is_new() -> None:
    kv = Noting()
    store = BlockStore(kv, STREAM, memory=False)
    ship(erased_elsewhere().export(), store, kv)
    assert not kv.noted
