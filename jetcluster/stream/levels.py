"""Lowers what a leader puts into the log while some nodes of its group run a version of before.

A node that does not understand a command stops that replica, rather than drift apart from the others. So a leader
proposes what all members understand: nodes tell their LEVEL with every heartbeat, and one that was never heard counts
as one of before. The meaning of a command is in the command alone: replicas of all versions apply it alike, and
so does a later one that replays the log.
"""

from __future__ import annotations

from typing import Final

from jetcluster.stream.commands import (
    CONTINUE,
    EXPIRE,
    HEAD,
    UPDATE_CONFIG,
    boundless,
    nameless,
    placeless,
    plain_publish,
    rewriting,
)

NAMES: Final = 2
"""From this level on the flags NAMED, PLACED and SIFTED are understood, from level 1 on SLICED and CONTINUE. Nodes that
tell none are of level 0."""
KEYS: Final = 3
"""From this level on the meta group's list of nodes holds their public keys (`mesh.node_key`)."""
TIERS: Final = 3
"""From this level on the limits in commands of the meta group may be those of streams with so many replicas."""
FAST: Final = 3
"""From this level on FAST_PUBLISH is understood. Below it the messages are published all the same, and nobody but the
leader knows of their batches: a batch does not outlive its leader, and what was sent behind a refused message may be
stored."""
COUNTED: Final = 3
"""From this level on counters can have sources. Nodes of before would store what comes as it is, so no stream is made
one of that kind while there are some. There is none, then, in any log of theirs: the commands need no flags."""
ROOM: Final = 4
"""From this level on the flag BOUNDED is understood. Below it `max_bytes` of a stream with `discard: new` does not hold
where messages are replaced."""
LINES: Final = 4
"""From this level on the flag KEPT is understood."""
LEVEL: Final = 4
"""This version's."""
AHEAD: Final = 1_000_000_000
"""Clocks of leaders may differ by so many nanoseconds, and a command of before removes so much too early at most."""


def lowered(command: bytes, clock: int, level: int = 0) -> bytes | None:
    """`command` as a version of `level` understands it, which means without newer flags. None for one that removes what
    is due while the machine's `clock` is far ahead of it: versions of level 0 count from there. It can wait, what it
    would remove does not come back. None also for a CONTINUE, of which they know nothing: the job waits for them; and
    for the end of fast-ingest batches, of which they do not know that they are open."""
    if level < ROOM:
        command = boundless(command)
    if level < LINES:
        command = rewriting(command)
    if level < FAST:
        command = plain_publish(command)
        if not command:
            return None
    if level < NAMES:
        command = placeless(nameless(command))
    if level:
        return command
    kind, _, ts = HEAD.unpack_from(command)
    if kind == CONTINUE:
        return None
    if kind in (EXPIRE, UPDATE_CONFIG) and clock > ts + AHEAD:
        return None
    return command[:1] + b"\0" + command[2:]
