"""The twin of rocksdict against the real one: the same random operations have the same results.

    python -m testkit.twins.storage.differential --operations 1000000 [--seed 1]

A crash is a copy of the real one's folder, opened anew, and power that the twin's disk loses. Flushes are asked for, so
that both have flushed the same; what the real one flushes by itself is left to its own tests. After each crash both
hold what was flushed last, which a plain dict knows as well.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from jetcluster.files import make_folder
from jetcluster.store.rocks import options_of
from testkit.twins.storage import RocksModule, SimDisk
from testkit.twins.time import SeededRng

MEMTABLE: Final = 64 << 20
"""More than is ever written between two flushes."""
KEYS: Final = 400
VIEWS: Final = 6
WAYS: Final = ("seek", "seek_for_prev", "seek_to_first", "seek_to_last", "next", "next", "next", "prev", "prev")

Batch = list[tuple[str, bytes, bytes]]


class Mismatch(AssertionError):
    pass


class Side:
    """One of the two databases."""

    def __init__(self, rocks: Any, path: Path) -> None:
        self.rocks = rocks
        self.path = path
        self.views: list[tuple[Any, Any]] = []
        """Iterators with what they point into."""
        self.no_wal = rocks.WriteOptions()
        self.no_wal.disable_wal = True
        self.db: Any = None
        self.open()

    def open(self) -> None:
        self.db = self.rocks.Rdict(str(self.path), options_of(self.rocks, MEMTABLE, MEMTABLE))

    def close(self) -> None:
        self.views.clear()
        self.db.close()

    def crash(self) -> None:
        """Ends the database as a crash does: writes that were not flushed are gone."""
        raise NotImplementedError

    def write(self, batch: Batch) -> None:
        made = self.rocks.WriteBatch(raw_mode=True)
        for name, *arguments in batch:
            getattr(made, name)(*(arguments[:1] if name == "delete" else arguments))
        self.db.write(made, self.no_wal)

    def view(self, upper: bytes | None) -> tuple[Any, Any]:
        bounds = self.rocks.ReadOptions()
        if upper is not None:
            bounds.set_iterate_upper_bound(upper)
        return self.db.iter(bounds), bounds

    def items(self, start: bytes, upper: bytes | None, count: int, *, backwards: bool) -> list[tuple[bytes, bytes]]:
        bounds = self.rocks.ReadOptions()
        if upper is not None:
            bounds.set_iterate_upper_bound(upper)
        pairs = self.db.items(backwards=backwards, from_key=start, read_opt=bounds)
        return [pair for pair, _ in zip(pairs, range(count), strict=False)]


class RealSide(Side):
    def __init__(self, folder: Path) -> None:
        import rocksdict

        self.folder = folder
        self.lives = 0
        super().__init__(rocksdict, folder / "0")

    def crash(self) -> None:
        self.lives += 1
        copy = self.folder / str(self.lives)
        self._copy(copy)
        self.close()
        shutil.rmtree(self.path)
        self.path = copy
        self.open()

    def _copy(self, copy: Path) -> None:
        """RocksDB may be compacting: as all was at one time."""
        while True:
            before = self._tables()
            with contextlib.suppress(shutil.Error):
                shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("LOG*"))
                if self._tables() == before:
                    return
            shutil.rmtree(copy)

    def _tables(self) -> list[tuple[str, int]]:
        return sorted((path.name, path.stat().st_size) for path in self.path.glob("[MC0]*") if path.exists())


class TwinSide(Side):
    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(SeededRng(seed))
        make_folder(Path("/node/data"), self.disk.files)
        super().__init__(RocksModule(self.disk), Path("/node/data"))

    def crash(self) -> None:
        self.views.clear()
        self.disk.lose_power()
        self.open()


class Differential:
    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.sides: tuple[Side, Side] = (RealSide(folder), TwinSide(seed))
        self.model: dict[bytes, bytes] = {}
        self.flushed: dict[bytes, bytes] = {}
        self._steps: list[tuple[int, Callable[[], None]]] = [
            (300, self.write), (250, self.get), (60, self.get_many), (120, self.items), (60, self.new_view),
            (250, self.move_view), (12, self.flush), (3, self.compact), (2, self.reopen), (2, self.crash),
        ]  # fmt: skip

    def run(self, operations: int) -> None:
        """Raises Mismatch."""
        weights = [weight for weight, _ in self._steps]
        steps = [step for _, step in self._steps]
        while sum(self.done.values()) < operations:
            for step in self.rng.choices(steps, weights, k=1_000):
                step()
                self.done[step.__name__] += 1
        self._whole(self.model, "the end")

    def close(self) -> None:
        for side in self.sides:
            with contextlib.suppress(Exception):  # closed, or failed
                side.close()

    # -- operations

    def _key(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.02:
            return rng.choice((b"", b"\0", b"\xff" * 9, b"k", b"l"))
        return b"k%04d" % rng.randrange(KEYS) + (b"/x" if rng.random() < 0.2 else b"")

    def _range(self) -> tuple[bytes, bytes]:
        one, two = self._key(), self._key()
        return min(one, two), max(one, two)

    def _same(self, what: str, work: Callable[[Side], Any]) -> Any:
        found = []
        for side in self.sides:
            try:
                found.append(work(side))
            except Exception as error:
                found.append(str(error).split(":")[0])
        if found[0] != found[1]:
            count = sum(self.done.values())
            raise Mismatch(
                f"seed {self.seed}, operation {count}: {what}: {found[0]!r} really, {found[1]!r} of the twin"
            )
        return found[0]

    def write(self) -> None:
        rng = self.rng
        batch: Batch = []
        for _ in range(rng.choice((0, 1, 1, 2, 5, 20))):
            kind = rng.random()
            if kind < 0.6:
                batch.append(("put", self._key(), rng.randbytes(rng.choice((0, 1, 20, 200)))))
            elif kind < 0.97:
                batch.append(("delete", self._key(), b""))
            else:
                start = self._key()
                batch.append(("delete_range", start, start + b"\xff" if rng.random() < 0.7 else self._range()[1]))
        batch = [(name, a, b) for name, a, b in batch if name != "delete_range" or a <= b]
        for name, a, b in batch:
            if name == "put":
                self.model[a] = b
            elif name == "delete":
                self.model.pop(a, None)
            else:
                self.model = {key: value for key, value in self.model.items() if not a <= key < b}
        self._same("write", lambda side: side.write(batch))

    def get(self) -> None:
        key = self._key()
        found = self._same(f"get {key!r}", lambda side: side.db.get(key))
        if found != self.model.get(key):
            raise Mismatch(f"seed {self.seed}: get {key!r}: {found!r}, the model has {self.model.get(key)!r}")

    def get_many(self) -> None:
        keys = [self._key() for _ in range(self.rng.randrange(8))]
        self._same(f"get {keys!r}", lambda side: [side.db.get(key) for key in keys])

    def items(self) -> None:
        start, upper = self._range() if self.rng.random() < 0.8 else (self._key(), self._key())
        bound = upper if self.rng.random() < 0.7 else None
        count, backwards = self.rng.choice((1, 5, 50, 1_000)), self.rng.random() < 0.3
        what = f"items from {start!r} to {bound!r}, {count}, backwards {backwards}"
        self._same(what, lambda side: side.items(start, bound, count, backwards=backwards))

    def new_view(self) -> None:
        upper = self._key() if self.rng.random() < 0.5 else None
        at = self.rng.randrange(VIEWS)
        for side in self.sides:
            if len(side.views) < VIEWS:
                side.views.append(side.view(upper))
            else:
                side.views[at] = side.view(upper)
        self._move(min(at, len(self.sides[0].views) - 1), "seek", self._key())

    def move_view(self) -> None:
        if not self.sides[0].views:
            return
        rng = self.rng
        at = rng.randrange(len(self.sides[0].views))
        way = rng.choice(
            ("seek", "seek_for_prev", "seek_to_first", "seek_to_last", "next", "next", "next", "prev", "prev")
        )
        for _ in range(rng.choice((1, 3)) if way in ("next", "prev") else 1):
            if way in ("next", "prev") and not self.sides[0].views[at][0].valid():
                return
            self._move(at, way, *([self._key()] if way in ("seek", "seek_for_prev") else []))

    def _move(self, at: int, way: str, *key: bytes) -> None:
        def move(side: Side) -> Any:
            view = side.views[at][0]
            getattr(view, way)(*key)
            view.status()
            return view.valid(), view.key(), view.value()

        self._same(f"{way} {key!r} of iterator {at}", move)

    def flush(self) -> None:
        self._same("flush", lambda side: side.db.flush(True))
        self.flushed = dict(self.model)
        entries = "rocksdb.num-entries-active-mem-table"
        self._same(entries, lambda side: side.db.property_int_value(entries))

    def compact(self) -> None:
        self.flush()  # whether one flushes by itself is seen in a crash
        start, end = self._range()
        self._same("compact", lambda side: side.db.compact_range(start, end))

    def reopen(self) -> None:
        for side in self.sides:
            side.close()
            side.open()
        self.flushed = dict(self.model)
        self._whole(self.model, "a new start")

    def crash(self) -> None:
        for side in self.sides:
            side.crash()
        self.model = dict(self.flushed)
        self._whole(self.model, "a crash")

    def _whole(self, expected: dict[bytes, bytes], after: str) -> None:
        found = self._same(f"all after {after}", lambda side: side.items(b"", None, 1 << 30, backwards=False))
        if found != sorted(expected.items()):
            raise Mismatch(f"seed {self.seed}: after {after} both hold {len(found)} keys, the model {len(expected)}")


def run(seed: int, operations: int) -> Differential:
    with tempfile.TemporaryDirectory(prefix="jetcluster-differential-") as folder:
        made = Differential(seed, Path(folder))
        try:
            made.run(operations)
        finally:
            made.close()
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start, seed, left = time.monotonic(), arguments.seed, arguments.operations
    total: Counter[str] = Counter()
    while left > 0:
        done = run(seed, min(left, 50_000)).done
        total += done
        left -= sum(done.values())
        seed += 1
        print(f"{sum(total.values())} operations, {time.monotonic() - start:.0f} s", flush=True)
    print(f"no difference in {sum(total.values())} operations, seeds {arguments.seed}..{seed - 1}: {dict(total)}")


if __name__ == "__main__":
    main()
