"""The journal under encryption at rest: nothing to read on the disk, tampering found, plain segments read and left."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetcluster.raft.codec import REGULAR
from jetcluster.raft.journal import records
from jetcluster.raft.journal.inspection import has_sealed
from jetcluster.raft.journal.log import JournalDamageError
from jetcluster.raft.journal.records import FormatError
from jetcluster.raft.journal.recovery import scan
from jetcluster.raft.journal.seals import Seals
from jetcluster.sealing.api import KeyringError
from jetcluster.sealing.ciphers import AES, CHACHAPOLY
from testkit.twins.encryption import segment_keys
from testkit.twins.time import SeededRng
from tests.unit.raft.journal_rig import ABC, Rig, batches, content, fill, filled


@pytest.fixture(autouse=True, params=[AES, CHACHAPOLY])
def cipher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Rig, "cipher", request.param)
    yield


def bytes_of(rig: Rig) -> bytes:
    return b"".join(rig.disk.load(number) for number in rig.disk.segments())


def test_nothing_of_a_log_is_readable_on_the_disk_and_all_of_it_after_a_start() -> None:
    rig = Rig()
    log = rig.log()
    log.set_term(3, "voter-one")
    log.append(REGULAR, 3, b"subject.of.a.message and its payload")
    rig.fill(log, 300, term=3)
    rig.journal.remove(rig.log(7).gid)
    rig.settle()
    before = content(log)
    disk = bytes_of(rig)
    for text in (b"subject.of", b"payload", b"voter-one", b"000123", ABC.members[0].encode() * 2):
        assert text not in disk
    assert log.command(1) == b"subject.of.a.message and its payload"
    again = rig.crash()
    assert not rig.found.damage and content(again.groups[1]) == before
    assert again.groups[1].voted_for == "voter-one" and again.has_left(7)
    again.groups[1].shrink(0)
    assert content(again.groups[1]) == before, "read back from the disk"


def test_every_segment_and_every_process_has_a_key_of_its_own() -> None:
    rig, log = filled(0)
    for _ in range(3):
        fill(log, 200)
        rig.settle()
        log = rig.crash().groups[1]
    heads = [records.read_segment_head(rig.disk.load(number), number) for number in rig.disk.segments()]
    seals = [head.seal for head in heads if head is not None]
    assert len(seals) >= 6 and len(set(seals)) == len(seals)


def test_a_sealed_journal_needs_its_key() -> None:
    rig, _ = filled(3)
    with pytest.raises(FormatError, match="is encrypted, and jetstream has no key"):
        scan(rig.disk)
    keys = segment_keys(Rig.cipher, SeededRng(1))
    known = dict(keys.keyring.keys)
    keys.keyring.keys.clear()
    try:
        with pytest.raises(KeyringError, match="data key 1, which is not here"):
            scan(rig.disk, seals=Seals(keys))
    finally:
        keys.keyring.keys.update(known)


def test_the_heads_of_segments_say_whether_a_journal_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(name: str) -> Path:
        rig, _ = filled(3)
        (tmp_path / name).mkdir()
        for number in rig.disk.segments():
            (tmp_path / name / f"{number:016x}.wal").write_bytes(rig.disk.load(number))
        (tmp_path / name / "other").write_bytes(b"")
        return tmp_path / name

    assert has_sealed(folder("sealed"))
    monkeypatch.setattr(Rig, "cipher", "")
    assert not has_sealed(folder("plain")) and not has_sealed(tmp_path / "none")


def _forged(rig: Rig, index: int) -> None:
    """Changes a bit of the entry's body and makes its checksum right."""
    for number, start, end in batches(rig.disk):
        data = rig.disk.load(number)
        head = records.read_segment_head(data, number)
        assert head is not None
        seed = records.salt(number, head.nonce)
        at = start + records.BATCH_HEAD_BYTES
        while at < end:
            record = records.read_record(data, at, end, seed)
            assert record is not None
            if (record.kind, record.log_index) == (records.ENTRY, index):
                body = bytes([record.body[0] ^ 1]) + record.body[1:]
                crc = zlib.crc32(body, zlib.crc32(data[at + 4 : record.offset], seed))
                rig.disk.corrupt(number, at, struct.pack("<I", crc))
                rig.disk.corrupt(number, record.offset, body)
                return
            at = record.offset + len(record.body)
    raise AssertionError


def test_an_entry_that_somebody_changed_with_its_checksum_is_damage() -> None:
    rig, log = filled(5)
    rig.settle()
    _forged(rig, 3)
    log.shrink(0)
    with pytest.raises(JournalDamageError, match="entry 3 in segment 1 does not validate"):
        log.command(3)
    assert rig.journal.counters.read_failures == 1
    again = rig.crash()
    assert ["do not open" in damage.why for damage in rig.found.damage] == [True]
    assert again.groups[1].damaged and again.groups[1].last_index < 3


def test_the_plain_segments_of_before_are_read_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Rig.cipher
    monkeypatch.setattr(Rig, "cipher", "")
    rig, log = filled(30)
    before = content(log)
    assert not rig.journal.partly_plain
    monkeypatch.setattr(Rig, "cipher", sealed)
    journal = rig.crash()
    assert journal.partly_plain and not rig.found.damage
    assert content(journal.groups[1]) == before, "the plain ones are read as they are"
    journal.forget_old()
    for _ in range(10):
        rig.settle()
        rig.housekeep()
    assert not journal.partly_plain
    assert b"000017" not in bytes_of(rig)
    assert content(rig.crash().groups[1]) == before and not rig.journal.partly_plain


def test_a_segment_without_a_head_counts_as_plain() -> None:
    rig, _ = filled(200)
    rig.settle()
    rig.crash()
    assert not rig.journal.partly_plain and len(rig.disk.segments()) > 1
    rig.disk.corrupt(rig.disk.segments()[0], 0, bytes(records.SEGMENT_HEAD_BYTES))
    assert rig.crash().partly_plain
    assert "header does not validate" in rig.found.damage[0].why


def test_a_segment_made_on_a_nearly_full_disk_keeps_its_key() -> None:
    rig = Rig(segment_bytes=4_096)
    log = rig.log()
    fill(log, 10, size=300)
    rig.settle()
    rig.disk.capacity = rig.disk.used() + 2_000
    fill(log, 10, size=100)
    rig.settle()
    rig.disk.capacity = 1 << 40
    rig.settle(1.0)
    before = content(log)
    assert min(len(rig.disk.load(number)) for number in rig.disk.segments()) < 4_096
    assert content(rig.crash().groups[1]) == before and not rig.found.damage
