"""A renewal of a damaged data store is cut off by the power at any of its syncs: nothing that was whole is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jetcluster.files import Files, exists, make_folder, names_in, read_text, write_durably
from jetcluster.mesh.identity import load_identity
from jetcluster.node import data_renewal
from jetcluster.node.data_renewal import open_data, settle
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.rocks_kv import RocksKv
from testkit.twins.storage import RocksModule, SimDisk
from testkit.twins.time import ManualTime, SeededRng

STORE = Path("/node/jetstream")
STREAM = 2
NOW = 1_800_000_000.0
GUARDED = ("journal", "data")


def damaged_store(seed: int) -> SimDisk:
    """One stream, and the mark that has its store renewed."""
    disk = SimDisk(SeededRng(seed), sector=512)
    make_folder(STORE, disk.files)
    load_identity(STORE, "n", guarded=GUARDED, rng=SeededRng(seed), clock=ManualTime(), files=disk.files)
    kv = RocksKv(STORE / "data", files=disk.files, rocks=RocksModule(disk))
    kv.put(b"\x00meta", b"of the node")
    store = BlockStore(kv, STREAM, memory=False)
    for number in range(1, 31):
        store.append(Batch.of([b"s"], [b""], [b"%d" % number * 50]), number, number)
    kv.flush_now()
    kv.close()
    data_renewal.mark(STORE, "a test", disk.files)
    return disk


def start(disk: SimDisk, now: float) -> RocksKv:
    """Opens the data store as a node does."""
    settle(STORE, disk.files)
    load_identity(STORE, "n", guarded=GUARDED, rng=SeededRng(1), clock=ManualTime(), files=disk.files)
    opened = partial(RocksKv, files=disk.files, rocks=RocksModule(disk))
    return open_data(STORE, renewable=True, now=now, files=disk.files, open_store=opened)[0]


def test_a_renewal_is_finished_or_begun_anew_whenever_the_power_goes() -> None:
    begun_anew = finished = 0
    for seed in range(80):
        disk = damaged_store(seed)
        for attempt in range(3):
            with disk.flight() as flight:
                start(disk, NOW + attempt)
            flight.land(disk.rng.randrange(len(flight.syncs) + 1))
            disk.lose_power()
        if exists(STORE / "data" / data_renewal.MARKER_FILE, disk.files):
            begun_anew += 1
        else:
            finished += 1
        kv = start(disk, NOW + 9)
        assert BlockStore(kv, STREAM, memory=False).messages == 30, f"seed {seed}"
        assert kv.get(b"\x00meta") == b"of the node"
        kept = names_in(STORE / data_renewal.QUARANTINE, disk.files)
        assert kept and all(exists(STORE / data_renewal.QUARANTINE / name / "CURRENT", disk.files) for name in kept)
    assert finished > 20
    assert begun_anew > 0


def test_a_mark_is_there_or_not() -> None:
    found: set[str] = set()
    for seed in range(60):
        disk = SimDisk(SeededRng(seed))
        files: Files = disk.files
        make_folder(STORE, files)
        with disk.flight():
            write_durably(STORE / "LEFT-OUT", "rescued without it", files)
        disk.lose_power()
        found.add(read_text(STORE / "LEFT-OUT", files) if exists(STORE / "LEFT-OUT", files) else "")
    assert found == {"", "rescued without it\n"}
