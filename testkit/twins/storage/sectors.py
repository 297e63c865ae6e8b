"""A file of sectors, and a folder: what a running system sees of them, and what is on the platter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jetcluster.clock import Rng


class Flight:
    """Work that is under way: it has gone on to what comes after a sync only once that sync was on the platter."""

    def __init__(self) -> None:
        self.syncs: list[Callable[[], None]] = []
        """The syncs that are not on the platter, in their order."""
        self.landed = 0
        """Number of syncs that are on the platter."""

    def land(self, count: int | None = None) -> None:
        """Brings the first `count`, or all, to the platter."""
        count = len(self.syncs) if count is None else count
        for sync in self.syncs[:count]:
            sync()
        del self.syncs[:count]
        self.landed += count


class Moment(NamedTuple):
    """The moment at which something was written: after that many syncs of its flight."""

    flight: Flight
    after: int

    @property
    def came(self) -> bool:
        return self.flight.landed >= self.after


_ZEROS = bytes(1 << 20)
"""Most of a segment that was made in advance: read again and again, and not made again each time."""


def _pad(pieces: list[bytes], count: int) -> None:
    """Adds so many zeros."""
    while count > 0:
        pieces.append(_ZEROS[:count])
        count -= len(_ZEROS)


class Unwritten(NamedTuple):
    """The changes that a sync has to bring to the platter."""

    sectors: list[tuple[int, bytes]]
    size: int
    truncated: bool


class SectorFile:
    """Sectors that were never written read as zeros."""

    __slots__ = (
        "allocated", "dirty", "grown", "links", "mode", "number", "opened", "sector", "sectors", "size", "stored",
        "stored_size", "tampered", "truncated",
    )  # fmt: skip

    def __init__(self, number: int, mode: int, sector: int) -> None:
        self.number = number
        self.mode = mode
        self.sector = sector
        self.sectors: dict[int, bytes] = {}
        """The contents as a running system reads them (its page cache)."""
        self.size = 0
        self.stored: dict[int, bytes] = {}
        """On the platter."""
        self.stored_size = 0
        self.dirty: dict[int, Moment | None] = {}
        self.grown: Moment | None = None
        """The moment of the last change of the size."""
        self.truncated = False
        """Emptied, and that is not on the platter yet."""
        self.allocated = 0
        """Bytes of the disk, whole sectors."""
        self.links = 0
        self.opened = 0
        self.tampered = 0
        """Counts what happened behind the file system's back: rot, cuts, lost sectors."""

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        sector = self.sector
        first, last = offset // sector, (end - 1) // sector
        if first == last:
            data = self.sectors.get(first)
            start = first * sector
            return bytes(end - offset) if data is None else data[offset - start : end - start]
        if len(self.sectors) < last - first:
            wanted = [index for index in self.sectors if first <= index <= last]
        else:
            wanted = [index for index in range(first, last + 1) if index in self.sectors]
        pieces: list[bytes] = []
        at = offset
        for index in sorted(wanted):
            start = index * sector
            _pad(pieces, start - at)
            data = self.sectors[index][max(offset - start, 0) : max(end - start, 0)]
            pieces.append(data)
            at = max(start, at) + len(data)
        _pad(pieces, end - at)
        return b"".join(pieces)

    def data_from(self, offset: int) -> int:
        """Offset of the first byte from there on that is not zero; the size where there is none."""
        first = offset // self.sector
        for index in sorted(index for index in self.sectors if index >= first):
            start = max(index * self.sector, offset)
            data = self.sectors[index][start - index * self.sector : max(self.size - index * self.sector, 0)]
            if rest := data.lstrip(b"\0"):
                return start + len(data) - len(rest)
        return max(self.size, offset)

    def write(self, offset: int, data: bytes, moment: Moment | None = None) -> list[int]:
        """Numbers of the sectors that were changed."""
        sector = self.sector
        end = offset + len(data)
        changed = list(range(offset // sector, -(-end // sector)))
        for index in changed:
            start = index * sector
            low, high = max(offset, start), min(end, start + sector)
            part = data[low - offset : high - offset]
            if len(part) < sector:
                old = self.sectors.get(index) or bytes(sector)
                part = old[: low - start] + part + old[high - start :]
            self.sectors[index] = part
            self.dirty[index] = moment
        self.grow(end, moment)
        return changed

    def grow(self, size: int, moment: Moment | None = None) -> None:
        if size > self.size:
            self.size, self.grown = size, moment

    def empty(self, moment: Moment | None = None) -> None:
        self.sectors, self.dirty = {}, {}
        self.size, self.grown = 0, moment
        self.truncated = True

    def unwritten(self, only: list[int] | None = None) -> Unwritten:
        """`only`: what a write with O_DSYNC covers."""
        wanted = self.dirty if only is None else only
        return Unwritten([(i, self.sectors[i]) for i in wanted if i in self.sectors], self.size, self.truncated)

    def store(self, unwritten: Unwritten) -> None:
        """Brings it to the platter. What was written since stays dirty, or another sync has brought it there."""
        if unwritten.truncated and self.truncated:
            self.stored, self.truncated = {}, False
        for index, data in unwritten.sectors:
            newest = self.sectors.get(index) is data
            if newest or index in self.dirty:
                self.stored[index] = data
            if newest:
                self.dirty.pop(index, None)
        self.stored_size = unwritten.size if unwritten.truncated else max(self.stored_size, unwritten.size)

    def drop_unwritten(self) -> None:
        """Forgets what is dirty, as a failed sync does: the next one finds nothing to do, and the platter does not have
        it."""
        self.dirty = {}
        self.truncated = False

    def lose_power(self, rng: Rng) -> None:
        changed = self.grown is None or self.grown.came
        if self.truncated and changed and rng.random() < 0.5:
            self.stored, self.stored_size = {}, 0
        survives = rng.random()
        lost = False
        for index in sorted(self.dirty):
            moment = self.dirty[index]
            if rng.random() < survives and (moment is None or moment.came):
                self.stored[index] = self.sectors[index]
                self.stored_size = max(self.stored_size, min((index + 1) * self.sector, self.size))
            else:
                lost = True
        if self.size > self.stored_size and changed and rng.random() < survives:
            self.stored_size = self.size
        self.sectors, self.size = dict(self.stored), self.stored_size
        self.dirty, self.truncated = {}, False
        self.tampered += lost

    def overwrite(self, offset: int, data: bytes) -> None:
        """Behind everybody's back."""
        for place in (self.sectors, self.stored):
            for at in range(len(data)):
                index, inside = divmod(offset + at, self.sector)
                old = place.get(index) or bytes(self.sector)
                place[index] = old[:inside] + data[at : at + 1] + old[inside + 1 :]
        self.tampered += 1

    def cut(self, size: int) -> None:
        """Behind everybody's back."""
        for place in (self.sectors, self.stored):
            for index in [i for i in place if i * self.sector >= size]:
                del place[index]
            if size % self.sector and (last := size // self.sector) in place:
                place[last] = place[last][: size % self.sector].ljust(self.sector, b"\0")
        self.dirty = {i: moment for i, moment in self.dirty.items() if i in self.sectors}
        self.size, self.stored_size = min(self.size, size), min(self.stored_size, size)
        self.tampered += 1


class Folder:
    __slots__ = ("links", "mode", "names", "number", "stored")

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.links = 0
        self.names: dict[str, Node] = {}
        """The names as a running system sees them."""
        self.stored: dict[str, Node] = {}
        """On the platter."""


Node = SectorFile | Folder
