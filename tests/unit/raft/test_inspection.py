from __future__ import annotations

from pathlib import Path

import pytest

from jetcluster.raft.codec import CONFIG, REGULAR
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.disk import FileDisk
from jetcluster.raft.journal.inspection import ReadDisk, read_journal
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.membership import Config, encode_config
from jetcluster.sealing.api import SegmentKeys
from jetcluster.sealing.ciphers import AES
from testkit.twins.encryption import segment_keys
from testkit.twins.journal import InlineWriter
from testkit.twins.time import SeededRng
from tests.unit.raft.journal_rig import ABC, Rig, forget


def written(directory: Path, keys: SegmentKeys | None = None) -> Journal:
    rig = Rig()
    disk = FileDisk(directory)
    options = JournalOptions(segment_bytes=1 << 16, reserve_bytes=0)
    journal = Journal(disk, InlineWriter(rig.time), rig.time, rig.journal._rng, options, keys=keys)
    journal.open()
    log = journal.create(2, ABC, durable=True)
    log.set_term(3, "B")
    for number in range(20):
        log.append(REGULAR, 3, b"%d" % number)
    log.append(CONFIG, 3, encode_config(Config(("A", "B"))))
    log.set_commit_hint(18)
    rig.settle(1)
    forget(log, 5)
    rig.settle(1)
    journal.close()
    return journal


@pytest.mark.parametrize("cipher", ["", AES], ids=["plain", AES])
def test_a_log_is_read_as_a_start_would_find_it(tmp_path: Path, cipher: str) -> None:
    keys = segment_keys(cipher, SeededRng(8)) if cipher else None
    written(tmp_path, keys)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    view = read_journal(tmp_path, keys=keys)
    assert view.damage == [] and list(view.groups) == [2]
    log = view.groups[2]
    found = log.found
    assert (found.base_index, found.last_index, found.term, found.voted_for, found.commit) == (5, 21, 3, "B", 18)
    assert log.config == Config(("A", "B")) and log.configs == [(5, ABC), (21, Config(("A", "B")))]
    assert (log.last_term, log.term_at(5), log.term_at(4), log.term_at(22)) == (3, 3, None, None)
    entries = list(log.entries_after(17))
    assert [(entry.at, entry.kind, entry.command) for entry in entries[:3]] == [
        (18, REGULAR, b"17"), (19, REGULAR, b"18"), (20, REGULAR, b"19"),
    ]  # fmt: skip
    assert entries[3].kind == CONFIG and len(entries) == 4
    assert list(log.entries_after(4)) == [], "what was compacted is not there"
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_reading_ends_where_a_record_has_changed_since(tmp_path: Path) -> None:
    written(tmp_path)
    log = read_journal(tmp_path).groups[2]
    place = log.found.entries[15]
    path = ReadDisk(tmp_path)._path(place.segment)
    data = bytearray(path.read_bytes())
    data[place.offset] ^= 1
    path.write_bytes(data)
    assert [entry.at for entry in log.entries_after(10)] == [11, 12, 13, 14]
