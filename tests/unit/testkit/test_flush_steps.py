"""The data store is flushed and compacted in a thread, step by step, while the loop commits, until the power goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from jetcluster.files import make_folder
from jetcluster.store.rocks_kv import RocksKv
from testkit.sim.deployment import Deployment
from testkit.twins.storage import RocksModule

FOLDER = Path("/data")
KEY = b"%06d"


class Life:
    """A store whose owner commits numbers from 1 on, each in a commit of its own, and flushes."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.deployment = Deployment(seed, ())
        self.deployment.client("a")
        self.machine = self.deployment.clients["a"]
        self.machine.kill()
        self.machine.cuts = 0.5
        loop = self.machine.begin()
        make_folder(FOLDER, self.machine.disk.files)
        self.kv = self.open()
        self.kv.before_flush = self.vouch
        self.committed = 0
        """The newest number that was given to a commit."""
        self.vouched = 0
        """The newest number whose record the journal would have on disk."""
        self.numbers: dict[int, int] = {}
        """The newest number of each commit."""
        self.flushes = 0
        for work in (self.write(), self.flush()):
            self.deployment.spawn(loop, work)

    def open(self) -> RocksKv:
        disk = self.machine.disk
        return RocksKv(
            FOLDER,
            owner_flushes=True,
            files=disk.files,
            rocks=RocksModule(disk),
            monotonic=self.machine.clock.monotonic,
        )

    async def write(self) -> None:
        while True:
            self.committed += 1
            self.kv.put(KEY % self.committed, b"v")
            commit = self.kv.commit()
            if not self.kv.open_bytes:  # it was not put off
                self.numbers[commit] = self.committed
            await asyncio.sleep(self.rng.uniform(0.0, 0.002))

    async def vouch(self) -> None:
        upto = self.committed
        await asyncio.sleep(self.rng.uniform(0.0, 0.002))
        self.vouched = upto

    async def flush(self) -> None:
        while True:
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))
            if self.rng.random() < 0.3:
                self.kv.outdated(KEY % self.rng.randint(1, max(self.committed, 1)))
            await self.kv.flush()
            self.flushes += 1

    def held(self) -> int:
        """The newest number there is; all before it are there."""
        kv = self.open()
        count = len(list(kv.scan(b"0", b"\xff")))
        assert count == 0 or kv.get(KEY % count) == b"v"
        return count


def test_what_is_durable_is_kept_and_nothing_is_that_the_journal_may_lack() -> None:
    flushes = kept = 0
    for seed in range(30):
        life = Life(seed)
        life.deployment.run(life.rng.uniform(0.01, 0.3))
        durable = life.numbers.get(life.kv.durable, 0)
        life.machine.lose_power()
        held = life.held()
        assert durable <= held <= life.vouched, f"seed {seed}"
        flushes += life.flushes
        kept += held > durable
    assert flushes > 30
    assert kept > 0, "none was cut off behind its last sync"
