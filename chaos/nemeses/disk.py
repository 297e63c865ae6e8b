"""Disks that are full, and power cuts: what was not synced is gone on every node at once."""

from __future__ import annotations

import errno

from chaos.nemeses.base import Nemesis, Trouble, flush
from chaos.relaxed import LOSS

FILLER = "filler"
CHUNK = 1 << 20


async def full(trouble: Trouble) -> None:
    node = trouble.target.small_disk
    assert node is not None
    path = trouble.target.store(node) / FILLER
    written = 0
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                written += file.write(bytes(CHUNK))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    trouble.detail = f"{node}, by {written >> 20} MiB"
    try:
        await trouble.hold(2.0, 5.0)
    finally:
        path.unlink()


async def power_cut(trouble: Trouble) -> None:
    """All nodes at once: an ack that no majority had synced is lost here."""
    names = trouble.target.names
    await trouble.target.kill(*names)
    lost = [trouble.target.shim(name).lose_unsynced(trouble.target.store(name)) for name in names]
    trouble.detail = f"unsynced bytes lost: {' '.join(map(str, lost))}"
    await trouble.target.start(*names)


async def power_cut_flushed(trouble: Trouble) -> None:
    """After flushes of the data store, which may be ahead of a journal that is synced now and then: soon after the last
    one, or when much has been written since. Nodes flush when a stream is deleted."""
    await trouble.hold(1.0, 2.0)
    for _ in range(trouble.dice.randint(2, 3)):
        await flush(trouble)
        await trouble.hold(0.0, 0.5)
    if trouble.dice.random() < 0.5:
        await trouble.hold(2.0, 3.0)
    at = trouble.history.now()
    await power_cut(trouble)
    trouble.history.note("disk", "fault", "machine", since=at, subject=LOSS, error=trouble.detail)


NEMESES = [
    Nemesis("disk-full", "disk", full, frozenset({"disk"})),
    Nemesis("power-cut", "disk", power_cut, frozenset({"shim"})),
    Nemesis("power-cut-flushed", "disk", power_cut_flushed, frozenset({"shim"})),
]
