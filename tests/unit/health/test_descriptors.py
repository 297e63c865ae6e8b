from __future__ import annotations

import errno
import os
import resource

from jetcluster.health.descriptors import MAX_RESERVE, MIN_RESERVE, RESERVE_MARGIN, DescriptorWatch, raise_limit


class Table:
    """A process's descriptors."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lowest = 10
        self.error = 0

    def watch(self) -> DescriptorWatch:
        return DescriptorWatch(lambda: self.limit, self._look)

    def _look(self) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self.lowest


def test_the_reserve_is_a_part_of_the_limit_within_bounds() -> None:
    assert [Table(limit).watch().reserve for limit in (64, 200, 1024, 1 << 20)] == [MIN_RESERVE, 40, 204, MAX_RESERVE]


def test_it_is_reported_when_the_reserve_is_touched() -> None:
    table = Table(200)
    watch = table.watch()
    assert watch.trouble() == ""
    table.lowest = 159
    assert watch.trouble() == ""
    table.lowest = 160
    assert watch.trouble() == "160 of 200 file descriptors are in use"
    table.limit = 1000  # prlimit(1)
    assert watch.trouble() == ""
    assert watch.limit == 1000


def test_it_is_reported_when_none_is_left() -> None:
    table = Table(200)
    watch = table.watch()
    table.error = errno.EMFILE
    assert watch.trouble() == "no file descriptors are left of 200"
    table.error = errno.ENFILE
    assert watch.trouble() == "the system has no file descriptors left"


def test_clients_are_kept_out_before_the_reserve_is_touched() -> None:
    watch = Table(200).watch()
    assert not watch.crowded(160 - RESERVE_MARGIN - 1)
    assert watch.crowded(160 - RESERVE_MARGIN)


def test_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
        watch = DescriptorWatch()
        assert watch.limit == min(soft, 256)
        assert watch.crowded(max(opened)) == (max(opened) >= watch.limit - watch.reserve - RESERVE_MARGIN)
        assert raise_limit() == (min(soft, 256), hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
        for one in opened:
            os.close(one)
        assert watch.trouble() == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
