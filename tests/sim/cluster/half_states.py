"""States that are not whole, at the moment at which each begins to be one: nobody reads of a state that is replaced, a
replica that met damage in the middle of a command has nothing of it, and no state that was on its way here counts as
one after its data store was renewed. The harm takes a client that reads right then, or a second accident."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jetcluster.node import data_renewal
from jetcluster.replica.applying import Applying
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.store import keys
from jetcluster.store.rocks_kv import RocksKv
from testkit.sim.deployment import Deployment
from tests.sim.cluster.flushes import applied, pair

if TYPE_CHECKING:
    from jetcluster.replica.replica_state import ReplicaState


class HalfStates:
    """It tells `deployment.failed` of half states that somebody has or reads."""

    def __init__(self, deployment: Deployment) -> None:
        self.replaced = self.set_aside = self.renewed = 0
        """Counts what was looked at."""
        self._deployment = deployment

    def begins(self, replica: StreamReplica, lives: list[int]) -> None:
        """The state of the replica is going to be replaced. `lives`: those of its readers before."""
        self.replaced += 1
        if any(before == now for before, now in zip(lives, lives_of(replica), strict=True)):
            self._broken(f"{replica.assignment.name} on {_place(replica)} is replaced: batches of before would go on")
        for member in replica.reads.memberships:
            under_way = member.answers.pages.streaming + member.answers.searching
            waiting = sum(len(queue) for queue in member.queues)
            if member.joined or under_way or waiting:
                what = f"{under_way} reads are under way, {waiting} wait, and more are taken: {member.joined}"
                self._broken(f"{replica.assignment.name} on {_place(replica)} is replaced: {what}")

    def stops(self, replica: ReplicaState) -> None:
        """The replica has met damage, and waits for another one's state."""
        kv = replica.commits.kv
        if isinstance(kv, RocksKv):
            self.set_aside += 1
            mine, its = replica.machine.applied_index, applied(kv, _values(kv), replica.group.gid)
            if mine != its:
                what = f"has applied {mine} when it stops at damage, and its store {its}"
                self._broken(f"{replica.assignment.name} on {_place(replica)} {what}")

    def copied(self, old: RocksKv, stream: int) -> None:
        """All that the old data store has of a stream is in the new one."""
        self.renewed += 1
        if pair(old, _values(old), keys.stream_prefix(keys.INSTALLING, stream)) is not None:
            self._broken(f"a data store is renewed with stream {stream}, whose state was on its way")

    def _broken(self, what: str) -> None:
        self._deployment.failed(f"at {self._deployment.scheduler.now:.3f}: {what}")


def lives_of(replica: StreamReplica) -> list[int]:
    """By each group of readers, the number by which batches that are under way know that they may go on."""
    return [attrgetter("_life")(member.answers.pages) for member in replica.reads.memberships]


def _values(kv: RocksKv) -> dict[bytes, bytes]:
    values: dict[bytes, bytes] = attrgetter("_db.store.values")(kv)
    return values


def _place(replica: Any) -> str:
    return str(replica.network.name)


@contextmanager
def watched(deployment: Deployment) -> Iterator[HalfStates]:
    """All states that stop to be whole are looked at meanwhile."""
    half = HalfStates(deployment)
    begins: Callable[..., Any] = StreamReplica.snapshot_begin
    sets_aside: Callable[..., bool] = attrgetter("_set_aside")(Applying)
    copies: Callable[..., bool] = attrgetter("_copy_stream")(data_renewal)

    def snapshot_begin(self: StreamReplica) -> Any:
        lives = lives_of(self)
        taker = begins(self)
        half.begins(self, lives)
        return taker

    def set_aside(self: Applying, error: Any) -> bool:
        waits = sets_aside(self, error)
        if waits:
            half.stops(attrgetter("_replica")(self))
        return waits

    def copy_stream(old: RocksKv, new: RocksKv, stream: int) -> bool:
        whole = copies(old, new, stream)
        if whole:
            half.copied(old, stream)
        return whole

    with (
        patch.object(StreamReplica, "snapshot_begin", snapshot_begin),
        patch.object(Applying, "_set_aside", set_aside),
        patch.object(data_renewal, "_copy_stream", copy_stream),
    ):
        yield half
