"""`ConsumerWatch`: looks each minute for consumers of this node that have messages and readers and deliver nothing.

Such a consumer is a fault of the server that no error tells of: its clients wait, and all looks well. The rule is that
of the finding JC401 (`doctor.consumer_rules`). A look costs what is due: owners report when a run leaves messages and
readers (`Settings.unserved`), and only those are looked at. In case that an owner is not even run, a few of the others
have their turn with each look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from jetcluster.budget import BusyError, Steps
from jetcluster.replica.rounds import Background
from jetcluster.replica.services import Services
from jetcluster.store.api import DamagedError

if TYPE_CHECKING:
    from jetcluster.doctor.finding import Finding
    from jetcluster.replica.stream_replica import StreamReplica

LOOK_SECONDS: Final = 60.0
OTHERS_PER_LOOK: Final = 256
"""Consumers looked at although nothing is due, in turn."""
MAX_LINES: Final = 20
"""Consumers of one look that the log names; the others are counted."""

Place = tuple[int, int]
"""(stream's group, consumer id)"""


class ConsumerWatch:
    """One per node; `tick` runs a few times per second."""

    def __init__(self, services: Services, replicas: Mapping[int, StreamReplica], background: Background) -> None:
        self.stuck: dict[Place, Finding] = {}
        """The consumers that the last look found stuck (monitoring)."""
        self._runtime, self._me = services.runtime, services.network.name
        self._unserved = services.settings.unserved
        self._replicas = replicas
        self._background = background
        self._at = self._runtime.clock.monotonic() + LOOK_SECONDS
        self._others: Iterator[Place] = iter(())

    def tick(self) -> None:
        now = self._runtime.clock.monotonic()
        if now >= self._at:
            self._at = now + LOOK_SECONDS
            self._background.spawn(self._look())

    async def _look(self) -> None:
        try:
            found = await self._runtime.budget.run(("watch", "consumers"), self._found())
        except BusyError:
            return  # the next look is in a minute
        before, self.stuck = self.stuck, found
        self._tell(before)

    def _found(self) -> Steps[dict[Place, Finding]]:
        due = dict.fromkeys([*self._unserved, *self.stuck, *self._some_others()])
        found: dict[Place, Finding] = {}
        for place in due:
            if finding := self._judged(place):
                found[place] = finding
            yield
        return found

    def _some_others(self) -> list[Place]:
        some = list(islice(self._others, OTHERS_PER_LOOK))
        if not some:
            self._others = self._all()
            some = list(islice(self._others, OTHERS_PER_LOOK))
        return some

    def _all(self) -> Iterator[Place]:
        for gid in list(self._replicas):
            replica = self._replicas.get(gid)
            yield from [(gid, cid) for cid in (replica.consumers.running if replica is not None else ())]

    def _judged(self, place: Place) -> Finding | None:
        from jetcluster.cluster.consumer_facts import consumer_facts
        from jetcluster.doctor import catalogue
        from jetcluster.doctor.consumer_rules import look_at_consumer

        replica = self._replicas.get(place[0])
        state = None if replica is None else replica.consumers.table.by_cid.get(place[1])
        if replica is None or state is None:
            return None
        try:
            facts = consumer_facts(replica, state, self._me, self._runtime.clock.time_ns())
        except DamagedError as error:
            replica.report_damage(error)
            return None
        if facts is None:
            return None
        if facts.oldest < 0 and place in self._unserved:  # it takes a long search, but how long it waits is known
            facts = replace(facts, oldest=self._runtime.clock.monotonic() - self._unserved[place])
        return next((one for one in look_at_consumer(facts) if one.code == catalogue.STUCK.code), None)

    def _tell(self, before: dict[Place, Finding]) -> None:
        log = self._runtime.log
        new = [finding for place, finding in self.stuck.items() if place not in before]
        for one in new[:MAX_LINES]:
            subject = one.subject
            log.error(
                "a consumer delivers nothing although messages and a reader wait",
                account=subject.account, stream=subject.stream, consumer=subject.consumer, reason=one.why,
            )  # fmt: skip
        if len(new) > MAX_LINES:
            log.error("more consumers deliver nothing", number=len(new) - MAX_LINES)
        gone = [finding for place, finding in before.items() if place not in self.stuck]
        for one in gone[:MAX_LINES]:
            log.warning("a consumer does not wait any more", stream=one.subject.stream, consumer=one.subject.consumer)
