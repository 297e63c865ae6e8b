"""Disks that are full, and power cuts: what was not synced is gone on every node at once."""

from __future__ import annotations

import errno

from chaos.nemeses.base import Nemesis, Trouble

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


NEMESES = [
    Nemesis("disk-full", "disk", full, frozenset({"disk"})),
    Nemesis("power-cut", "disk", power_cut, frozenset({"shim"})),
]
