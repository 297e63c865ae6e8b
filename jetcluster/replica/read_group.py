"""A replica's membership in the queue group that answers Direct Get.

The leader answers as soon as it leads. A follower joins once it has applied everything that the leader had committed
when asked (its own idea of the commit index proves nothing after a restart: a replica that missed the newest value
would serve the older one), leaves when it falls far behind, and joins again the same way.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator
from typing import Protocol

from jetcluster.budget import BusyError, Steps
from jetcluster.mirror.links import Links
from jetcluster.protocol.bus import Callback, Origin, Subscription
from jetcluster.protocol.subjects import is_literal
from jetcluster.replica.read_confirm import ReadConfirmations, ReadWaits, confirmed_commit
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.store.api import DamagedError, LostViewError
from jetcluster.store.kv import KvError
from jetcluster.stream.direct_get import Answer, DirectGet, Frame
from jetcluster.stream.ingest import OPEN, Ingest

QUEUE = b"_sys_"
LAST = "LAST"
"""No stream's name, unless there is one: see `ReadGroup.take_alias`."""
PREFIX = b"$JS.API.DIRECT.GET."
ADDRESSED = b"$JS.API.DIRECT.PEER."
"""`<stream>.<server name>` follows, and the replica on that server answers (ours, docs/compatibility.md)."""
MAX_LAG = 8192
"""Log entries a follower may be behind before it leaves the group."""
LEADERLESS_SECONDS = 10.0
"""A follower connected with a majority that knew of no leader for so long leaves the group: elections take less, and
one that was removed without hearing of it never has one again. One that is cut off goes on: others may have less."""
SLICE_BYTES = 256 * 1024
"""Reply bytes of one batch per loop turn: other clients are served in between."""
MAX_BACKLOG = 1024 * 1024
BACKLOG_PAUSE = 0.001
LONGEST_PAUSE = 0.008
"""A batch goes on once the requester's connection has no more than so many bytes waiting, looked at so often. A fast
reader has taken them within a millisecond; one that has not is looked at less often."""
RENEWAL = 1.0
LONGEST_FROZEN = 30.0
"""Seconds. The data store's snapshot for a batch that waits is taken anew so often, so that it keeps little that is
gone; a batch whose reader is slower than this over data that is gone ends without an EOB."""
MAX_STREAMING = 64
"""Batches being sent at once per replica; more are refused like by a replica that is not there (the client retries)."""
MAX_SEARCHES = 1000
MAX_SEARCH_BYTES = 16 << 20
"""So many requests may take some looking at once per replica, and so large ones together; more are refused likewise."""
ARRIVAL_TURNS = 8
"""Turns of the loop that a read at a mirror waits for what its upstream on this node has stored to come: a delivery
takes three. It may also not come, as flow control or a limit is in the way."""
TIMED_EVERY = 32
"""One of so many requests is timed; a power of two."""

_BUSY = b"NATS/1.0 503\r\n\r\n"


class Paged(Protocol):
    """A reply that is sent piece by piece: `direct_get.GetReply`, `objects.catalog.Content`."""

    done: bool

    @property
    def frozen(self) -> bool: ...

    def take(self, size: int) -> list[Frame]: ...

    def hold(self) -> None: ...

    def close(self) -> None: ...


class _Stream:
    """One batch under way."""

    __slots__ = ("answer", "frozen_at", "held_at", "life", "pause", "reply")

    def __init__(self, life: int, reply: bytes, answer: Paged) -> None:
        self.life = life
        self.reply = reply
        self.answer = answer
        self.pause = BACKLOG_PAUSE
        self.held_at = -RENEWAL
        """When `hold` was called after the last slice, or again; earlier than that when it was not."""
        self.frozen_at = 0.0


class ReadGroup:
    """One replica's part in the queue group. `links`: of the stream to its upstreams. `report_damage` takes a record
    that cannot be read. `ingest`: of the stream that is asked for, where that is this replica's own."""

    def __init__(
        self,
        replica: ReplicaState,
        links: Links,
        report_damage: Callable[[DamagedError], None],
        ingest: Ingest | None = None,
    ) -> None:
        context = replica.context
        self._ingest = ingest
        self._context = context
        self._replica = replica
        self._links = links
        self._report_damage = report_damage
        self._reader = DirectGet(replica.assignment.name, replica.store, context.name, self._excludes_instant)
        self._prefixes = [PREFIX]
        if context.domain:
            self._prefixes.append(b"$JS.%b.API.DIRECT.GET." % context.domain.encode())
        self._subscriptions: list[Subscription] = []
        self._aliases: list[Subscription] = []
        """While this replica is in the group and no stream is named LAST."""
        self._joining: asyncio.Task[None] | None = None
        self._waits = ReadWaits(context.clock, context.timers)
        self._arrivals = ReadWaits(context.clock, context.timers)
        """For what came from an upstream before the request."""
        self._confirmations = self._make_confirmations()
        self._streaming = 0
        self._searches: dict[object, int] = {}
        """Under way; how large the requests are."""
        self._life = 0
        """Batches of an earlier one are not continued."""
        self._requests = 0
        self.answered = 0
        """Requests answered (monitoring)."""
        self._joined_as = ""
        self._addressed: Subscription | None = None
        """The subscription to requests that name this replica."""
        self.upstream: ReadGroup | None = None
        """A mirror's part in the group of its upstream, which joins and leaves together with this one."""

    def _make_confirmations(self) -> ReadConfirmations:
        context, replica = self._context, self._replica

        async def committed() -> int | None:
            return await confirmed_commit(context, replica.group)

        return ReadConfirmations(context.clock, context.timers, committed, lambda: replica.group.applied_index)

    def _confirms(self, origin: Origin, payload: bytes) -> bool:
        """A request of `origin` is answered only once this replica has what is confirmed to be there."""
        return origin.kind == "peer"

    def _excludes_instant(self) -> bool:
        return self._context.compat.up_to_time == "exclusive"

    @property
    def _name(self) -> str:
        """The name of the stream that is asked for."""
        return self._replica.assignment.name

    @property
    def _allowed(self) -> bool:
        return self._replica.machine.rules.allow_direct

    @property
    def joined(self) -> bool:
        return bool(self._subscriptions)

    def role_changed(self, leading: bool) -> None:
        if self.upstream is not None:
            self.upstream.role_changed(leading)
        self._take_addressed()
        if leading:
            self._join()
        elif self._replica.retiring or self._leaderless:
            self.leave()
        else:
            self._join_when_current()

    def config_changed(self) -> None:
        """allow_direct may have been toggled: takes effect on every member when it applies the update."""
        if self.upstream is not None:
            self.upstream.config_changed()
        self._take_addressed()
        if not self._allowed:
            self.leave()
        elif self._replica.leading:
            self._join()
        else:
            self._join_when_current()

    def tick(self) -> None:
        if self.upstream is not None:
            self.upstream.tick()
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
        return self.upstream is not None or self._joining is not None or (self._allowed and not self.joined)

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
        if self.upstream is not None:
            self.upstream.leave()
        for subscription in self._subscriptions + self._aliases:
            self._replica.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        self._aliases.clear()

    def abort(self) -> None:
        """The stored state is not to be read any more. Batches under way end without an EOB, so that their readers see
        that something is missing."""
        if self.upstream is not None:
            self.upstream.abort()
        self.leave()
        self._drop_addressed()
        self._life += 1
        self._streaming = 0
        self._searches.clear()
        self._arrivals.clear()
        self._waits.clear()
        self._confirmations.clear()

    def stop(self) -> None:
        if self.upstream is not None:
            self.upstream.stop()
        self.abort()
        if self._joining is not None:
            self._joining.cancel()

    def _join(self) -> None:
        allowed = self._allowed and self._context.meta_current
        if self._replica.retiring and not self._replica.leading:
            return  # nobody tells it when its group has done without it; the leader of a move knows
        if self.joined or not allowed or not self._replica.trusted or not self._replica.vouches:
            return
        self._joined_as = self._name
        name = self._joined_as.encode()
        subscribe = self._replica.bus.subscribe
        for prefix in self._prefixes:
            whole = prefix + name
            self._subscriptions += [
                subscribe(whole, self._when_current(self._on_body), QUEUE),
                subscribe(whole + b".>", self._when_current(self._by_subject(len(whole) + 1)), QUEUE),
            ]
        self.take_alias()

    def take_alias(self) -> None:
        """`LAST.<stream>.<subject>` asks for the last message of a subject, but a stream really named LAST takes all
        such requests. One group takes both forms, and each request goes to one member of it: who would not
        answer must not be there. To be called when a stream of that name comes or goes."""
        if self.upstream is not None:
            self.upstream.take_alias()
        if self._context.find_stream(self._replica.assignment.account, LAST) is not None:
            for subscription in self._aliases:
                self._replica.bus.unsubscribe(subscription)
            self._aliases.clear()
        elif self.joined and not self._aliases:
            for prefix in self._prefixes:
                alias = prefix + f"{LAST}.{self._joined_as}.".encode()
                answer = self._when_current(self._by_subject(len(alias), alias=True))
                self._aliases.append(self._replica.bus.subscribe(alias + b">", answer, QUEUE))

    # ---- requests that name this replica

    def _take_addressed(self) -> None:
        """Others than those of the group are answered by a replica that lags, too: they ask for what is stored here.
        Only under `$JS.API.`, never a domain's name: rules of leaf links know Direct Get by its other subjects."""
        replica = self._replica
        sound = replica.trusted and replica.vouches
        if not (self._allowed and self._context.meta_current and sound) or replica.retiring:
            self._drop_addressed()
        elif self._addressed is None and self._name == replica.assignment.name:
            subject = ADDRESSED + f"{self._name}.{self._context.name}".encode()
            self._addressed = replica.bus.subscribe(subject, self._on_addressed)

    def _drop_addressed(self) -> None:
        if self._addressed is not None:
            self._replica.bus.unsubscribe(self._addressed)
            self._addressed = None

    def _on_addressed(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """Waits like the others for what this replica knows to be committed, but nobody else can answer for it."""
        told = self._replica.group.told_index
        answer = functools.partial(self._on_body, subject, reply, headers, payload, origin)
        if told <= self._replica.group.applied_index:
            answer()
        else:
            self._waits.hold(told, answer, answer)

    def _join_when_current(self) -> None:
        replica = self._replica
        if self.joined or self._joining is not None or not self._allowed:
            return
        if not replica.trusted or not replica.vouches:
            return
        if replica.group.leader is None or replica.retiring:
            return
        task = asyncio.get_running_loop().create_task(self._catch_up_and_join())
        self._joining = task
        task.add_done_callback(self._join_ended)

    def _join_ended(self, task: asyncio.Task[None]) -> None:
        self._joining = None

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

    # ---- requests

    def applied(self, index: int) -> None:
        """The replica has applied `index`: reads that waited for it are answered."""
        if self.upstream is not None:
            self.upstream.applied(index)
        if self._arrivals.waiting:
            self._arrivals.applied(index)
        if self._waits.waiting:
            self._waits.applied(index)
        if self._confirmations.waits.waiting:
            self._confirmations.advanced()

    def _when_current(self, answer: Callback) -> Callback:
        """`answer`, called once what this replica knows to be committed is applied (see `read_confirm`); for requests
        that it confirms for, what the leader knows (`read_confirm`). What came from an upstream before the request did,
        or was copied from another stream, on its way into the log, is waited for first: the requester may have been
        told there that it is stored."""
        group, links, ingest = self._replica.group, self._links, self._ingest
        confirms = self._confirms

        def receive(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
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
                self._confirmations.hold(
                    functools.partial(then, *request, origin),
                    functools.partial(self._hand_on, *request),
                    functools.partial(self._refuse, reply),
                )
                return
            told = group.told_index
            if told <= group.applied_index:
                then(subject, reply, headers, payload, origin)
            else:
                request = (subject, reply, headers, payload)
                self._waits.hold(
                    told, functools.partial(then, *request, origin), functools.partial(self._hand_on, *request)
                )

        return receive

    def when_known(self, origin: Origin, go_on: Callable[[], None]) -> None:
        """`go_on`, once what `origin` may have been told is stored is here, or when that takes long."""
        group = self._replica.group
        if origin.kind == "peer" and not self._replica.leading:
            self._confirmations.hold(go_on, go_on, go_on)
        elif group.told_index > group.applied_index:
            self._waits.hold(group.told_index, go_on, go_on)
        else:
            go_on()

    def _when_arrived(self, go_on: Callable[[], None], hand_on: Callable[[], None], turns: int = ARRIVAL_TURNS) -> None:
        """`go_on` when what is under way to this stream, on this node, is stored. `hand_on`: it is not to be read."""
        context = self._context
        if turns and self._links.behind(self._stored_here):
            later = functools.partial(self._when_arrived, go_on, hand_on, turns - 1)
            context.timers.call_soon(lambda: later() if self.joined else hand_on())
            return
        arrived, ingest = self._links.newest(), self._ingest
        if ingest is not None:
            if ingest.copied == OPEN:
                ingest.flush()
            arrived = max(arrived, ingest.copied)
        if arrived > self._replica.group.applied_index:
            # Too long or too many: a copy is as old as it is. Unless this replica is not to be read any more.
            self._arrivals.hold(arrived, go_on, lambda: go_on() if self.joined else hand_on())
        else:
            go_on()

    def _stored_here(self, name: str) -> int:
        found = self._context.find_stream(self._replica.assignment.account, name)
        return self._context.stored_here(found.gid) if found is not None else 0

    def _refuse(self, reply: bytes) -> None:
        self._replica.bus.publish(reply, b"", b"", _BUSY)

    def _timed(self, answer: Callback) -> Callback:
        """`answer`, timed from now until its reply, or the first slice of it, has been handed to the bus."""
        start = self._context.clock.monotonic()

        def then(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            answer(subject, reply, headers, payload, origin)
            latency = self._context.read_latency[self._role]
            latency.observe(self._context.clock.monotonic() - start)

        return then

    @property
    def _role(self) -> str:
        return "leader" if self._replica.leading else "follower"

    def _hand_on(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """This replica does not keep up: it leaves the group, and another member answers."""
        self.leave()
        self._replica.bus.publish(subject, payload, reply, headers)

    def _on_body(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if reply:
            try:
                found = self._reader.open(payload, headers)
            except (DamagedError, KvError) as error:
                self._unreadable(reply, error)
                return
            if isinstance(found, Generator):
                self._search(reply, found, len(payload))
            else:
                self._send(reply, found)

    def _search(self, reply: bytes, steps: Steps[Answer], size: int) -> None:
        """Answers what takes some looking, in turns with everything else. `size`: bytes of the request, which wait."""
        if len(self._searches) >= MAX_SEARCHES or (size and sum(self._searches.values()) + size > MAX_SEARCH_BYTES):
            self._refuse(reply)
            return
        search = object()
        self._searches[search] = size

        def over() -> bool:
            """False when what was looked through is not to be read any more."""
            if self._searches.pop(search, None) is not None:
                return True
            self._refuse(reply)
            return False

        def done(answer: Answer) -> None:
            if over():
                self._send(reply, answer)

        def failed(error: Exception) -> None:
            if over():
                self._unreadable(reply, error)

        try:
            self._context.budget.start(self._replica.assignment.account, steps, done, failed)
        except BusyError:
            if over():
                self._refuse(reply)

    def _by_subject(self, cut: int, *, alias: bool = False) -> Callback:
        """Answers requests whose subject ends with the key, from position `cut` on."""
        answer_subject = self._reader.answer_subject
        publish = self._replica.bus.publish

        def answer(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            if not reply:
                return
            key = subject[cut:]
            if (b"*" in key or b">" in key) and not is_literal(key):
                self._search(reply, self._reader.open_subject(key, payload, headers, with_pending=alias), 0)
                return
            try:
                ((head, body),) = answer_subject(key, payload, headers, with_pending=alias)
            except (DamagedError, KvError) as error:
                self._unreadable(reply, error)
                return
            self.answered += 1
            publish(reply, body, b"", head)

        return answer

    def _send(self, reply: bytes, answer: Answer) -> None:
        self.answered += 1
        publish = self._replica.bus.publish
        if isinstance(answer, tuple):
            for headers, payload in answer:
                publish(reply, payload, b"", headers)
        elif not self.has_room:
            publish(reply, b"", b"", _BUSY)
        else:
            self.stream(reply, answer)

    @property
    def streaming(self) -> int:
        """Batches being sent (monitoring)."""
        return self._streaming

    @property
    def searching(self) -> int:
        """Requests that are looked for in steps."""
        return len(self._searches)

    @property
    def has_room(self) -> bool:
        """One more may be streamed."""
        return self._streaming < MAX_STREAMING

    def stream(self, reply: bytes, answer: Paged) -> None:
        """Publishes all of `answer` to `reply`, as fast as it is taken there; ends when nobody listens any more."""
        self._streaming += 1
        self._send_slice(_Stream(self._life, reply, answer))

    def _send_slice(self, stream: _Stream) -> None:
        """Publishes the next frames of a batch, or waits."""
        if stream.life != self._life:
            stream.answer.close()
            return
        bus = self._replica.bus
        if bus.backlog(stream.reply) > MAX_BACKLOG:  # the reader is slow: wait for it, do not bury it
            if self._hold(stream):
                self._context.timers.call_later(stream.pause, self._send_slice, stream)
                stream.pause = min(2 * stream.pause, LONGEST_PAUSE)
            else:
                self._ended(stream)
            return
        stream.pause = BACKLOG_PAUSE
        answer = stream.answer
        frames: list[Frame] = []
        try:
            frames = answer.take(SLICE_BYTES)
        except (DamagedError, KvError) as error:
            self._report(error)  # no EOB: the client sees that its batch is incomplete
        except LostViewError:
            self._context.log.warning("a batch was cut off: what it still had to send was removed")
        else:
            gone = frames and not bus.publish_frames(stream.reply, frames)
            stream.held_at = -RENEWAL
            if not answer.done and not gone and self._hold(stream):
                self._context.timers.call_soon(self._send_slice, stream)
                return
        self._ended(stream)

    def _hold(self, stream: _Stream) -> bool:
        """Before others run. False when the batch must end: it keeps what is gone from the stream for too long."""
        now = self._context.clock.monotonic()
        if stream.answer.frozen:
            stream.frozen_at = stream.frozen_at or now
            return now - stream.frozen_at < LONGEST_FROZEN
        if now - stream.held_at >= RENEWAL:
            stream.answer.hold()
            stream.held_at = now
        return True

    def _ended(self, stream: _Stream) -> None:
        stream.answer.close()
        if stream.life == self._life:
            self._streaming -= 1

    def _unreadable(self, reply: bytes, error: Exception) -> None:
        """Never a 404 for what is only unreadable here: this replica leaves the group and says that it cannot answer,
        which clients retry on; the retry meets a healthy replica."""
        self._report(error)
        self._replica.bus.publish(reply, b"", b"", _BUSY)

    def _report(self, error: Exception) -> None:
        if isinstance(error, DamagedError):
            self._report_damage(error)
        else:
            self._context.log.error("the data store cannot be read", error=str(error) or repr(error))
