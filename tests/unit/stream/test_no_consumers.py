"""A stream's state machine without consumers."""

from __future__ import annotations

import pytest

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import CommandError
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv


def made(**config: object) -> StreamMachine:
    machine = StreamMachine("S", StreamRules.from_config({}), BlockStore(MemKv(), 1, memory=False))
    machine.apply(1, 1, commands.encode_update_config(0, {"name": "S", **config}))
    return machine


def test_a_command_of_consumers_stops_the_replica() -> None:
    machine = made()
    assert machine.consumer_count == 0
    with pytest.raises(CommandError, match="kind 20"):
        machine.apply(2, 1, commands.encode_extended(7, 20, b""))


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_messages_are_stored_and_purged_by_the_stream_alone(retention: str) -> None:
    machine = made(retention=retention, max_msgs=3)
    machine.apply(2, 1, commands.encode_publish(7, Batch.encode([b"a"] * 5, [], [b"x"] * 5)))
    assert (machine.store.first_seq, machine.store.messages) == (3, 3)
    machine.apply(3, 1, commands.encode_purge(8, b"", 5, 0))
    assert (machine.store.first_seq, machine.store.messages) == (5, 1)
