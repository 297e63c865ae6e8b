"""Room on the disk for a state that is installed over another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.replica.catchup import SETTLE_SECONDS, Room
from jetcluster.store.kv import KvFullError
from testkit.sim.shared import virtual_time


class Disk:
    """Kv, store and taker at once: what was given up is free some time after it was reclaimed."""

    def __init__(self, spare: int, replaced: int, rest: int, takes: float = SETTLE_SECONDS / 2) -> None:
        self.spare_bytes = spare
        self.gone, self.rest, self.takes = replaced, rest, takes
        self.gave_up = 0

    def give_up_rest(self) -> None:
        self.gave_up += 1
        self.gone, self.rest = self.gone + self.rest, 0

    async def reclaim(self) -> None:
        asyncio.get_running_loop().call_later(self.takes, self._free, self.gone)
        self.gone = 0

    def _free(self, size: int) -> None:
        self.spare_bytes += size

    def room(self) -> Room:
        disk: Any = self
        return Room(disk, disk, disk, "S")


@pytest.mark.parametrize(
    ("spare", "replaced", "rest", "reclaimed"), [(10, 0, 0, 0), (4, 6, 9, 1), (1, 6, 9, 2), (9, 0, 1, 2)]
)
def test_no_more_is_given_up_than_is_needed(spare: int, replaced: int, rest: int, reclaimed: int) -> None:
    async def make() -> None:
        disk = Disk(spare, replaced, rest)
        room = disk.room()
        await room.make(10)
        assert disk.spare_bytes >= 10
        assert (room.reclaimed, disk.gave_up) == (reclaimed, max(0, reclaimed - 1))
        await room.make(10)
        assert room.reclaimed == reclaimed

    virtual_time(make)()


@pytest.mark.parametrize(("rest", "takes"), [(3, 0.1), (100, 3 * SETTLE_SECONDS)])
def test_where_nothing_helps_the_disk_is_full(rest: int, takes: float) -> None:
    async def make() -> None:
        with pytest.raises(KvFullError, match="no room for the state of S"):
            await Disk(1, 5, rest, takes).room().make(10)

    virtual_time(make)()
