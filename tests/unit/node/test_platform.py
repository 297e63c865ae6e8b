from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from jetcluster import native
from jetcluster.config.options import Options
from jetcluster.logs import get_logger
from jetcluster.node.node import Node
from jetcluster.node.platform import Platform, SystemPlatform
from jetcluster.raft.journal.queued_writer import QueuedWriter
from jetcluster.raft.journal.writer import ThreadWriter
from testkit.twins.time import SeededRng


def test_a_node_has_the_operating_system_unless_it_is_given_another_one() -> None:
    node = Node(Options(), get_logger("test"))
    assert isinstance(node.platform, SystemPlatform) and node.platform.files is os
    assert node.clock is node.platform.clock and node.rng is node.platform.rng
    given = SystemPlatform()
    given.rng = SeededRng(1)
    assert Node(Options(), get_logger("test"), platform=given).rng is given.rng


async def test_the_journal_is_written_in_a_thread(tmp_path: Path) -> None:
    platform: Platform = SystemPlatform()
    writer = platform.open_writer(asyncio.get_running_loop())
    assert type(writer) is (ThreadWriter if native.why_pure else QueuedWriter)
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    ran: list[int] = []
    writer.submit(lambda: ran.append(threading.get_ident()), done.set_result)
    assert await done is None and ran != [threading.get_ident()]
    writer.close()


async def test_the_data_store_is_kept(tmp_path: Path) -> None:
    platform: Platform = SystemPlatform()
    store = platform.open_store(tmp_path / "data", owner_flushes=True)
    store.put(b"key", b"value")
    await store.flush()
    store.close()
    again = platform.open_store(tmp_path / "data")
    assert again.get(b"key") == b"value"
    again.close()


def test_what_the_machine_has() -> None:
    platform: Platform = SystemPlatform()
    soft, hard = platform.raise_limit()
    assert 0 < soft <= hard
    assert platform.descriptors().limit >= soft
    assert platform.physical_memory() > 64 << 20
    assert platform.memory_trouble()() == ""
    assert platform.stopwatch() <= platform.stopwatch()
    assert platform.usage.memory_bytes() > 1_000_000
