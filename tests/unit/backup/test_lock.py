"""One run at a time, and no removal beside a restore."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

from jetcluster.backup import lock as module
from jetcluster.backup.lock import (
    OLD_STALE_SECONDS,
    PATH,
    REMOVAL,
    RENEW_SECONDS,
    RESTORE,
    STALE_SECONDS,
    BackupLock,
    BackupLockedError,
    refuse_beside_removal,
    refuse_beside_restore,
)
from jetcluster.backup.storage import StorageAwayError
from testkit.twins.backup_storage import MemoryStorage
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.backup.test_owner import gone_owner


class Site:
    def __init__(self) -> None:
        self.storage, self.time = MemoryStorage(), ManualTime()
        self.said: list[str] = []

    def lock(self, seed: int, meanwhile: Callable[[], None] = lambda: None, **options: str) -> BackupLock:
        """`meanwhile` is called at each pause."""

        def pause(seconds: float) -> None:
            self.time.advance(seconds)
            meanwhile()

        return BackupLock(self.storage, self.time, SeededRng(seed), self.said.append, pause=pause, **options)


def test_a_second_run_is_refused_while_the_first_renews_its_lock() -> None:
    site = Site()
    with site.lock(1) as first:
        with pytest.raises(BackupLockedError, match="is at work"):
            site.lock(2, first.renew).__enter__()
        first.check()
        assert "it is taken over if it is not renewed for 120 s" in site.said[0]
    assert PATH not in site.storage.files
    with site.lock(2):
        pass


def test_a_lock_that_is_renewed_stays_and_a_stale_one_is_taken_over() -> None:
    site = Site()
    first, second = site.lock(1), site.lock(2)
    first.__enter__()
    site.time.set_time_ns(1)  # what the other machine's clock says is no matter
    before = site.time.monotonic()
    second.__enter__()
    assert STALE_SECONDS <= site.time.monotonic() - before < STALE_SECONDS + 5
    for ask in (first.check, first.hold):
        with pytest.raises(BackupLockedError, match="taken the lock over"):
            ask()
    first.__exit__(None, None, None)
    second.check()  # the first one left it alone
    second.__exit__(None, None, None)


def test_a_lock_that_ends_meanwhile_is_taken_at_once() -> None:
    site = Site()
    first = site.lock(1)
    first.__enter__()
    before = site.time.monotonic()
    with site.lock(2, lambda: first.__exit__(None, None, None)) as second:
        second.check()
    assert site.time.monotonic() - before < 10


def test_the_lock_of_an_ended_process_of_this_machine_is_taken_over_at_once() -> None:
    site = Site()
    site.storage.files[PATH] = json.dumps({"token": "dead", "renewed": site.time.time_ns(), **gone_owner()}).encode()
    before = site.time.monotonic()
    with site.lock(1) as lock:
        lock.check()
    assert site.time.monotonic() == before and "which has ended" in site.said[0]


@pytest.mark.parametrize("other", ["boot", "space"])
def test_the_same_number_elsewhere_is_another_process(other: str) -> None:
    site = Site()
    found = {**gone_owner(), other: "elsewhere"}
    site.storage.files[PATH] = json.dumps({"token": "far", "renewed": site.time.time_ns(), **found}).encode()
    before = site.time.monotonic()
    with site.lock(1):
        assert site.time.monotonic() - before >= STALE_SECONDS


def test_the_lock_of_an_older_version_is_watched_longer() -> None:
    site = Site()
    site.storage.files[PATH] = b'{"token": "old", "renewed": 1, "owner": "process 7 on n1"}'
    before = site.time.monotonic()
    with site.lock(1):
        assert site.time.monotonic() - before >= OLD_STALE_SECONDS


def test_the_lock_is_written_as_often_as_needed() -> None:
    site = Site()
    with site.lock(1) as lock:
        for _ in range(100):
            site.time.advance(RENEW_SECONDS / 40)
            lock.renew()
        assert site.storage.changes == 3


def test_a_run_that_waits_for_a_request_renews_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a renewal that failed."""
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.01)
    site, renewed = Site(), threading.Event()
    real, failures = site.storage.write, [StorageAwayError("away")] * 2

    def write(path: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        real(path, data)
        renewed.set()

    site.storage.write = write  # type: ignore[method-assign]
    with site.lock(1):
        assert renewed.wait(30)
        assert json.loads(site.storage.files[PATH])["beats"] >= 1


def test_a_lock_file_that_is_not_readable_is_taken_over() -> None:
    site = Site()
    site.storage.files[PATH] = b"half of"
    with site.lock(1) as lock:
        lock.check()


def test_a_lock_that_cannot_be_removed_at_the_end_is_told() -> None:
    site = Site()
    with site.lock(1):

        def away(path: str) -> None:
            raise StorageAwayError("away")

        site.storage.delete = away  # type: ignore[method-assign]
    assert site.said == ["the lock stays until it is stale: away"]


def test_nothing_is_removed_beside_a_restore() -> None:
    site = Site()
    path = "restores/0123.lock"
    with site.lock(1, path=path, work=RESTORE):
        refuse_beside_removal(site.storage, site.time)
        with site.lock(2) as backup:  # a backup may be at work beside it
            refuse_beside_removal(site.storage, site.time)
            backup.become(REMOVAL)
            with pytest.raises(BackupLockedError, match="so nothing is removed"):
                refuse_beside_restore(site.storage, site.time)
            with pytest.raises(BackupLockedError, match="wait until it has ended"):
                refuse_beside_removal(site.storage, site.time)
        refuse_beside_removal(site.storage, site.time)
    refuse_beside_restore(site.storage, site.time)
    site.storage.files[path] = json.dumps({"token": "x", "renewed": site.time.time_ns(), **gone_owner()}).encode()
    refuse_beside_restore(site.storage, site.time)
    site.storage.files[path] = json.dumps({"token": "x", "renewed": site.time.time_ns()}).encode()
    with pytest.raises(BackupLockedError):
        refuse_beside_restore(site.storage, site.time)
    site.time.advance(OLD_STALE_SECONDS)
    refuse_beside_restore(site.storage, site.time)
