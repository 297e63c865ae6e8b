"""One run at a time."""

from __future__ import annotations

import pytest

from jetcluster.backup.lock import PATH, RENEW_SECONDS, STALE_SECONDS, BackupLock, BackupLockedError
from testkit.twins.backup_storage import MemoryStorage
from testkit.twins.time import ManualTime, SeededRng


def test_a_second_run_is_refused_until_the_first_is_over() -> None:
    storage, time = MemoryStorage(), ManualTime()
    with BackupLock(storage, time, SeededRng(1)) as first:
        with pytest.raises(BackupLockedError, match="has been at work"):
            BackupLock(storage, time, SeededRng(2)).__enter__()
        first.check()
    assert PATH not in storage.files
    with BackupLock(storage, time, SeededRng(2)):
        pass


def test_a_lock_that_is_renewed_stays_and_a_stale_one_is_taken_over() -> None:
    storage, time = MemoryStorage(), ManualTime()
    first, second = (BackupLock(storage, time, SeededRng(seed)) for seed in (1, 2))
    first.__enter__()
    for _ in range(30):
        time.advance(RENEW_SECONDS)
        first.renew()
    with pytest.raises(BackupLockedError):
        second.__enter__()
    time.advance(STALE_SECONDS)
    second.__enter__()
    for ask in (first.check, first.renew):
        with pytest.raises(BackupLockedError, match="taken the lock over"):
            ask()
    first.__exit__(None, None, None)
    second.check()  # the first one left it alone


def test_the_lock_is_written_once_a_minute_at_most() -> None:
    storage, time = MemoryStorage(), ManualTime()
    with BackupLock(storage, time, SeededRng(1)) as lock:
        for _ in range(100):
            time.advance(RENEW_SECONDS / 50)
            lock.renew()
        assert storage.changes == 3


def test_a_lock_file_that_is_not_readable_is_taken_over() -> None:
    storage = MemoryStorage()
    storage.files[PATH] = b"half of"
    with BackupLock(storage, ManualTime(), SeededRng(1)) as lock:
        lock.check()
