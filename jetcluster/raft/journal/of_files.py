"""`file_journal`: the journal of a process, with its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetcluster.clock import Rng
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal.disk import FileDisk, Mark
from jetcluster.raft.journal.journal import Journal
from jetcluster.raft.journal.writer import ThreadWriter
from jetcluster.sealing.api import SegmentKeys


def file_journal(
    directory: Path,
    loop: Any,
    rng: Rng,
    options: JournalOptions | None = None,
    on_fatal: Callable[[BaseException], None] | None = None,
    mark: Mark | None = None,
    keys: SegmentKeys | None = None,
) -> Journal:
    """Return the journal of a process, with files in `directory` and a writer thread. `loop`: an asyncio event loop.
    `keys`: of encryption at rest."""
    options = options or JournalOptions()
    disk = FileDisk(directory, always_sync=options.sync_interval is None)
    writer = ThreadWriter(loop.call_soon_threadsafe)
    return Journal(disk, writer, loop, rng, options, on_fatal, mark, keys=keys)
