"""Commands for groups with servers of an older level."""

from __future__ import annotations

from jetcluster.raft.node_state import LEASES_LEVEL
from jetcluster.stream.log.levels import (
    DEAD_LETTER_LEVEL,
    LEVEL,
    LOWERINGS,
    MANY_MEMBERS_LEVEL,
    ORDER_PER_KEY_LEVEL,
    RETENTION_GUARD_LEVEL,
    lowered,
)


def test_a_command_is_lowered_step_by_step_to_the_level_of_the_oldest_member() -> None:
    lowerings = {2: lambda command: command + b"2", 4: lambda command: command + b"4" if command != b"w" else None}
    assert lowered(b"c", 4, lowerings) == b"c"
    assert lowered(b"c", 3, lowerings) == lowered(b"c", 2, lowerings) == b"c4"
    assert lowered(b"c", 1, lowerings) == b"c42"
    assert lowered(b"w", 4, lowerings) == b"w"
    assert lowered(b"w", 1, lowerings) is None, "it waits for the last server"


def test_no_level_has_a_command_to_lower_yet() -> None:
    known = MANY_MEMBERS_LEVEL, LEASES_LEVEL, ORDER_PER_KEY_LEVEL, DEAD_LETTER_LEVEL, RETENTION_GUARD_LEVEL
    assert max(known) == LEVEL and not LOWERINGS
    assert lowered(b"c", 0) == b"c"
