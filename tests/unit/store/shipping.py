"""One store's state into another one, as catch-up does it, without what lies between (cluster/catchup.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import Kv
from jetcluster.store.transfer import END, START, Giver, Taker, decode_ranges, encode_ranges


@dataclass
class Shipped:
    """Bytes."""

    compared: int = 0
    fetched: int = 0
    announcements: int = 0


def steps(giver: Giver, taker: Taker, kv: Kv, budget: int = 64 << 10, shipped: Shipped | None = None) -> Iterator[None]:
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


def ship(giver: Giver, target: BlockStore, kv: Kv, budget: int = 64 << 10) -> Shipped:
    """All of it; `target` is open afterwards."""
    shipped = Shipped()
    for _ in steps(giver, target.import_begin(), kv, budget, shipped):
        pass
    for _ in target.import_end():
        pass
    return shipped
