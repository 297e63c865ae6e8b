from __future__ import annotations

import pytest

from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError, Continue, DeleteMsg, Expire, Publish, Purge, UpdateConfig


def test_round_trips() -> None:
    assert commands.decode(commands.encode_purge(7, b"a.>", 5, 0)) == Purge(7, b"a.>", 5, 0)
    assert commands.decode(commands.encode_delete_msg(8, (1 << 64) - 1)) == DeleteMsg(8, (1 << 64) - 1)
    assert commands.decode(commands.encode_delete_msg(8, 3, erase=False)) == DeleteMsg(8, 3, erase=False)
    assert [commands.erases(commands.encode_delete_msg(8, 3, erase=erase)) for erase in (True, False)] == [True, False]
    assert not commands.erases(commands.encode_expire(9))
    assert commands.decode(commands.encode_expire(9)) == Expire(9)
    assert commands.decode(commands.encode_continue(9)) == Continue(9)
    config = {"name": "S", "subjects": ["ä"]}
    assert commands.decode(commands.encode_update_config(10, config)) == UpdateConfig(10, config)


def test_publish_carries_the_batch_as_it_is() -> None:
    raw = Batch.encode([b"a", b"b"], [], [b"1", b"22"])
    decoded = commands.decode(commands.encode_publish(11, raw))
    assert isinstance(decoded, Publish)
    assert (decoded.ts, decoded.batch.raw) == (11, raw)
    assert list(decoded.batch.messages()) == [(b"a", b"", b"1"), (b"b", b"", b"22")]


def test_equal_configurations_have_equal_bytes() -> None:
    assert commands.dump_config({"a": 1, "b": 2}) == commands.dump_config({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01\x00",
        commands.HEAD.pack(99, 0, 1),
        commands.HEAD.pack(0, 0, 1),
        commands.HEAD.pack(commands.EXPIRE, 2, 1),
        commands.HEAD.pack(commands.CONTINUE, 1, 1),
        commands.encode_continue(1) + b"x",
        commands.HEAD.pack(commands.DELETE_MSG, 1, 1) + bytes(8),
        commands.encode_expire(1) + b"x",
        commands.encode_delete_msg(1, 2)[:-1],
        commands.encode_delete_msg(1, 2) + b"x",
        commands.encode_delete_msg(1, 2, erase=False) + b"\x01",
        commands.encode_purge(1)[:-1],
        commands.encode_publish(1, Batch.encode([b"a"], [], [b"x"]))[:-1],
        commands.encode_publish(1, Batch.encode([b"a"], [], [b"x"])) + b"x",
        commands.HEAD.pack(commands.UPDATE_CONFIG, 0, 1) + b"[]",
        commands.HEAD.pack(commands.UPDATE_CONFIG, 0, 1) + b"\xff",
        commands.HEAD.pack(commands.UPDATE_CONFIG, 0, 1) + b'{"a":',
    ],
)
def test_anything_else_is_an_error(raw: bytes) -> None:
    with pytest.raises(CommandError):
        commands.decode(raw)
