"""The exam of restore points notices mistakes of `jetcluster backup` and `jetcluster restore`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.backup import plan, restore, retention, verify
from jetcluster.backup.account import AccountReader
from jetcluster.backup.lock import BackupLock
from jetcluster.backup.restore_options import RestoreOptions
from jetcluster.backup.run import BackupRun
from jetcluster.backup.segment import MessageSum
from jetcluster.backup.sequences import Sequences
from tests.sim.cluster.exam_rig import examined

pytestmark = [pytest.mark.sim, pytest.mark.thorough]


def _fails(monkeypatch: pytest.MonkeyPatch, part: str) -> str:
    return examined(monkeypatch, "exam-points", part).failure


def test_a_point_that_is_kept_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    expired: Callable[..., list[str]] = plan.expired
    monkeypatch.setattr(plan, "expired", lambda points, keep, **more: expired(points, keep + 1, **more))
    assert "exam-points, follow: kept: points" in _fails(monkeypatch, "_follow")


def test_blobs_that_nothing_needs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "unused", lambda *_: [])
    assert "exam-points, follow: kept: blobs" in _fails(monkeypatch, "_follow")


def test_a_run_that_reads_everything_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackupRun, "_base", lambda run, seen: plan.StoredBase())
    assert "exam-points, follow: point 1: read" in _fails(monkeypatch, "_follow")


def test_headers_that_are_lost_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = AccountReader.messages

    def plain(account: AccountReader, stream: Any, wanted: Sequences) -> Any:
        return (one._replace(headers=b"") for one in read(account, stream, wanted))

    monkeypatch.setattr(AccountReader, "messages", plain)
    assert "exam-points, follow: point" in _fails(monkeypatch, "_follow")


def test_damage_that_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify.StoredStream, "check", lambda stored, alive=None: MessageSum())
    monkeypatch.setattr(verify.StoredStream, "consumers", lambda stored: {})
    assert "told of" in _fails(monkeypatch, "_damaged")


def test_progress_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention.PointCatalog, "forget_progress", lambda catalog, streams=(): None)
    assert "exam-points, died: left of runs" in _fails(monkeypatch, "_died")


def test_consumers_that_are_not_restored_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "archived", lambda consumers: ({}, []))
    monkeypatch.setattr(restore.RestoreRun, "_verify_consumer", lambda *_: None)
    assert "consumers" in _fails(monkeypatch, "_restored")


def test_a_lock_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackupLock, "__exit__", lambda *_: None)
    assert "exam-points, resumed: locks" in _fails(monkeypatch, "_resumed")


def test_limits_that_a_new_name_keeps_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RestoreOptions.config
    monkeypatch.setattr(
        RestoreOptions, "config", lambda options, one, older=0: config(replace(options, replicas=0), one, older)
    )
    assert "exam-points, renamed: renamed: configuration" in _fails(monkeypatch, "_renamed")


def test_a_restore_over_what_is_there_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore.RestoreRun, "_check_replacements", lambda *_: None)
    assert "exam-points, refused" in _fails(monkeypatch, "_refused")
