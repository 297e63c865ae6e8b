"""`Membership`: a replica as a member of the queue group that answers Direct Get for a stream.

A leader answers as soon as it leads. A follower joins once it has applied all that the leader had committed when asked:
after a restart the follower's own commit index proves nothing, and a stale value could be served. It leaves when it
lags far, and joins again in the same way.

A replica answers for its own stream, and a mirror's for the upstream too. Each name has a membership, and an
`AskedStream` holds the differences.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from math import inf

from jetcluster.mirror.links import Links
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Outgoing, Subscription
from jetcluster.replica.read_memory import MAX_MEMBER_BYTES, MAX_SLOW_MEMBER_BYTES, ReadMemory
from jetcluster.replica.reads.answers import Answering, Answers
from jetcluster.replica.reads.asked_stream import AskedStream
from jetcluster.replica.reads.confirm import ReadConfirmations, confirmed_commit
from jetcluster.replica.reads.demands import Demands
from jetcluster.replica.reads.runs import RunKind, Runs, no_body, plain_body
from jetcluster.replica.reads.waits import DueReads, ReadAround, ReadWaits, size_of
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.services import Settings
from jetcluster.store.api import DamagedError
from jetcluster.stream.lead.ingest import OPEN_INDEX, Ingest
from jetcluster.stream.read import freshness
from jetcluster.stream.read.freshness import Freshness, FreshnessError
from jetcluster.stream.rules import STRONG, WEAK

QUEUE = b"_sys_"
LAST = "LAST"
"""An alias, unless a stream has this name: see `Membership.take_alias`."""
PREFIX = b"$JS.API.DIRECT.GET."
ADDRESSED = b"$JS.API.DIRECT.PEER."
"""`<stream>.<server name>` follows, and the replica on that server answers (ours, docs/compatibility.md)."""
BY_LEADER = b"DIRECT_LEADER.GET."
"""In the place of `DIRECT.GET.`: the stream's leader answers, as if the request asked for linearizable."""
_LINEARIZABLE = Freshness(consistency=freshness.LINEARIZABLE)
MAX_LAG_ENTRIES = 8192
"""Log entries that a follower may lag before it leaves the group."""
LEADERLESS_SECONDS = 10.0
"""A follower that is connected with a majority and has had no leader for this time leaves the group: elections take
less, and a follower that was removed unawares never has one again. An isolated follower stays: others may have less."""
ARRIVAL_TURNS = 8
"""Turns of the loop that a read at a mirror waits for messages that its upstream has stored on this node. A delivery
takes three; flow control or a limit may keep it away."""
LOOK_SECONDS = 1.0
"""Between two questions of a mirror's replica for its upstream's last sequence; more if a node has more than 100."""
TIMED_EVERY = 32
"""One of this many requests is timed; a power of two."""


class Membership:
    """One replica as a member of the queue group of `asked`. `links`: its links to upstreams. `ingest`: the stream's,
    where that is this replica's own. `give_way` leaves this group, and those that end with it, when it lags too far."""

    def __init__(
        self,
        replica: ReplicaState,
        settings: Settings,
        asked: AskedStream,
        answers: Answers,
        links: Links,
        ingest: Ingest | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        self.answers = answers
        self._known, self._network = replica.known, replica.network
        runtime = self._runtime = replica.runtime
        self._replica = replica
        self._asked = asked
        self._links = links
        self._ingest = ingest
        self._give_way = give_way or self.leave
        self._prefixes = [PREFIX]
        if settings.domain:
            self._prefixes.append(b"$JS.%b.API.DIRECT.GET." % settings.domain.encode())
        self._subscriptions: list[Subscription] = []
        self._aliases: list[Subscription] = []
        """Subscriptions to the alias, while this replica is joined and no stream is named LAST."""
        self._joined_as = ""
        self._addressed: Subscription | None = None
        """The subscription to requests that name this replica."""
        self._by_leader: list[Subscription] = []
        """Those to requests that only the leader answers."""
        self.joining: asyncio.Task[None] | None = None
        memory = ReadMemory(MAX_MEMBER_BYTES, settings.read_memory)
        slow_memory = ReadMemory(MAX_SLOW_MEMBER_BYTES, settings.slow_read_memory)
        due = DueReads(runtime.clock, runtime.timers, self._stop_replica, slow_memory, replica.bus.backlog)
        around = ReadAround(runtime.clock, runtime.timers, due, memory)
        self.waits = ReadWaits(around)
        self.arrivals = ReadWaits(around)
        """Reads that wait for messages which came from an upstream before the request."""
        self.confirmations = ReadConfirmations(
            around, asked.confirmed, asked.reached, asked.tell if asked.answers_unled else None, settings.clock_drift,
            self._gives_way if asked.answers_unled else None,
        )  # fmt: skip
        self._runs = Runs(
            self.confirmations, self.waits, lambda one: self._hand_on(*one), answers.refuse, answers.refuse_more,
            lambda: replica.trusted,
        )  # fmt: skip
        self.bounds = self.confirmations
        """Proofs of the age of what is here."""
        if asked.looks is not None:
            self.bounds = ReadConfirmations(around, asked.heard, asked.reached, clock_drift=settings.clock_drift)
        self.demands = Demands(replica, around, asked, answers, self.waits, self.confirmations, self.bounds)
        self.queues = (
            self.waits.waiting, self.arrivals.waiting, self.confirmations.waits.waiting, self.bounds.waits.waiting,
            self.demands.sequences.waiting,
        )  # fmt: skip
        self._looks_at = 0.0
        """When the next turn to look is asked for; infinite while one is awaited."""
        self._stopped = False
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
        """Join or leave: the update that was just applied may have changed allow_direct."""
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
        if self._asked.looks is not None and self._runtime.clock.monotonic() >= self._looks_at:
            self._looks_at = inf
            self._asked.looks.turn(self._runtime.timers, self, self._look)
        self._take_addressed()
        group = self._replica.group
        if not self._replica.may_answer or self._leaderless:
            self.leave()
            return
        if self._replica.leading:
            if not self.joined and group.applied_index >= group.told_index:
                self._join()  # the leader had left because a read waited too long for its disk: see `_hand_on`
            return
        if self.joined and group.commit_index - group.applied_index > MAX_LAG_ENTRIES:
            self.leave()
        elif not self.joined:
            self._join_when_current()

    def _look(self) -> None:
        """Learn how old the mirror is, so that this is known when its upstream cannot be asked."""
        self._looks_at = self._runtime.clock.monotonic() + LOOK_SECONDS
        rules = self._replica.machine.rules
        if (rules.allow_direct or rules.mirror_direct) and self._asked.is_copied_whole and not self._stopped:
            self.bounds.look()

    @property
    def unsettled(self) -> bool:
        """True while ticks have work, or must watch for it, such as a mirror's lag."""
        return self._asked.may_change or self.joining is not None or (self.allowed and not self.joined)

    @property
    def _leaderless(self) -> bool:
        """True when this replica would not hear of commits: it has had no leader for long while others could have one
        (it may have been removed), its leader leaves it out, or the others' leader has a log that contradicts this."""
        group = self._replica.group
        if group.refused:
            return True
        since = group.passed_over_since
        if since is None:
            return False
        return group.left_out or self._runtime.clock.monotonic() - since > LEADERLESS_SECONDS

    def leave(self) -> None:
        """Take no more requests; batches in progress are finished."""
        self._replica.wake()
        for subscription in self._subscriptions + self._aliases:
            self._replica.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        self._aliases.clear()

    def abort(self) -> None:
        """Stop reading the stored state. Batches in progress end without an EOB, so that readers see it."""
        self.leave()
        self._drop_addressed()
        self.answers.abort()
        self._runs.clear()
        self.arrivals.clear()
        self.waits.clear()
        self.confirmations.clear()
        self.bounds.clear()
        self.demands.clear()

    def stop(self) -> None:
        self._stopped = True
        self.abort()
        if self.joining is not None:
            self.joining.cancel()

    def _join(self, *, again: bool = False) -> None:
        """Join if that is allowed; `again`: as for a member, which may lag further."""
        allowed = self._asked.allows(again or self.joined) and self._known.current
        if self._replica.retiring and not self._replica.leading:
            return  # it would not learn when its group goes on without it; the leader of a move does
        if self.joined or not allowed or not self._replica.trusted or not self._replica.may_answer:
            return
        self._joined_as = self._asked.name
        name = self._joined_as.encode()
        answers, subscribe = self.answers, self._replica.bus.subscribe
        bodies = RunKind(plain_body, answers.on_bodies, answers.on_body)
        body = self._when_current(answers.on_body, bodies)
        for prefix in self._prefixes:
            whole = prefix + name
            by_subject = answers.by_subject(len(whole) + 1)
            keys = RunKind(no_body, answers.by_subjects(len(whole) + 1, by_subject), by_subject)
            key = self._when_current(by_subject, keys)
            self._subscriptions += [
                subscribe(whole, body, QUEUE, bulk=self._when_all_current(bodies, body)),
                subscribe(whole + b".>", key, QUEUE, bulk=self._when_all_current(keys, key)),
            ]
        self.take_alias()

    def take_alias(self) -> None:
        """Subscribe to `LAST.<stream>.<subject>`, which asks for the last message of a subject, unless a stream is
        named LAST: that stream takes all such requests. Each request goes to one member of the group, so a replica that
        would not answer must not be in it. Call this when a stream of that name comes or goes."""
        if self._known.machine.assignment(self._replica.assignment.account, LAST) is not None:
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
        if not replica.trusted or not replica.may_answer:
            return
        if replica.group.leader is None or replica.retiring:
            return
        task = asyncio.get_running_loop().create_task(self._catch_up_and_join())
        self.joining = task
        task.add_done_callback(self._join_ended)

    def _join_ended(self, task: asyncio.Task[None]) -> None:
        self.joining = None

    async def _catch_up_and_join(self) -> None:
        """Give up silently on any trouble: the next tick tries again."""
        group = self._replica.group
        if group.leader == self._network.me:
            return
        commit = await confirmed_commit(self._network, group)
        if commit is None:
            return
        for _ in range(200):
            if group.applied_index >= commit:
                self._join()
                return
            await asyncio.sleep(0.01)

    # ---- requests that name this replica

    def _take_addressed(self) -> None:
        """Subscribe to requests that name stream and replica, answered although it lags: they ask for what is stored
        here. Only under `$JS.API.`, never a domain's prefix: rules of leaf links match Direct Get's other subjects."""
        replica = self._replica
        sound = replica.trusted and replica.may_answer
        self._take_leaders(replica.leading and sound and self.allowed and self._known.current)
        if not (self.allowed and self._known.current and sound) or replica.retiring:
            self._drop_addressed()
        elif self._addressed is None and self._ingest is not None:
            subject = ADDRESSED + f"{replica.assignment.name}.{self._network.name}".encode()
            self._addressed = replica.bus.subscribe(subject, self._on_addressed)

    def _take_leaders(self, wanted: bool) -> None:
        """Subscribe to, or leave, the requests that only the stream's leader answers, after a proof that it leads."""
        if not wanted or self._ingest is None:
            for subscription in self._by_leader:
                self._replica.bus.unsubscribe(subscription)
            self._by_leader.clear()
        elif not self._by_leader:
            subscribe = self._replica.bus.subscribe
            for prefix in self._prefixes:
                whole = prefix.removesuffix(b"DIRECT.GET.") + BY_LEADER + self._replica.assignment.name.encode()
                by_subject = self.answers.by_subject(len(whole) + 1)
                self._by_leader += [
                    subscribe(whole, self._proving(self.answers.on_body)),
                    subscribe(whole + b".>", self._proving(by_subject)),
                ]

    def _proving(self, answering: Answering) -> Callback:
        """Return `answering` wrapped so that a request is answered as if it asked for linearizable."""

        def receive(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            request = subject, reply, headers, payload
            wanted = self._wishes(request)
            if wanted is not None:
                self.demands.take(wanted.stricter(_LINEARIZABLE), answering, request, origin)

        return receive

    def _wishes(self, request: Outgoing) -> Freshness | None:
        """The wishes of a request; None when it is refused for them."""
        try:
            return freshness.of(request[2], request[3]) or freshness.ANY
        except FreshnessError as error:
            self.answers.reject(request[1], error)
            return None

    def _drop_addressed(self) -> None:
        self._take_leaders(False)
        if self._addressed is not None:
            self._replica.bus.unsubscribe(self._addressed)
            self._addressed = None

    def _on_addressed(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """Answer after the known commit index is applied, as for the group; no other replica can answer instead."""
        told = self._replica.group.told_index
        then: Callback = self.answers.on_body
        if headers:  # wishes of the body alone come up when it is answered
            wanted = self._wishes((subject, reply, headers, payload))
            if wanted is None:
                return
            if wanted is not freshness.ANY:
                then = self._after_default(wanted, self.answers.on_body)
        answer = functools.partial(then, subject, reply, headers, payload, origin)
        if told <= self._replica.group.applied_index:
            answer()
            return
        refuse = functools.partial(self.answers.refuse, reply)
        if not self.waits.hold(told, answer, answer, reply, size_of((subject, reply, headers, payload)), refuse):
            self.answers.refuse_more(reply)

    # ---- requests to the group

    def _when_current(self, answer: Answering, kind: RunKind | None = None) -> Callback:
        """Return `answer` wrapped so that it is called once this replica has applied its known commit index, or the
        leader's where a confirmation is needed (`confirm`). Messages from an upstream, or copied from another stream,
        that are on their way into the log are awaited first: their publisher may have been acked there. `kind`: of the
        runs of what comes one by one from another node."""
        group, links, ingest, asked = self._replica.group, self._links, self._ingest, self._asked
        confirms = asked.confirms

        def receive(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            if asked.may_change and asked.is_another:  # for the client that created it, the next tick is too late
                self._hand_on(subject, reply, headers, payload)
                return
            self._requests += 1
            then: Callback = answer if self._requests & (TIMED_EVERY - 1) else self._timed(answer)
            if headers:
                wanted = self._wishes((subject, reply, headers, payload))
                if wanted is None:
                    return
                if wanted.replaces_default:
                    self.demands.take(wanted, answer, (subject, reply, headers, payload), origin)
                    return
                if wanted is not freshness.ANY:
                    then = self._after_default(wanted, answer)
            if links.by_key or (ingest is not None and ingest.copied > group.applied_index):
                request = (subject, reply, headers, payload)
                go_on = functools.partial(current, then, *request, origin)
                self._when_arrived(go_on, request)
                return
            current(then, subject, reply, headers, payload, origin)

        def current(
            then: Callback, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
        ) -> None:
            if confirms(origin, payload):
                request = (subject, reply, headers, payload)
                strict = asked.consistency == STRONG
                gathers = bool(reply) and not headers and origin.kind == "peer"
                if gathers and kind is not None and self._runs.gather(request, origin, kind, strict=strict):
                    return
                if payload and not headers and self._taken(answer, request, origin):
                    return
                if not self.confirmations.hold(
                    functools.partial(then, *request, origin),
                    functools.partial(self._hand_on, *request),
                    functools.partial(self.answers.refuse, reply),
                    origin,
                    reply,
                    strict=strict,
                    size=size_of(request),
                ):
                    self.answers.refuse_more(reply)
                return
            told = group.told_index
            if told <= group.applied_index or asked.consistency == WEAK:
                then(subject, reply, headers, payload, origin)
            else:
                request = (subject, reply, headers, payload)
                if payload and not headers and self._taken(answer, request, origin):
                    return
                later = functools.partial(then, *request, origin)
                hand_on = functools.partial(self._hand_on, *request)
                refuse = functools.partial(self.answers.refuse, reply)
                if not self.waits.hold(told, later, hand_on, reply, size_of(request), refuse):
                    self.answers.refuse_more(reply)

        return receive

    def _taken(self, answer: Answering, request: Outgoing, origin: Origin) -> bool:
        """True for a request without headers that does not want what its stream asks for, and is taken care of."""
        wanted = self._wishes(request)
        if wanted is not None and not wanted.replaces_default:
            return False  # other wishes of the body come up when it is answered
        if wanted is not None:
            self.demands.take(wanted, answer, request, origin)
        return True

    def _after_default(self, wanted: Freshness, answer: Answering) -> Callback:
        """Return `answer` wrapped for a request that has wishes besides what its stream asks for."""

        def then(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            self.demands.take(wanted, answer, (subject, reply, headers, payload), origin)

        return then

    def _when_all_current(self, kind: RunKind, one: Callback) -> BulkCallback:
        """Return `kind.answer` wrapped like `one`, a callback of `_when_current`, for the first requests that can be
        answered at once, or that wait for the same confirmation or index; `one` gets the first of all if those are
        none."""
        group, ingest, asked, runs = self._replica.group, self._ingest, self._asked, self._runs
        answer = kind.answer
        monotonic = self._runtime.clock.monotonic

        def receive(messages: list[Outgoing], origin: Origin) -> int:
            applied = group.applied_index
            if (
                (asked.may_change and asked.is_another)
                or (ingest is not None and ingest.copied > applied)
                or self._arriving
            ):
                one(*messages[0], origin)
                return 1
            count, told = asked.unconfirmed(origin, messages), group.told_index
            if not count or told > applied:
                if not count:
                    held = runs.hold(messages, origin, kind, strict=asked.consistency == STRONG)
                else:
                    held = asked.consistency != WEAK and runs.hold(messages[:count], origin, kind, index=told)
                if held:
                    self._requests += held
                    return held
                one(*messages[0], origin)
                return 1
            start = monotonic()
            taken = answer(messages if count == len(messages) else messages[:count], origin)
            before, self._requests = self._requests, self._requests + taken
            if before // TIMED_EVERY != self._requests // TIMED_EVERY:
                self._runtime.read_latency[asked.role].observe((monotonic() - start) / taken)
            return taken

        return receive

    def when_known(self, origin: Origin, go_on: Callable[[], None]) -> None:
        """Call `go_on` once this replica has all that `origin` may have been acked, or when that takes long."""
        group = self._replica.group
        if origin.kind == "peer" and not self._replica.leading:
            if not self.confirmations.hold(go_on, go_on, go_on):
                go_on()
        elif group.told_index > group.applied_index:
            if not self.waits.hold(group.told_index, go_on, go_on):
                go_on()
        else:
            go_on()

    @property
    def _arriving(self) -> bool:
        """True while messages from an upstream are on their way to this stream."""
        links = self._links
        if not links.by_key:
            return False
        return links.behind(self._stored_here) or links.newest() > self._replica.group.applied_index

    def _when_arrived(self, go_on: Callable[[], None], request: Outgoing, turns: int = ARRIVAL_TURNS) -> None:
        """Call `go_on` when messages on their way to this stream are stored, or hand on if it must not be read."""
        hand_on = functools.partial(self._hand_on, *request)
        if turns and self._links.behind(self._stored_here):
            later = functools.partial(self._when_arrived, go_on, request, turns - 1)
            self._runtime.timers.call_soon(lambda: later() if self.joined else hand_on())
            return
        arrived, ingest = self._links.newest(), self._ingest
        if ingest is not None:
            if ingest.copied == OPEN_INDEX:
                ingest.flush()
            arrived = max(arrived, ingest.copied)
        if arrived <= self._replica.group.applied_index:
            go_on()
            return
        # After too long a wait the copy is answered as it is, unless this replica must not be read any more.
        late: Callable[[], None] = lambda: go_on() if self.joined else hand_on()  # noqa: E731
        refuse = functools.partial(self.answers.refuse, request[1])
        if not self.arrivals.hold(arrived, go_on, late, request[1], size_of(request), refuse):
            self.answers.refuse_more(request[1])

    def _stored_here(self, name: str) -> int:
        found = self._known.machine.assignment(self._replica.assignment.account, name)
        replica = self._known.replicas.get(found.gid) if found is not None else None
        return replica.last_stored if replica is not None else 0

    def _timed(self, answer: Callback) -> Callback:
        """Return `answer` timed from now until its reply, or the first slice of it, was given to the bus."""
        start = self._runtime.clock.monotonic()

        def then(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            answer(subject, reply, headers, payload, origin)
            self._runtime.read_latency[self._asked.role].observe(self._runtime.clock.monotonic() - start)

        return then

    def _gives_way(self) -> bool:
        """True when another member takes what this one hands on: this one has left the group then. A replica that was
        no member, or would not hear of commits, does not become one."""
        was = self.joined and not self._leaderless
        self._give_way()
        if self._replica.bus.has_interest(self._prefixes[0] + self._asked.name.encode()):
            return True
        if was:
            self._join(again=True)
        return False

    def _stop_replica(self, error: BaseException) -> None:
        """Stop, or be rebuilt where only stored records are damaged."""
        if isinstance(error, DamagedError):
            self._replica.report_damage(error)
        else:
            self._replica.group.fail(error)

    def _hand_on(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Leave the group, as this replica does not keep up, and let another member answer; refuse if there is none."""
        self._give_way()
        if not self._replica.bus.publish(subject, payload, reply, headers) and reply:
            self.answers.refuse(reply)
