"""The real journal on a simulated disk is cut off at thousands of moments, and never forgets what it vouched for."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from jetcluster.files import make_folder
from jetcluster.raft.codec import REGULAR
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.disk import FileDisk, FileMark
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.membership import Config
from jetcluster.sealing.ciphers import CHACHAPOLY
from testkit.twins.encryption import segment_keys
from testkit.twins.storage import SimDisk, SimWriter
from testkit.twins.time import ManualTime, SeededRng

pytestmark = pytest.mark.thorough

ABC = Config(("A", "B", "C"))
FOLDER = Path("/node")


class Known(NamedTuple):
    """A log after one of its operations."""

    gseq: int
    entries: tuple[tuple[int, bytes], ...]
    """(term, command) from index 1 on."""
    term: int
    vote: str | None


class Lives:
    """One journal, and what each group's log was after each operation."""

    def __init__(self, seed: int, interval: float | None, cipher: str = "") -> None:
        self.cipher = cipher
        self.rng = random.Random(seed)
        self.disk = SimDisk(SeededRng(seed), sector=self.rng.choice((512, 4_096)))
        self.options = JournalOptions(
            segment_bytes=self.rng.choice((2_048, 8_192)), reserve_bytes=0, retain_bytes=1_000, retain_entries=20,
            node_retain_bytes=16_384, idle_cache_bytes=200, retry_delay=0.1, sync_interval=interval,
        )  # fmt: skip
        self.known: dict[int, list[Known]] = {}
        self.removed: dict[int, int] = {}
        """Groups that were taken away -> the batch that says so."""
        self.gids = 0
        self.lives = 0
        self.cut_off = 0
        """The number of coming starts that are cut off."""
        self.fatal: list[BaseException] = []
        make_folder(FOLDER, self.disk.files)
        self.open()

    def open(self) -> None:
        self.lives += 1
        self.time = ManualTime(start=1_000.0 * self.lives)
        self.writer = SimWriter(self.disk, self.time)
        files, interval, rng = self.disk.files, self.options.sync_interval, SeededRng(self.lives)
        self.journal = Journal(
            FileDisk(FOLDER / "journal", always_sync=interval is None, files=files), self.writer, self.time,
            rng, self.options, self.fatal.append, FileMark(FOLDER / "journal.mark", "peerA", files),
            keys=segment_keys(self.cipher, rng) if self.cipher else None,
        )  # fmt: skip
        with self.disk.flight() as flight:
            self.found = self.journal.open()
        if self.cut_off > 0:  # a start, too
            self.cut_off -= 1
            self.disk.lose_power()
            self.open()
        else:
            self.disk.land(flight)

    def close(self) -> None:
        self.journal.close()
        self.time.advance(0.1)
        self.disk.kill_process()

    def crash(self, *, power: bool) -> None:
        self.durable = {gid: log.durable_gseq for gid, log in self.journal.groups.items()}
        self.synced = self.journal.synced
        self.writer.abandon()
        self.journal._closed = True
        self.fatal.clear()
        if power:
            self.disk.lose_power()
        else:
            self.disk.kill_process()
        self.cut_off = self.rng.choice((0, 0, 0, 1, 2)) if power else 0
        self.open()

    # -- what a node does

    def work(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
            if self.rng.random() < 0.5:
                self.time.advance(self.rng.choice((0.0, 0.0005, 0.002, 0.02)))

    def harm(self) -> None:
        """The disk fails for a while: full, or with an error that ends the process."""
        rng, disk = self.rng, self.disk
        kind = rng.random()
        if kind < 0.4:
            disk.ballast = disk.capacity
            self.work(rng.choice((1, 10)))
            disk.ballast = 0
            self.time.advance(1.0)
        else:
            fault = disk.fail(rng.choice(("write", "sync")), errno.EIO, within=rng.choice((".wal", ".mark")), times=1)
            self.work(rng.choice((1, 10)))
            disk.heal(fault)

    def _step(self) -> None:
        rng = self.rng
        groups = list(self.journal.groups.values())
        if not groups or (len(groups) < 4 and rng.random() < 0.03):
            self.gids += 1
            log = self.journal.create(self.gids, ABC, durable=True)
            self.known[log.gid] = [Known(0, (), 0, None)]
            self._note(log, ())
            return
        log = rng.choice(groups)
        entries = self.known[log.gid][-1].entries
        kind = rng.random()
        if kind < 0.6:
            command = rng.randbytes(rng.choice((0, 10, 100, 700)))
            log.append(REGULAR, max(log.term, 1), command)
            entries += ((max(log.term, 1), command),)
        elif kind < 0.72:
            log.set_term(log.term + 1, rng.choice((None, "A", "B")))
        elif kind < 0.8 and log.last_index > max(log.base_index, log.compactable):
            first = rng.randint(max(log.base_index, log.compactable) + 1, log.last_index)
            log.truncate(first)
            entries = entries[: first - 1]
        elif kind < 0.86:
            log.compactable = max(log.compactable, rng.randint(log.base_index, log.written_index or log.base_index))
        elif kind < 0.96:
            self.journal.housekeep()
        elif kind < 0.97:
            self.journal.remove(log.gid)
            self.removed[log.gid] = self.journal.open_seq
            return
        self._note(log, entries)

    def _note(self, log: GroupLog, entries: tuple[tuple[int, bytes], ...]) -> None:
        self.known[log.gid].append(Known(log.gseq, entries, log.term, log.voted_for))

    # -- what must be there

    def check(self, *, lost: bool) -> None:
        """`lost`: the power was, and with a sync interval what was only written may be gone."""
        assert self.found.damage == [], [damage.why for damage in self.found.damage]
        relaxed = lost and self.options.sync_interval is not None
        for gid, durable in self.durable.items():
            log = self.journal.groups.get(gid)
            if log is None:
                # an empty log is made anew by whoever knows of the group
                assert relaxed or durable == 0, f"group {gid} is gone, {durable} of its records were durable"
                continue
            gseq = self.found.groups[gid].gseq
            assert not log.damaged and (relaxed or gseq >= durable), f"group {gid}: {gseq} of {durable} durable records"
            known = [one for one in self.known[gid] if one.gseq <= gseq][-1]
            assert log.last_index == len(known.entries)
            for index in range(log.base_index + 1, log.last_index + 1):
                assert (log.term_at(index), log.command(index)) == known.entries[index - 1]
            assert (log.term, log.voted_for) == (max(known.term, log.term), known.vote)
        for gid, batch in self.removed.items():
            assert gid not in self.journal.groups or batch > self.synced
        self._forget()

    def _forget(self) -> None:
        """The next life begins with what was found."""
        for gid in list(self.known):
            log = self.journal.groups.get(gid)
            if log is None:
                del self.known[gid]
                continue
            gseq = self.found.groups[gid].gseq
            newest = [one for one in self.known[gid] if one.gseq <= gseq][-1]
            log.compactable = log.base_index
            self.known[gid] = [newest._replace(gseq=0)]
            self._note(log, newest.entries)
        self.removed.clear()


@pytest.mark.parametrize(
    "cipher", ["", pytest.param(CHACHAPOLY, marks=pytest.mark.thorough)], ids=["plain", CHACHAPOLY]
)
@pytest.mark.parametrize("interval", [None, 0.02])
@pytest.mark.parametrize("harmed", [False, True])
@pytest.mark.parametrize("batch", range(4))
def test_what_was_vouched_for_outlives_every_crash(
    batch: int, harmed: bool, interval: float | None, cipher: str
) -> None:
    crashes = 0
    for seed in range(batch * 25, batch * 25 + 25):
        lives = Lives(seed, interval, cipher)
        for _ in range(10):
            lives.work(lives.rng.choice((0, 1, 5, 20, 60)))
            if harmed and lives.rng.random() < 0.5:
                lives.harm()
            power = lives.rng.random() < 0.8
            try:
                lives.crash(power=power)
                lives.check(lost=power)
            except AssertionError as error:
                pytest.fail(f"seed {seed}, life {lives.lives}: {error}")
            crashes += 1
    assert crashes == 250


def test_a_journal_whose_last_group_was_taken_away_is_sound() -> None:
    lives = Lives(3, None)
    for _ in range(30):
        lives._step()
    lives.time.advance(1.0)
    for gid in list(lives.journal.groups):
        lives.journal.remove(gid)
        lives.time.advance(1.0)
    for _ in range(3):
        for _ in range(5):
            lives.journal.housekeep()
            lives.time.advance(1.0)
        lives.close()
        lives.open()
        assert lives.found.damage == []
        assert lives.journal.groups == {}


def test_what_an_earlier_process_failed_to_sync_is_written_again_before_it_is_vouched_for() -> None:
    lives = Lives(5, None)
    while not lives.journal.groups:
        lives._step()
    (log,) = lives.journal.groups.values()
    lives.time.advance(1.0)
    lives.disk.fail("sync", errno.EIO, within=".wal", times=1)
    log.append(REGULAR, 1, b"not on the platter")
    lives.time.advance(1.0)
    assert [str(error) for error in lives.fatal] and log.durable_index == 0, "the process ends"
    lives.crash(power=False)
    log = lives.journal.groups[log.gid]
    assert log.durable_index == 1 and log.command(1) == b"not on the platter", "the system still has it"
    log.append(REGULAR, 1, b"after it")
    lives.time.advance(1.0)
    assert log.durable_index == 2
    lives.crash(power=True)
    assert lives.found.damage == []
    assert lives.journal.groups[log.gid].last_index == 2
