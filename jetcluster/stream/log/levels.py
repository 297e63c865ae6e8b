"""Lowering of commands while some servers of a group have an older level than the leader.

A server stops a replica at a command that it does not understand, rather than let it drift. So a leader proposes only
commands that all members understand: servers report their LEVEL with every heartbeat. The meaning of a command depends
on the command alone, so replicas of all levels, and later ones that replay the log, apply it alike.

A version that gives a command another meaning adds a flag for it (`commands`), raises LEVEL, and adds to LOWERINGS the
way to express the command without the flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from jetcluster.stream.log.commands import (
    BATCH_COMMIT,
    CONSUMER_RESET,
    COUNTED,
    FAST_PUBLISH,
    NEWEST,
    PUBLISH,
    RESTORE,
    ROLLS_UP,
)

LEVEL: Final = 8
"""This version's level. 3: leases (`raft.node_state.LEASES_LEVEL`)."""
ORDER_PER_KEY_LEVEL: Final = 4
"""Lowest level of a server that knows the ops of consumers with order per key. Only such a consumer has them, and its
owner delivers nothing while a member of the group is older."""
DEAD_LETTER_LEVEL: Final = 5
"""Lowest level of a server that knows the ops of dead letters. Only a consumer with `dead_letter` has them."""
RETENTION_GUARD_LEVEL: Final = 6
"""Lowest level of a server that knows UPDATE_CONFIGs with the flag GUARDED. A leader proposes none while a member of
the group is older."""
LONG_ROLLUP_LEVEL: Final = 7
"""Lowest level of a server that knows PUBLISHes with the flag ROLLS_UP. For older ones the flag is taken away: they
remove what a message rolls up at once."""
BATCH_ROLLUP_LEVEL: Final = 8
"""The same of BATCH_COMMITs and FAST_PUBLISHes with that flag, and of RESTOREs with the flag COUNTED: without that a
restored counter that has no sources any more forgets what it has counted of them."""
NEWEST_RESET_LEVEL: Final = 8
"""The same of CONSUMER_RESETs with the flag NEWEST. A leader proposes none while a member of the group is older: a
consumer then delivers what was the last of its subject when it was created."""
MANY_MEMBERS_LEVEL: Final = 2
"""Lowest level of a server that can read a configuration of more than `raft.membership.NARROW_MEMBERS`."""

Lowering = Callable[[bytes], bytes | None]
"""Returns the command for servers of the previous level; None when there is none, and it must wait."""


def _without(*marks: tuple[int, int]) -> Lowering:
    """Takes flags away from commands. `marks`: (flag, kind)."""

    def lower(command: bytes) -> bytes:
        flags = command[1]
        if not flags or (flags, command[0]) not in marks:
            return command
        return bytes((command[0], 0)) + command[2:]

    return lower


_UNFLAGGED: Final = _without((ROLLS_UP, BATCH_COMMIT), (ROLLS_UP, FAST_PUBLISH), (COUNTED, RESTORE))


def _known_to_seven(command: bytes) -> bytes | None:
    """Lowers a command from level 8. A reset says so in its body, too: the leader has to make another one."""
    if command[0] == CONSUMER_RESET and command[1] & NEWEST:
        return None
    return _UNFLAGGED(command)


LOWERINGS: Final[Mapping[int, Lowering]] = {
    LONG_ROLLUP_LEVEL: _without((ROLLS_UP, PUBLISH)),
    BATCH_ROLLUP_LEVEL: _known_to_seven,
}
"""Lowerings by the level that added what they remove."""


def lowered(command: bytes, level: int, lowerings: Mapping[int, Lowering] = LOWERINGS) -> bytes | None:
    """Returns `command` for servers of `level`; None when it must wait until none of them is a member."""
    for newer in sorted(lowerings, reverse=True):
        if newer > level:
            made = lowerings[newer](command)
            if made is None:
                return None
            command = made
    return command
