"""The store of a server that was removed from its cluster: it is marked, and set aside at the next start.

A removed peer id never votes again, so its store is of no use to the cluster, but may hold the only copy of a stream
with one replica: it is moved beside the new one, never deleted. The server then starts empty, under a new peer id.

`jetstream { set_aside_removed: true }` asks for it. Orchestrators bring a machine back with its old disk: a pod of a
set that shrank and grows again has the claim that it had.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jetcluster.cluster.meta_members import REMOVED
from jetcluster.errors import OperatorError
from jetcluster.files import Files, exists, make_folder, names_in, sync, write_durably
from jetcluster.logs import Log
from jetcluster.mesh.identity import IdentityError, read_identity

REMOVED_FILE: Final = "REMOVED"
"""File name in the JetStream folder of a removed server."""
ASIDE_PREFIX: Final = "jetstream-removed-"
"""Beside the JetStream folder; the peer id follows."""
MAX_ASIDE: Final = 3
"""Most stores set aside: each fills the disk that the next one needs."""


class RemovedStoreError(OperatorError):
    """The removed store could not be moved away."""


def set_aside(directory: Path, log: Log, files: Files = os) -> None:
    """Moves a marked store away from the JetStream folder `directory`, which is empty then; one without a mark stays.
    Durable on return. Raises RemovedStoreError."""
    if not exists(directory / REMOVED_FILE, files):
        if there := stores_aside(directory, files):
            text = "stores of before a removal are kept: delete those that nobody needs"
            log.info(text, folder=str(directory.parent), there=", ".join(there))
        return
    try:
        aside = directory.with_name(ASIDE_PREFIX + read_identity(directory).peer_id)
        files.rename(directory, aside)
        make_folder(directory, files)
        sync(directory.parent, files)
    except (IdentityError, OSError) as error:
        raise RemovedStoreError(f"the removed store cannot be set aside: {error}") from error
    text = "this server was removed from the cluster: its store is set aside, and it joins as a new member"
    log.warning(text, store=str(aside))


def stores_aside(directory: Path, files: Files = os) -> list[str]:
    """Returns the names of the stores that were set aside from `directory`."""
    return sorted(name for name in names_in(directory.parent, files) if name.startswith(ASIDE_PREFIX))


def leave(directory: Path, log: Log, start_again: Callable[[], None], files: Files = os) -> None:
    """Marks the store, which the cluster has removed, and starts the server again, which then sets it aside."""
    try:
        there = stores_aside(directory, files)
        if len(there) >= MAX_ASIDE:
            text = "the removed store is not set aside: delete those before it that nobody needs"
            log.error(text, folder=str(directory.parent), there=", ".join(there))
            return
        write_durably(directory / REMOVED_FILE, REMOVED, files)
    except OSError as error:
        log.error("the removed store cannot be set aside", error=str(error))  # noqa: TRY400
        return
    start_again()
