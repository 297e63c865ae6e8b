"""Which machine a server runs on, by its tags: workers of one machine have its tag and their own number
(`config.workers`). A server without both tags is a machine of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MACHINE_TAG: Final = "machine:"
"""Prefix of the tag that all workers of a machine share. The name of worker 0 follows it, in lower case."""
WORKER_TAG: Final = "worker:"
"""Prefix of the tag with a worker's number on its machine, from 0."""


def tags_of(machine: str, index: int) -> list[str]:
    """Return the tags of worker `index` of `machine`."""
    return [f"{MACHINE_TAG}{machine.lower()}", f"{WORKER_TAG}{index}"]


def machine_of(tags: Iterable[str], otherwise: str = "") -> str:
    """Return the machine's tag of a worker, and `otherwise` for any other server."""
    machine = worker = ""
    for tag in tags:
        if tag.startswith(MACHINE_TAG):
            machine = tag
        elif tag.startswith(WORKER_TAG):
            worker = tag
    return machine if worker and machine else otherwise


def is_first(tags: Iterable[str]) -> bool:
    """True for the first worker of a machine, and for a server that is no worker."""
    found = list(tags)
    return not machine_of(found) or f"{WORKER_TAG}0" in found
