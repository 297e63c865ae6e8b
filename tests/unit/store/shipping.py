"""One store's state into another one, as catch-up does it, without what lies between (replica/catchup.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import ALL_KINDS, BlockStore
from jetcluster.store.kv import KeyValue
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import END, START, Giver, Taker, decode_ranges, encode_ranges


@dataclass
class Shipped:
    """Bytes."""

    compared: int = 0
    fetched: int = 0
    announcements: int = 0


def steps(
    giver: Giver, taker: Taker, kv: RocksKv, budget: int = 64 << 10, shipped: Shipped | None = None
) -> Iterator[None]:
    """One range after the other."""
    shipped = shipped or Shipped()
    place = START
    while place != END:
        announced = encode_ranges(giver.announce(place, budget))
        shipped.announcements += len(announced)
        view = taker.view()
        for one in decode_ranges(place, announced):
            shipped.compared += one.size
            wanted = taker.compare(one, view)
            if wanted is not None:
                data = giver.read([(one.start, one.end)])
                shipped.fetched += len(data)
                taker.take(wanted, data)
                kv.commit()
            place = one.end
            yield


def ship(giver: Giver, target: BlockStore, kv: RocksKv, budget: int = 64 << 10) -> Shipped:
    """All of it; `target` is open afterwards."""
    shipped = Shipped()
    for _ in steps(giver, target.import_begin(), kv, budget, shipped):
        pass
    for _ in target.import_end():
        pass
    return shipped


def filled(kv: RocksKv, stream: int = 1, blocks: int = 20) -> BlockStore:
    store = BlockStore(kv, stream, memory=False)
    for i in range(blocks):
        store.append(Batch.of([b"a", b"b", b"a"], [], [b"%d" % i] * 3), store.last_seq + 1, 1000 * i)
    store.delete(8)
    store.compact(5)
    store.side_put(2, b"id-1", b"\x01")
    store.side_put(2, b"", b"")
    store.save_machine_state(b"applied 17")
    kv.commit()
    return store


def records(kv: RocksKv, stream: int) -> list[KeyValue]:
    """All of a stream, without its id."""
    kv.commit()
    found: list[KeyValue] = []
    for kind in ALL_KINDS:
        pairs = kv.scan(keys.stream_prefix(kind, stream), keys.stream_end(kind, stream))
        found += [(key[:1] + key[keys.STREAM_PREFIX :], value) for key, value in pairs]
    return found
