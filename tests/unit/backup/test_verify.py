"""Checks of points and of restored streams."""

from __future__ import annotations

import pytest

from jetcluster.backup.point import RestorePoint
from jetcluster.backup.run import BackupRun
from jetcluster.backup.segment import MessageSum
from jetcluster.backup.sequences import DamagedBackupError, Sequences
from jetcluster.backup.verify import Renamed, StoredStream, check_point, compare
from testkit.twins.backup_storage import MemoryStorage
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.backup.accounts import FakeAccount, FakeStream


def backed_up(account: FakeAccount) -> tuple[MemoryStorage, RestorePoint]:
    storage = MemoryStorage()
    return storage, BackupRun(account, storage, ManualTime(), SeededRng(1), lambda _: None).run()


@pytest.fixture
def account() -> FakeAccount:
    one, other = FakeStream("S"), FakeStream("T")
    one.add(20)
    other.add(3)
    one.consumers["c"] = {"config": {}, "state": {}}
    return FakeAccount(one, other)


def test_every_damaged_byte_and_every_missing_blob_is_seen(account: FakeAccount) -> None:
    storage, point = backed_up(account)
    said: list[str] = []
    assert check_point(storage, point, said.append) == []
    assert said == ["S: 20 messages verified", "T: 3 messages verified"]
    for path in {blob.path for blob in point.blobs}:
        data = storage.files[path]
        for changed in (None, b"", data[:-1], data + b"x", *(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
                                                             for at in range(0, len(data), 7))):  # fmt: skip
            storage.files.pop(path)
            if changed is not None:
                storage.files[path] = changed
            assert check_point(storage, point, said.append)
            storage.files[path] = data
    assert check_point(storage, point, said.append) == []


def test_a_list_of_sequences_that_fits_no_segment_is_seen(account: FakeAccount) -> None:
    from dataclasses import replace

    from jetcluster.backup.point import Blob

    storage, point = backed_up(account)
    packed = Sequences.of([*range(1, 20), 21]).packed()
    storage.files[Blob.of(packed).path] = packed
    stream = replace(point.streams[0], live=Blob.of(packed))
    with pytest.raises(DamagedBackupError, match="19 of 20 messages"):
        StoredStream(storage, stream).check()
    with pytest.raises(DamagedBackupError, match="21 messages, and 20 sequences"):
        StoredStream(storage, replace(stream, state={"messages": 21}))


def test_a_stream_is_compared_message_by_message(account: FakeAccount) -> None:
    storage, point = backed_up(account)
    stored = StoredStream(storage, point.streams[0])
    seen = account.look("S")
    assert seen is not None
    assert not compare(account, seen, stored)
    held = account.streams["S"].held
    held[4] = held[4]._replace(payload=b"other")
    held[7] = held[7]._replace(ts=held[7].ts + 1)
    held[9] = held[9]._replace(headers=b"NATS/1.0\r\nX: 1\r\n\r\n")
    account.streams["S"].delete(12, 13, 20)
    found = compare(account, seen, stored)
    assert found.other == Sequences.of([4, 7, 9])
    assert found.missing == Sequences.of([12, 13, 20])
    assert str(found) == "3 messages are not there (12 to 13, 20); 3 messages are different (4, 7, 9)"


def test_segments_whose_sum_is_known_are_not_read_again(account: FakeAccount) -> None:
    storage, point = backed_up(account)
    stored = StoredStream(storage, point.streams[0])
    seen = account.look("S")
    assert seen is not None
    total = MessageSum()
    for message in account.streams["S"].held.values():
        total = total.plus(message.encoded())
    before = storage.reads
    assert not compare(account, seen, stored, [total])
    assert storage.reads == before
    assert not compare(account, seen, stored, [MessageSum(1, 1)])  # read again, and equal
    assert storage.reads == before + 1


def test_a_renamed_bucket_is_compared_under_its_new_subjects(account: FakeAccount) -> None:
    storage, point = backed_up(account)
    stored = StoredStream(storage, point.streams[0])
    seen = account.look("S")
    assert seen is not None
    held = account.streams["S"].held
    for seq, message in held.items():
        held[seq] = message._replace(subject=message.subject.replace(b"S.", b"NEW."))
    assert compare(account, seen, stored)
    assert not compare(account, seen, stored, renamed=Renamed(b"S.", b"NEW."))
