"""Replicas agree wherever one restarts, or takes the state of another one over, sealed or not: with random commands,
while jobs are open."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.sealed_kv import SealedKv
from jetcluster.store.slices import Step
from jetcluster.stream.log import commands
from jetcluster.stream.log.commands import UnknownCommandError
from testkit.twins.encryption import store_seal
from testkit.twins.mem_kv import MemKv
from tests.unit.store.shipping import ship
from tests.unit.stream.extremes import COMMANDS, T0, Extremes
from tests.unit.stream.test_no_command_raises import Replica

pytestmark = pytest.mark.thorough

SMALL = Step(subjects=2, messages=3, looked=4, blocks=2, size=400, cut=3, cut_blocks=2, rest=1)
OFTEN = (
    commands.PUBLISH, commands.PUBLISH, commands.CONSUMER_TURN, commands.CONSUMER_CREATE, commands.CONTINUE,
    commands.PURGE, commands.UPDATE_CONFIG,
)  # fmt: skip
GUARDS = (
    None,
    {"consumer": "c1", "max_bytes": 600, "max_age": 2_000_000_000, "discard": "old"},
    {"consumer": "c1", "max_bytes": 2000, "max_age": 0, "discard": "new"},
)
COMMANDS_EACH = 60


class SmallReplica(Replica):
    """Its pieces of long commands are small. A store of its own `kv` is opened anew, as are all."""

    def __init__(self, log: list[bytes], kv: RocksKv) -> None:
        self._kv = kv
        super().__init__(log)

    def open(self) -> None:
        self.kv = self._kv
        super().open()
        self.store.slices.step = SMALL

    def install(self, source: Replica) -> None:
        source.kv.commit()
        ship(source.store.export(), self.store, self.kv)
        self.machine.reload()
        self.kv.commit()


def wished(random: Random) -> dict[str, Any]:
    """A configuration with parts that depend on each other."""
    found = {
        "allow_rollup_hdrs": True, "allow_msg_ttl": True, "allow_batched": True, "allow_atomic": True,
        "retention": random.choice(("limits", "interest", "workqueue")), "retention_guard": random.choice(GUARDS),
        "max_msgs_per_subject": random.choice((0, 2, 3)), "max_bytes": random.choice((0, 700, 3000)),
        "duplicate_window": random.choice((0, 10**9, 10**11)),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def agree(one: Replica, other: Replica) -> None:
    assert one.machine.hash == other.machine.hash, len(one.log)
    assert one.store.state == other.store.state, len(one.log)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
@example(seed=112)  # one update left jobs in another order than that of their rows
@example(seed=137)
def test_replicas_agree_wherever_one_restarts_or_takes_the_state_over(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    sealed = SealedKv(tmp_path_factory.mktemp("sealed") / Path("data"), store_seal())
    try:
        carry_out(Random(seed), sealed)
    finally:
        sealed.close()


def carry_out(random: Random, sealed: RocksKv) -> None:
    extremes = Extremes(random)
    config = {"name": "S", "subjects": ["a.>", "b", "c.>"], **wished(random)}
    log = [commands.encode_update_config(T0, config)]
    goes_on, restarts, takes = (SmallReplica(log, kv) for kv in (MemKv(), MemKv(), sealed))
    kinds = sorted(COMMANDS)
    for _ in range(COMMANDS_EACH):
        if random.random() < 0.05:
            more = {"name": "S", "subjects": ["a.>", "b", "c.>"], **wished(random)}
            log.append(commands.encode_update_config(extremes.ts, more))
        else:
            log += extremes.command(random.choice((*OFTEN, random.choice(kinds))))
        try:
            goes_on.catch_up()
        except UnknownCommandError:  # by chance one of a newer version: all would stop
            del log[goes_on.machine.applied_index :]
            goes_on.restart()
        for replica in (restarts, takes):
            replica.catch_up()
            agree(goes_on, replica)
        for replica, chance in ((goes_on, 0.1), (restarts, 0.2), (takes, 0.1)):
            if random.random() < chance:
                replica.kv.commit()
        if random.random() < 0.15:
            restarts.restart()
        if random.random() < 0.1:
            takes.install(random.choice((goes_on, restarts)))
        if random.random() < 0.03:
            restarts.install(takes)
    for replica in (restarts, takes):
        agree(goes_on, replica)
        assert sorted(replica.rows()) == goes_on.rows()
    assert not goes_on.recoveries
