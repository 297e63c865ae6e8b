"""Commands for groups with servers of an older level."""

from __future__ import annotations

from jetcluster.raft.node_state import LEASES_LEVEL
from jetcluster.store.batch import Batch
from jetcluster.stream.log.commands import decode, encode_publish, encode_purge, encode_update_config
from jetcluster.stream.log.levels import (
    DEAD_LETTER_LEVEL,
    LEVEL,
    LONG_ROLLUP_LEVEL,
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


def test_an_older_server_removes_what_is_rolled_up_at_once() -> None:
    known = MANY_MEMBERS_LEVEL, LEASES_LEVEL, ORDER_PER_KEY_LEVEL, DEAD_LETTER_LEVEL, RETENTION_GUARD_LEVEL
    assert max(*known, LONG_ROLLUP_LEVEL) == LEVEL and list(LOWERINGS) == [LONG_ROLLUP_LEVEL]
    batch = Batch.encode([b"a"], [], [b"x"])
    plain, long = encode_publish(5, batch), encode_publish(5, batch, rolls_up=True)
    assert plain != long and decode(long) != decode(plain)
    assert lowered(long, RETENTION_GUARD_LEVEL) == plain == lowered(plain, 0)
    assert lowered(long, LEVEL) == long
    for other in (encode_purge(5, b"a"), encode_update_config(5, {"retention_guard": {}})):
        assert lowered(other, 0) == other
