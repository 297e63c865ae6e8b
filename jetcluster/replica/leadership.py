"""Duties that come with the leadership of a stream: the subjects that its leader listens to, and the advisories.

The new leader sends LEADER_ELECTED, a remaining replica QUORUM_LOST, and a replica that cannot follow the others'
leader LEADER_REFUSED (ours). Each goes to the stream's account and, with that account's name, to the system account. A
group of one sends none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any, Final

from jetcluster.budget import BusyError, Job, LoopBudget, Steps
from jetcluster.model.advisory import Event, leader_elected, leader_refused, quorum_lost
from jetcluster.model.cluster_info import replica_wire
from jetcluster.protocol.bus import BulkCallback, Bus, Callback, Subscription
from jetcluster.replica.replica_info import ReplicaInfos
from jetcluster.replica.replica_state import ReplicaState, tell_both

SUBJECTS_AT_ONCE: Final = 256
SUBJECTS_PER_STEP: Final = 64
"""A step takes about a millisecond."""


class Listening:
    """The leader's subscriptions to its stream's subjects. `failed` receives the error of a subject that cannot be
    subscribed to. A stream that listens to all of its subjects holds no job in `budget`."""

    def __init__(self, bus: Bus, budget: LoopBudget, failed: Callable[[Exception], None]) -> None:
        self._bus = bus
        self._budget = budget
        self._failed = failed
        self._subscriptions: dict[bytes, Subscription] = {}
        self._job: Job[None] | None = None

    @property
    def subjects(self) -> Collection[bytes]:
        """Subjects that are subscribed to now."""
        return self._subscriptions.keys()

    @property
    def complete(self) -> bool:
        """False while some subjects are still to be subscribed to, for a moment when there are very many."""
        return self._job is None or self._job.over

    def listen(
        self,
        wanted: set[bytes],
        taker: Callable[[bytes], Callback],
        listening: Callable[[], None],
        bulk: BulkCallback | None = None,
    ) -> None:
        """Subscribe to `wanted` and to nothing else; `listening` is called when that is done, as far as it can be.
        `bulk`: of all subjects, see `Bus.subscribe`."""
        self._stop()
        for subject in sorted(self._subscriptions.keys() - wanted):
            self._bus.unsubscribe(self._subscriptions.pop(subject))
        steps = self._steps(sorted(wanted - self._subscriptions.keys()), taker, listening, bulk)
        if len(wanted) - len(self._subscriptions) > SUBJECTS_AT_ONCE:
            with contextlib.suppress(BusyError):
                account = self._bus.account
                self._job = self._budget.start(account, steps, lambda _: None, self._failed, at_once=False)
                return
            steps = self._steps(sorted(wanted - self._subscriptions.keys()), taker, listening, bulk)
        for _ in steps:
            pass

    def end(self) -> None:
        self._stop()
        for subscription in self._subscriptions.values():
            self._bus.unsubscribe(subscription)
        self._subscriptions.clear()

    def _steps(
        self,
        new: list[bytes],
        taker: Callable[[bytes], Callback],
        listening: Callable[[], None],
        bulk: BulkCallback | None,
    ) -> Steps[None]:
        for number, subject in enumerate(new, 1):
            self._subscriptions[subject] = self._bus.subscribe(subject, taker(subject), bulk=bulk)
            if number % SUBJECTS_PER_STEP == 0:
                yield
        listening()

    def _stop(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self._job = None


LOST_SECONDS: Final = 5.0
"""A group without a leader for this time is reported; elections take less."""
REPEAT_SECONDS: Final = 10.0


class Leadership:
    """The advisories about the leadership of one replica; `tick` it a few times per second."""

    def __init__(self, replica: ReplicaState, infos: ReplicaInfos) -> None:
        self._infos = infos
        self._network, self._runtime = replica.network, replica.runtime
        self._replica = replica
        self._led = False
        """The group had a leader since this process started; a quorum cannot be lost before."""
        self._lost = False
        self._tell_at: float | None = None
        """Time of the next report, while there is no leader."""
        self._refused = ""

    def elected(self) -> None:
        """Note that this replica leads now."""
        name, leader = self._replica.assignment.name, self._network.name
        self._tell(leader_elected(name, leader))

    def tick(self) -> None:
        now = self._runtime.clock.monotonic()
        refused = self._replica.group.refused
        if bool(refused) != bool(self._refused):
            self._refused = refused
            if refused:
                self._tell_refusal(refused)
        if self._replica.group.leader is not None or self._replica.retiring:
            self._led, self._lost = True, False
            self._tell_at = None
        elif self._led and self._tell_at is None:
            self._tell_at = (self._replica.group.leaderless_since or now) + LOST_SECONDS
        elif self._led and self._tell_at is not None and now >= self._tell_at:
            self._tell_at = now + REPEAT_SECONDS
            name = self._replica.assignment.name
            if not self._lost:
                self._lost = True
                self._runtime.log.warning("stream has no quorum", stream=name)
            self._tell(quorum_lost(name))

    def _tell_refusal(self, why: str) -> None:
        name = self._replica.assignment.name
        self._runtime.log.error("this replica cannot follow the leader of the others", stream=name, reason=why)
        self._tell(leader_refused(name, self._network.name, self._network.me, why))

    def _tell(self, event: Event) -> None:
        if len(self._replica.group.peers) > 1:
            tell_both(self._replica, event, replicas=self._replicas)

    def _replicas(self) -> list[dict[str, Any]]:
        return [replica_wire(info) for info in (*self._infos.others(), self._infos.own())]
