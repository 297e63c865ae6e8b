"""Commands for groups with servers of an older level."""

from __future__ import annotations

import pytest

from jetcluster.raft.node_state import LEASES_LEVEL
from jetcluster.store.batch import Batch
from jetcluster.stream.log.bodies import Run, encode_runs
from jetcluster.stream.log.commands import (
    CONSUMER_DELETE,
    CONSUMER_RESET,
    NEWEST,
    UnknownCommandError,
    decode,
    encode_atomic,
    encode_extended,
    encode_fast,
    encode_publish,
    encode_purge,
    encode_restore,
    encode_update_config,
    named,
)
from jetcluster.stream.log.fast_parts import FastPart, FastRun
from jetcluster.stream.log.levels import (
    BATCH_ROLLUP_LEVEL,
    DEAD_LETTER_LEVEL,
    LEVEL,
    LONG_ROLLUP_LEVEL,
    LOWERINGS,
    MANY_MEMBERS_LEVEL,
    NEWEST_RESET_LEVEL,
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
    assert max(*known, LONG_ROLLUP_LEVEL) < LEVEL == BATCH_ROLLUP_LEVEL
    assert list(LOWERINGS) == [LONG_ROLLUP_LEVEL, BATCH_ROLLUP_LEVEL]
    batch = Batch.encode([b"a"], [], [b"x"])
    plain, long = encode_publish(5, batch), encode_publish(5, batch, rolls_up=True)
    assert plain != long and decode(long) != decode(plain)
    assert lowered(long, RETENTION_GUARD_LEVEL) == plain == lowered(plain, 0)
    assert lowered(long, LEVEL) == long
    assert lowered(long, LONG_ROLLUP_LEVEL) == long
    for other in (encode_purge(5, b"a"), encode_update_config(5, {"retention_guard": {}})):
        assert lowered(other, 0) == other


def test_a_reset_that_knows_of_newer_messages_waits_for_the_last_server() -> None:
    plain = encode_extended(5, CONSUMER_RESET, b"{}")
    marked = encode_extended(5, CONSUMER_RESET, b'{"newest":true}', NEWEST)
    assert NEWEST_RESET_LEVEL == LEVEL
    assert lowered(plain, 0) == plain and lowered(named(plain, 7), 0) == named(plain, 7)
    for one in (marked, named(marked, 7)):
        assert lowered(one, LEVEL) == one and lowered(one, LEVEL - 1) is None
        assert decode(one).body == b'{"newest":true}'
    with pytest.raises(UnknownCommandError, match="unknown flags 0x10"):  # as an older server that reads it in its log
        decode(encode_extended(5, CONSUMER_DELETE, b"{}", NEWEST))


def test_an_older_server_knows_no_jobs_of_batches_and_no_counted_restores() -> None:
    batch = Batch.encode([b"a"], [], [b"x"])
    part = FastPart(b"id", b"stem", 10, False, False, [FastRun(0, 1, 1)])
    runs = encode_runs([Run(1, 5, Batch(batch, 0, False))])
    for plain, marked in (
        (encode_atomic(5, batch, plain=True, allow_msg_id=True)[0],
         encode_atomic(5, batch, plain=True, allow_msg_id=True, rolls_up=True)[0]),
        (encode_fast(5, [part], batch), encode_fast(5, [part], batch, rolls_up=True)),
        (encode_restore(5, runs), encode_restore(5, runs, counted=True)),
    ):  # fmt: skip
        assert plain != marked and decode(plain) != decode(marked)
        assert lowered(marked, LONG_ROLLUP_LEVEL) == lowered(marked, 0) == plain == lowered(plain, 0)
        assert lowered(marked, LEVEL) == marked
