"""`Reads`: all memberships of one replica (`membership`), for its own stream and for a mirror's upstream."""

from __future__ import annotations

from jetcluster.mirror.links import Links
from jetcluster.replica.reads.answers import Answers
from jetcluster.replica.reads.asked_stream import AskedStream, OwnStream
from jetcluster.replica.reads.membership import Membership
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.services import Settings
from jetcluster.stream.lead.ingest import Ingest


class Reads:
    """All memberships of one replica. `links`, `ingest`: its stream's. `upstream`: a mirror's."""

    def __init__(
        self,
        replica: ReplicaState,
        settings: Settings,
        links: Links,
        ingest: Ingest,
        upstream: AskedStream | None = None,
    ) -> None:
        self.answers = Answers(replica, settings)
        """Answers for the replica's own stream."""
        self._replica = replica
        self._stream = OwnStream(replica, settings.domain)
        self.own = Membership(replica, settings, self._stream, self.answers, links, ingest, self.leave)
        self.upstream: Membership | None = None
        self.memberships = [self.own]
        if upstream is not None:
            self.upstream = Membership(replica, settings, upstream, Answers(replica, settings), links)
            self.memberships.insert(0, self.upstream)
            (age,) = self.upstream.demands.ages
            age = age._replace(counts=lambda: upstream.is_copied_whole, lost=lambda: upstream.is_replaced)
            self.own.demands.ages.append(age)
        self.queues = [queue for member in self.memberships for queue in member.queues]
        """The reads that wait; `applied` must be called while there are any."""

    @property
    def unsettled(self) -> bool:
        return any(member.unsettled for member in self.memberships)

    def role_changed(self, leading: bool) -> None:
        for member in self.memberships:
            member.role_changed(leading)

    def config_changed(self) -> None:
        self._stream.configure()
        for member in self.memberships:
            member.config_changed()
        if not self.own.allowed:
            self.leave()

    def take_alias(self) -> None:
        for member in self.memberships:
            member.take_alias()

    def tick(self) -> None:
        for member in self.memberships:
            member.tick()

    def leave(self) -> None:
        """See `Membership.leave`."""
        for member in self.memberships:
            member.leave()

    def abort(self) -> None:
        """See `Membership.abort`."""
        for member in self.memberships:
            member.abort()

    def stop(self) -> None:
        for member in self.memberships:
            member.stop()

    def applied(self, index: int) -> None:
        """Answer the reads that waited for `index`, which is applied."""
        for member in self.memberships:
            member.arrivals.applied(index)
            member.waits.applied(index)
            if member.confirmations.waits.waiting:
                member.confirmations.advanced()
            if member.bounds.waits.waiting:
                member.bounds.advanced()
            if member.demands.sequences.waiting:
                member.demands.sequences.reached(self._replica.store.last_seq)
