"""`Membership`: a replica as a member of the queue group that answers Direct Get for a stream; `Reads`, all of them.

The leader answers as soon as it leads. A follower joins once it has applied everything that the leader had committed
when asked (its own idea of the commit index proves nothing after a restart: a replica that missed the newest value
would serve the older one), leaves when it falls far behind, and joins again the same way.

A replica answers for its own stream, and one of a mirror for the upstream too: there is one membership for each name,
and an `AskedStream` says what differs between them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Protocol

from jetcluster.mirror.links import Links
from jetcluster.protocol.bus import Callback, Origin, Subscription
from jetcluster.replica.reads.answers import Answers
from jetcluster.replica.reads.confirm import ReadConfirmations, ReadWaits, confirmed_commit
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.store.api import DamagedError
from jetcluster.stream.lead.ingest import OPEN_INDEX, Ingest

QUEUE = b"_sys_"
LAST = "LAST"
"""No stream's name, unless there is one: see `Membership.take_alias`."""
PREFIX = b"$JS.API.DIRECT.GET."
ADDRESSED = b"$JS.API.DIRECT.PEER."
"""`<stream>.<server name>` follows, and the replica on that server answers (ours, docs/compatibility.md)."""
MAX_LAG = 8192
"""Log entries a follower may be behind before it leaves the group."""
LEADERLESS_SECONDS = 10.0
"""A follower connected with a majority that knew of no leader for so long leaves the group: elections take less, and
one that was removed without hearing of it never has one again. One that is cut off goes on: others may have less."""
ARRIVAL_TURNS = 8
"""Turns of the loop that a read at a mirror waits for what its upstream on this node has stored to come: a delivery
takes three. It may also not come, as flow control or a limit is in the way."""
TIMED_EVERY = 32
"""One of so many requests is timed; a power of two."""


class AskedStream(Protocol):
    """The stream that a membership answers for: the replica's own, or the upstream of a mirror."""

    may_change: bool
    """The answers to `allows` and `is_another` may change without a change of the configuration: they are looked at in
    every tick, and for every request."""

    @property
    def name(self) -> str:
        """Its name; asked for only while `allows`."""
        ...

    @property
    def role(self) -> str:
        """The replica's role, by which the times of answers are told."""
        ...

    @property
    def is_another(self) -> bool:
        """The stream of that name is not the one that this replica has the messages of."""
        ...

    def allows(self, joined: bool) -> bool:
        """This replica may answer for it. `joined`: it does so now."""
        ...

    def confirms(self, origin: Origin, payload: bytes) -> bool:
        """A request of `origin` is answered only once this replica has what is confirmed to be there."""
        ...

    async def confirmed(self) -> int | None:
        """The index that must be here before such an answer; None when nobody says."""
        ...

    def reached(self) -> int:
        """The index up to which all is here, in the same measure."""
        ...


class OwnStream:
    """The stream of the replica itself."""

    may_change = False
    is_another = False

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica

    @property
    def name(self) -> str:
        return self._replica.assignment.name

    @property
    def role(self) -> str:
        return "leader" if self._replica.leading else "follower"

    def allows(self, joined: bool) -> bool:
        return self._replica.machine.rules.allow_direct

    def confirms(self, origin: Origin, payload: bytes) -> bool:
        return origin.kind == "peer"

    async def confirmed(self) -> int | None:
        return await confirmed_commit(self._replica.context, self._replica.group)

    def reached(self) -> int:
        return self._replica.group.applied_index


class Membership:
    """One replica's part in the queue group of `asked`. `links`: of the replica's stream to its upstreams. `ingest`: of
    the stream that is asked for, where that is this replica's own. `give_way`: leaves this group, and those that end
    with it, because the replica does not keep up."""

    def __init__(
        self,
        replica: ReplicaState,
        asked: AskedStream,
        answers: Answers,
        links: Links,
        ingest: Ingest | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        context = replica.context
        self.answers = answers
        self._context = context
        self._replica = replica
        self._asked = asked
        self._links = links
        self._ingest = ingest
        self._give_way = give_way or self.leave
        self._prefixes = [PREFIX]
        if context.domain:
            self._prefixes.append(b"$JS.%b.API.DIRECT.GET." % context.domain.encode())
        self._subscriptions: list[Subscription] = []
        self._aliases: list[Subscription] = []
        """While this replica is in the group and no stream is named LAST."""
        self._joined_as = ""
        self._addressed: Subscription | None = None
        """The subscription to requests that name this replica."""
        self.joining: asyncio.Task[None] | None = None
        self.waits = ReadWaits(context.clock, context.timers)
        self.arrivals = ReadWaits(context.clock, context.timers)
        """For what came from an upstream before the request."""
        self.confirmations = ReadConfirmations(context.clock, context.timers, asked.confirmed, asked.reached)
        self._requests = 0

    # ---- joining and leaving

    @property
    def joined(self) -> bool:
        return bool(self._subscriptions)

    @property
    def allowed(self) -> bool:
        return self._asked.allows(self.joined)

    def role_changed(self, leading: bool) -> None:
        self._take_addressed()
        if leading:
            self._join()
        elif self._replica.retiring or self._leaderless:
            self.leave()
        else:
            self._join_when_current()

    def config_changed(self) -> None:
        """allow_direct may have been toggled: takes effect on every member when it applies the update."""
        self._take_addressed()
        if not self.allowed:
            self.leave()
        elif self._replica.leading:
            self._join()
        else:
            self._join_when_current()

    def tick(self) -> None:
        if self._asked.may_change:
            if self.joined and not self.allowed:
                self.leave()
            elif not self.joined and self._replica.leading:
                self._join()
        self._take_addressed()
        group = self._replica.group
        if not self._replica.vouches or self._leaderless:
            self.leave()
            return
        if self._replica.leading:
            if not self.joined and group.applied_index >= group.told_index:
                self._join()  # a read had waited too long for this node's disk: see `_hand_on`
            return
        if self.joined and group.commit_index - group.applied_index > MAX_LAG:
            self.leave()
        elif not self.joined:
            self._join_when_current()

    @property
    def unsettled(self) -> bool:
        """Ticks have something to do, or to see for themselves: a mirror's lag, another replica's part in the group."""
        return self._asked.may_change or self.joining is not None or (self.allowed and not self.joined)

    @property
    def _leaderless(self) -> bool:
        """Nobody leads the group for long, as far as this replica knows, and others could: it may have been removed.
        Or its leader says that it does not lead this replica: nobody would tell it what is committed. Or others follow
        one whose log is not this one's."""
        group = self._replica.group
        if group.refused:
            return True
        since = group.passed_over_since
        if since is None:
            return False
        return group.left_out or self._context.clock.monotonic() - since > LEADERLESS_SECONDS

    def leave(self) -> None:
        """Takes no more requests; batches under way are finished."""
        self._replica.wake()
        for subscription in self._subscriptions + self._aliases:
            self._replica.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        self._aliases.clear()

    def abort(self) -> None:
        """The stored state must not be read any more. Batches under way end without an EOB, so that their readers see
        that something is missing."""
        self.leave()
        self._drop_addressed()
        self.answers.abort()
        self.arrivals.clear()
        self.waits.clear()
        self.confirmations.clear()

    def stop(self) -> None:
        self.abort()
        if self.joining is not None:
            self.joining.cancel()

    def _join(self) -> None:
        allowed = self.allowed and self._context.meta_current
        if self._replica.retiring and not self._replica.leading:
            return  # nobody tells it when its group has done without it; the leader of a move knows
        if self.joined or not allowed or not self._replica.trusted or not self._replica.vouches:
            return
        self._joined_as = self._asked.name
        name = self._joined_as.encode()
        subscribe = self._replica.bus.subscribe
        for prefix in self._prefixes:
            whole = prefix + name
            by_subject = self.answers.by_subject(len(whole) + 1)
            self._subscriptions += [
                subscribe(whole, self._when_current(self.answers.on_body), QUEUE),
                subscribe(whole + b".>", self._when_current(by_subject), QUEUE),
            ]
        self.take_alias()

    def take_alias(self) -> None:
        """`LAST.<stream>.<subject>` asks for the last message of a subject, but a stream really named LAST takes all
        such requests. One group takes both forms, and each request goes to one member of it: a replica that would not
        answer must not be there. Must be called when a stream of that name comes or goes."""
        if self._context.find_stream(self._replica.assignment.account, LAST) is not None:
            for subscription in self._aliases:
                self._replica.bus.unsubscribe(subscription)
            self._aliases.clear()
        elif self.joined and not self._aliases:
            for prefix in self._prefixes:
                alias = prefix + f"{LAST}.{self._joined_as}.".encode()
                answer = self._when_current(self.answers.by_subject(len(alias), alias=True))
                self._aliases.append(self._replica.bus.subscribe(alias + b">", answer, QUEUE))

    def _join_when_current(self) -> None:
        replica = self._replica
        if self.joined or self.joining is not None or not self.allowed:
            return
        if not replica.trusted or not replica.vouches:
            return
        if replica.group.leader is None or replica.retiring:
            return
        task = asyncio.get_running_loop().create_task(self._catch_up_and_join())
        self.joining = task
        task.add_done_callback(self._join_ended)

    def _join_ended(self, task: asyncio.Task[None]) -> None:
        self.joining = None

    async def _catch_up_and_join(self) -> None:
        """Gives up silently on any trouble: the tick tries again."""
        group = self._replica.group
        if group.leader == self._context.me:
            return
        commit = await confirmed_commit(self._context, group)
        if commit is None:
            return
        for _ in range(200):
            if group.applied_index >= commit:
                self._join()
                return
            await asyncio.sleep(0.01)

    # ---- requests that name this replica

    def _take_addressed(self) -> None:
        """Others than those of the group are answered by a replica that lags, too: they ask for what is stored here.
        Only under `$JS.API.`, never a domain's name: rules of leaf links know Direct Get by its other subjects."""
        replica = self._replica
        sound = replica.trusted and replica.vouches
        if not (self.allowed and self._context.meta_current and sound) or replica.retiring:
            self._drop_addressed()
        elif self._addressed is None and self._asked.name == replica.assignment.name:
            subject = ADDRESSED + f"{replica.assignment.name}.{self._context.name}".encode()
            self._addressed = replica.bus.subscribe(subject, self._on_addressed)

    def _drop_addressed(self) -> None:
        if self._addressed is not None:
            self._replica.bus.unsubscribe(self._addressed)
            self._addressed = None

    def _on_addressed(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """Waits like the others for what this replica knows to be committed, but nobody else can answer for it."""
        told = self._replica.group.told_index
        answer = functools.partial(self.answers.on_body, subject, reply, headers, payload, origin)
        if told <= self._replica.group.applied_index:
            answer()
        else:
            self.waits.hold(told, answer, answer)

    # ---- requests to the group

    def _when_current(self, answer: Callback) -> Callback:
        """`answer`, called once what this replica knows to be committed is applied; for requests that it confirms for,
        what the leader knows (`confirm`). What came from an upstream before the request did, or was copied from another
        stream, on its way into the log, is waited for first: the requester may have been told there that it is
        stored."""
        group, links, ingest, asked = self._replica.group, self._links, self._ingest, self._asked
        confirms = asked.confirms

        def receive(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            if asked.may_change and asked.is_another:  # the next tick is too late for a client that has created it
                self._hand_on(subject, reply, headers, payload)
                return
            self._requests += 1
            then = answer if self._requests & (TIMED_EVERY - 1) else self._timed(answer)
            if links.by_key or (ingest is not None and ingest.copied > group.applied_index):
                request = (subject, reply, headers, payload)
                go_on = functools.partial(current, then, *request, origin)
                self._when_arrived(go_on, functools.partial(self._hand_on, *request))
                return
            current(then, subject, reply, headers, payload, origin)

        def current(
            then: Callback, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
        ) -> None:
            if confirms(origin, payload):
                request = (subject, reply, headers, payload)
                self.confirmations.hold(
                    functools.partial(then, *request, origin),
                    functools.partial(self._hand_on, *request),
                    functools.partial(self.answers.refuse, reply),
                )
                return
            told = group.told_index
            if told <= group.applied_index:
                then(subject, reply, headers, payload, origin)
            else:
                request = (subject, reply, headers, payload)
                self.waits.hold(
                    told, functools.partial(then, *request, origin), functools.partial(self._hand_on, *request)
                )

        return receive

    def when_known(self, origin: Origin, go_on: Callable[[], None]) -> None:
        """`go_on`, once what `origin` may have been told is stored is here, or when that takes long."""
        group = self._replica.group
        if origin.kind == "peer" and not self._replica.leading:
            self.confirmations.hold(go_on, go_on, go_on)
        elif group.told_index > group.applied_index:
            self.waits.hold(group.told_index, go_on, go_on)
        else:
            go_on()

    def _when_arrived(self, go_on: Callable[[], None], hand_on: Callable[[], None], turns: int = ARRIVAL_TURNS) -> None:
        """`go_on` when what is under way to this stream, on this node, is stored. `hand_on`: it must not be read."""
        context = self._context
        if turns and self._links.behind(self._stored_here):
            later = functools.partial(self._when_arrived, go_on, hand_on, turns - 1)
            context.timers.call_soon(lambda: later() if self.joined else hand_on())
            return
        arrived, ingest = self._links.newest(), self._ingest
        if ingest is not None:
            if ingest.copied == OPEN_INDEX:
                ingest.flush()
            arrived = max(arrived, ingest.copied)
        if arrived > self._replica.group.applied_index:
            # Too long or too many: a copy is as old as it is. Unless this replica must not be read any more.
            self.arrivals.hold(arrived, go_on, lambda: go_on() if self.joined else hand_on())
        else:
            go_on()

    def _stored_here(self, name: str) -> int:
        found = self._context.find_stream(self._replica.assignment.account, name)
        return self._context.stored_here(found.gid) if found is not None else 0

    def _timed(self, answer: Callback) -> Callback:
        """`answer`, timed from now until its reply, or the first slice of it, has been handed to the bus."""
        start = self._context.clock.monotonic()

        def then(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            answer(subject, reply, headers, payload, origin)
            latency = self._context.read_latency[self._asked.role]
            latency.observe(self._context.clock.monotonic() - start)

        return then

    def _hand_on(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """This replica does not keep up: it leaves the group, and another member answers."""
        self._give_way()
        self._replica.bus.publish(subject, payload, reply, headers)


class Reads:
    """All memberships of one replica. `links`: of its stream to its upstreams; `ingest`: of its stream. `report_damage`
    takes a record that cannot be read. `upstream`: of a mirror."""

    def __init__(
        self,
        replica: ReplicaState,
        links: Links,
        report_damage: Callable[[DamagedError], None],
        ingest: Ingest,
        upstream: AskedStream | None = None,
    ) -> None:
        self.answers = Answers(replica, report_damage)
        """For the replica's own stream."""
        self.own = Membership(replica, OwnStream(replica), self.answers, links, ingest, self.leave)
        self.upstream: Membership | None = None
        self.memberships = [self.own]
        if upstream is not None:
            self.upstream = Membership(replica, upstream, Answers(replica, report_damage), links)
            self.memberships.insert(0, self.upstream)

    @property
    def unsettled(self) -> bool:
        return any(member.unsettled for member in self.memberships)

    def role_changed(self, leading: bool) -> None:
        for member in self.memberships:
            member.role_changed(leading)

    def config_changed(self) -> None:
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
        """Takes no more requests; batches under way are finished."""
        for member in self.memberships:
            member.leave()

    def abort(self) -> None:
        """The stored state must not be read any more, see `Membership.abort`."""
        for member in self.memberships:
            member.abort()

    def stop(self) -> None:
        for member in self.memberships:
            member.stop()

    def applied(self, index: int) -> None:
        """The replica has applied `index`: reads that waited for it are answered."""
        for member in self.memberships:
            if member.arrivals.waiting:
                member.arrivals.applied(index)
            if member.waits.waiting:
                member.waits.applied(index)
            if member.confirmations.waits.waiting:
                member.confirmations.advanced()
