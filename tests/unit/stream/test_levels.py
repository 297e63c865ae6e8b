"""Commands for groups with nodes of a version before, and logs that such a version wrote."""

from __future__ import annotations

from jetcluster.store.batch import Batch
from jetcluster.stream import commands
from jetcluster.stream.commands import Expire, Purge, UpdateConfig
from jetcluster.stream.levels import AHEAD, ROOM, lowered
from tests.unit.stream.test_machine import SECOND, Stream

MS = 1_000_000


def behind(stream: Stream) -> int:
    """Messages of three moments, and the time of a new leader whose clock is 6 ms behind: by the machine's clock two
    are due, by that time one is."""
    stream.one("a")
    begun = stream.now
    stream.now = begun + 55 * MS
    stream.one("b")
    stream.now = begun + 1060 * MS
    stream.one("c")
    return begun + 1054 * MS


def test_a_log_of_before_is_replayed_as_it_was_applied() -> None:
    """What is due was due at the machine's clock."""
    stream = Stream(max_age=SECOND)
    now = behind(stream)
    assert stream.apply(commands.encode_expire(now, sliced=False)) == 2
    assert stream.seqs() == [3]

    stream = Stream(max_age=SECOND)
    now = behind(stream)
    update = commands.encode_update_config(now, stream.machine.config, 9, sliced=False)
    assert stream.apply(update) == 2
    assert stream.seqs() == [3]


def test_a_command_of_this_version_counts_from_its_own_time() -> None:
    stream = Stream(max_age=SECOND)
    now = behind(stream)
    assert stream.apply(commands.encode_expire(now)) == 1
    assert stream.seqs() == [2, 3]

    stream = Stream(max_age=SECOND)
    now = behind(stream)
    assert stream.apply(commands.encode_update_config(now, stream.machine.config, 9)) == 1
    assert stream.seqs() == [2, 3]


def test_a_lowered_command_is_one_that_the_version_before_wrote() -> None:
    for sliced, plain in (
        (commands.encode_expire(9), b"\4\0" + (9).to_bytes(8, "little")),
        (commands.encode_purge(9, b"a"), commands.encode_purge(9, b"a", sliced=False)),
        (
            commands.encode_update_config(9, {"name": "S"}),
            commands.encode_update_config(9, {"name": "S"}, sliced=False),
        ),
        (commands.encode_replace(9, [], [b"a"]), commands.encode_replace(9, [], [b"a"], sliced=False)),
        (commands.encode_delete_msg(9, 1, erase=False), commands.encode_delete_msg(9, 1, erase=False)),
    ):
        assert lowered(sliced, 9) == plain and plain[1] == 0
    assert commands.decode(lowered(commands.encode_expire(9), 9) or b"") == Expire(9, sliced=False)
    assert commands.decode(lowered(commands.encode_expire(9), 9, 1) or b"") == Expire(9, sliced=True, placed=False)
    update = commands.decode(lowered(commands.encode_update_config(9, {}), 9, 1) or b"")
    assert isinstance(update, UpdateConfig) and update.sliced and not update.placed
    assert commands.decode(lowered(commands.encode_purge(9), 9) or b"") == Purge(9, b"", 0, 0, sliced=False)


def test_a_command_with_messages_is_bounded_where_all_nodes_know_what_that_is() -> None:
    batch = Batch.encode([b"a"], [b""], [b"x"])
    for plain in (commands.encode_publish(9, batch), commands.encode_fast(9, [], batch)):
        marked = commands.bounded(plain)
        assert marked != plain and commands.decode(marked) is not None
        assert commands.boundless(marked) == plain == commands.boundless(plain)
        assert lowered(marked, 9, ROOM) == marked and lowered(marked, 9, ROOM - 1) == plain
    assert commands.bounded(commands.encode_expire(9)) == commands.encode_expire(9)


def test_nothing_is_removed_by_a_clock_that_is_far_ahead() -> None:
    for command in (commands.encode_expire(9), commands.encode_update_config(9, {"name": "S"})):
        assert lowered(command, 9 + AHEAD) is not None
        assert lowered(command, 10 + AHEAD) is None
    assert lowered(commands.encode_purge(9), 10 + AHEAD) is not None, "it does not look at the time"


def test_a_job_is_not_continued_where_a_node_knows_of_none() -> None:
    assert lowered(commands.encode_continue(9), 0) is None
