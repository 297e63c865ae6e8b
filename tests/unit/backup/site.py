"""`Site`: an account in memory, a destination and a clock, for runs of backups."""

from __future__ import annotations

from jetcluster.backup.point import RestorePoint
from jetcluster.backup.run import BackupRun
from jetcluster.backup.segment import StoredMessage
from jetcluster.backup.verify import StoredStream, check_point
from testkit.twins.backup_storage import MemoryStorage
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.backup.accounts import FakeAccount, FakeStream

SMALL = 2000
"""Bytes of a segment with the fixture `small_segments`."""


class Site:
    """An account, a destination, and a clock that goes on by a minute for each run."""

    def __init__(self, *streams: FakeStream) -> None:
        self.account = FakeAccount(*streams)
        self.storage = MemoryStorage()
        self.time = ManualTime()
        self.said: list[str] = []
        self.runs = 0

    def backup(self, *streams: str, keep: int = 0, verify: bool = False, allow_empty: bool = False) -> RestorePoint:
        self.time.advance(60)
        self.runs += 1
        self.account.read.clear()
        made = BackupRun(
            self.account, self.storage, self.time, SeededRng(self.runs), self.said.append, streams, self.time.advance
        )  # fmt: skip
        return made.run(keep, verify=verify, allow_empty=allow_empty)

    def check(self, point: RestorePoint) -> None:
        """The point holds what the account holds, and nothing else."""
        assert check_point(self.storage, point, self.said.append) == []
        assert {one.name for one in point.streams} == set(self.account.streams)
        for one in point.streams:
            stream = self.account.streams[one.name]
            assert contents(self.storage, point, one.name) == [stream.held[seq] for seq in sorted(stream.held)]
            assert StoredStream(self.storage, one).consumers() == stream.consumers


def contents(storage: MemoryStorage, point: RestorePoint, name: str) -> list[StoredMessage]:
    found = point.stream(name)
    assert found is not None
    stored = StoredStream(storage, found)
    return [message for one in found.segments for message in stored.messages(one)]


def damage(storage: MemoryStorage, path: str) -> None:
    """Changes a bit; the size stays."""
    data = bytearray(storage.files[path])
    data[len(data) // 2] ^= 1
    storage.files[path] = bytes(data)
