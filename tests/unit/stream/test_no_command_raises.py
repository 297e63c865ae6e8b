"""No command stops a stream: whatever stands in the log, all replicas carry it out or refuse it alike, and go on."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetcluster.consumer.state import ops, turn
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.applier import Applier, LogEntry
from jetcluster.stream.apply.machine import StreamMachine
from jetcluster.stream.lead.duties import Republisher
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import UnknownCommandError
from jetcluster.stream.ports import Result, digest_bytes
from jetcluster.stream.rules import StreamRules
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.extremes import COMMANDS, COUNTING, OPS, T0, Extremes

STREAM = 5
RULES = StreamRules({"name": "S"})


class Replica:
    """`stream.apply.applier.ApplierHost`: a machine over a store that a crash takes back to its last commit."""

    def __init__(self, log: list[bytes]) -> None:
        self.log = log
        self.kv = MemKv()
        self.refusals: list[tuple[int, Exception | None]] = []
        self.recoveries: list[tuple[int, Exception]] = []
        self.observer: Observer | None = None
        self.open()

    def open(self) -> None:
        self.store = BlockStore(self.kv, STREAM, memory=False)
        self.table = ConsumerTable(self.store)
        self.machine = StreamMachine("S", RULES, self.store, self.table)
        self.applier = Applier(self.machine, self)
        self.observe(self.observer)

    def observe(self, observer: Observer | None) -> None:
        self.table.observe(observer)
        self.machine.observe(observer.append if observer is not None else None)

    def restart(self) -> None:
        """A crash: what was not committed is gone, and the log is applied again from there."""
        self.kv.discard(STREAM)
        self.kv._hooks.clear()
        self.open()
        self.catch_up()
        self.refusals = sorted(dict(self.refusals).items())

    def catch_up(self) -> list[Result]:
        return [
            self.applier.apply(index, 1, self.log[index - 1])
            for index in range(self.machine.applied_index + 1, len(self.log) + 1)
        ]

    def rows(self) -> list[tuple[bytes, bytes]]:
        self.kv.commit()
        return list(self.kv.scan(b"", b"\xff" * 8))

    def entry(self, index: int) -> LogEntry | None:
        return 1, self.log[index - 1]

    def abandon(self) -> None:
        self.store.abandon()

    def taking_back(self) -> None:
        self.observe(None)

    def taken_back(self) -> None:
        self.observe(self.observer)

    def refused(self, index: int, command: bytes, error: Exception | None) -> None:
        self.refusals.append((index, error))

    def recovered(self, index: int, command: bytes, error: Exception) -> None:
        self.recoveries.append((index, error))

    def commit(self) -> None:
        self.kv.commit()


class Observer:
    """Observes the stream in one process alone, as on a leader, and fails now and then."""

    def __init__(self, replica: Replica, random: Random) -> None:
        self._replica = replica
        self._random = random

    def append(self, batch: Batch, first_seq: int, ts: int) -> None:
        rules = self._replica.machine.rules
        if rules.republish is not None:
            Republisher(rules, self._replica.store).take(batch, first_seq, ts)
        self._told()

    def _told(self, *args: object) -> None:
        if self._random.random() < 0.1:
            raise KeyError("observer")

    created = updated = deleted = owner_changed = restored = paused = reset = freed = turn_applied = _told

    def reloaded(self) -> None: ...


def both(log: list[bytes], one: Replica, other: Replica) -> None:
    try:
        first = one.catch_up()
    except UnknownCommandError:  # chance made it one of a newer version: replicas of this one stop
        with pytest.raises(UnknownCommandError):
            other.catch_up()
        del log[other.machine.applied_index :]
        one.restart()
        other.restart()
        return
    second = other.catch_up()
    assert [digest_bytes(result) for result in first] == [digest_bytes(result) for result in second]
    assert one.machine.hash == other.machine.hash
    assert one.store.state == other.store.state


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_no_command_raises(seed: int) -> None:
    carry_out(seed, (commands.PUBLISH,))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_no_command_raises_where_sources_are_counted(seed: int) -> None:
    carry_out(seed, (commands.PUBLISH, *(commands.SOURCED,) * 3), COUNTING)


def carry_out(seed: int, often: tuple[int, ...], config: dict[str, Any] | None = None) -> None:
    """Random commands, of the kinds `often` above all, on two replicas that crash now and then."""
    random = Random(seed)
    extremes = Extremes(random)
    extremes.counting = config is COUNTING
    subjects = {"name": "S", "subjects": ["a.>", "b", "c.>"]}
    log: list[bytes] = [commands.encode_update_config(T0, {**subjects, **(config or {})})]
    one, other = Replica(log), Replica(log)
    one.observer = Observer(one, Random(seed))
    one.observe(one.observer)
    kinds = sorted(COMMANDS)
    for _ in range(25):
        log += extremes.command(random.choice((random.choice(often), random.choice(kinds), random.choice(kinds))))
        both(log, one, other)
        if random.random() < 0.2:
            other.kv.commit()
        if random.random() < 0.2:
            other.restart()
        if random.random() < 0.1:
            one.kv.commit()
    other.restart()
    both(log, one, other)
    log.append(commands.encode_publish(extremes.ts + 1, Batch.encode([b"a.x"], [], [b"last"])))
    both(log, one, other)
    assert dict(one.refusals).keys() == dict(other.refusals).keys()
    assert one.rows() == other.rows()
    other.restart()
    assert one.machine.hash == other.machine.hash


def test_every_kind_of_command_is_among_them() -> None:
    """A kind or an op that is added later has to be added to `extremes`."""
    extended = {getattr(commands, name) for name in vars(commands) if name.startswith("CONSUMER_")}
    others = {kind for kind in commands.KINDS if not commands.FIRST_EXTENDED <= kind <= commands.LAST_EXTENDED}
    assert set(COMMANDS) == others | extended
    assert set(OPS) == set(ops.OPS) == set(turn._STEPS)
