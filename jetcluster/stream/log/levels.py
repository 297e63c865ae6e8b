"""Lowers what a leader puts into the log while some servers of its group are of an older level.

A server that does not understand a command stops that replica, rather than drift apart from the others. So a leader
proposes what all members understand: servers report their LEVEL with every heartbeat. The meaning of a command is in
the command alone: replicas of all levels apply it alike, and so does a later one that replays the log.

A version that gives a command another meaning adds a flag for it (`commands`), raises LEVEL, and adds to LOWERINGS how
the command is said without the flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

LEVEL: Final = 1
"""This version's."""

Lowering = Callable[[bytes], bytes | None]
"""Makes of a command the one that servers of the level before understand; None where there is none: it has to wait."""

LOWERINGS: Final[Mapping[int, Lowering]] = {}
"""By the level that brought what the function takes out again."""


def lowered(command: bytes, level: int, lowerings: Mapping[int, Lowering] = LOWERINGS) -> bytes | None:
    """`command` as servers of `level` understand it; None: not while one of them is a member."""
    for newer in sorted(lowerings, reverse=True):
        if newer > level:
            made = lowerings[newer](command)
            if made is None:
                return None
            command = made
    return command
