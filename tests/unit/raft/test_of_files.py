"""The journal of a process, with files and the writer's thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jetcluster.clock import SystemRng
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.of_files import file_journal
from jetcluster.sealing.api import SegmentKeys
from jetcluster.sealing.ciphers import AES
from testkit.twins.encryption import segment_keys
from tests.unit.raft.journal_rig import ABC, fill


async def test_files_and_the_writer_thread(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=1 << 16, reserve_bytes=0)
    journal = file_journal(tmp_path / "wal", loop, SystemRng(), options)
    journal.open()
    durable = asyncio.Event()
    journal.serve(lambda logs: durable.set() if log.durable_index == 2_000 else None)
    log = journal.create(1, ABC, True)
    fill(log, 2_000, size=60)
    async with asyncio.timeout(10):
        await durable.wait()
    fill(log, 10)
    journal.close()
    again = file_journal(tmp_path / "wal", loop, SystemRng(), options)
    assert again.open().damage == []
    assert again.groups[1].last_index == 2_010
    assert again.groups[1].command(7) == b"000007" + b"." * 60
    again.close()


@pytest.mark.parametrize("relaxed", [None, 0.01])
@pytest.mark.parametrize("keys", [None, segment_keys(AES, SystemRng())], ids=["plain", AES])
async def test_a_journal_of_files_survives_reopening_many_times(
    tmp_path: Path, relaxed: float | None, keys: SegmentKeys | None
) -> None:
    loop = asyncio.get_running_loop()
    options = JournalOptions(segment_bytes=1 << 14, reserve_bytes=0, sync_interval=relaxed)
    for life in range(5):
        journal = file_journal(tmp_path, loop, SystemRng(), options, keys=keys)
        assert journal.open().damage == []
        log = journal.groups.get(1) or journal.create(1, ABC, True)
        assert log.last_index == life * 300
        fill(log, 300, size=60)
        await asyncio.sleep(0.02)
        journal.close()
