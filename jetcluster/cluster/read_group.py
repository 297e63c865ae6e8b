"""A replica's membership in the queue group that answers Direct Get.

shared/reference/streams.md 1.1 and 1.12. The leader answers as soon as it leads. A follower joins once it has applied
everything that the leader had committed when asked (its own idea of the commit index proves nothing after a restart:
a replica that missed the newest value would serve the older one), leaves when it falls far behind, and joins again the
same way.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jetcluster.cluster.context import NodeContext
from jetcluster.cluster.mesh_api import MeshError
from jetcluster.cluster.read_waits import ReadWaits
from jetcluster.protocol.bus import Callback, Origin, Subscription
from jetcluster.store.api import DamagedError
from jetcluster.store.kv import KvError
from jetcluster.stream.direct_get import DirectGet, Frame

if TYPE_CHECKING:
    from jetcluster.cluster.stream_replica import StreamReplica

QUEUE = b"_sys_"
PREFIX = b"$JS.API.DIRECT.GET."
COMMIT_METHOD = "stream.commit"
MAX_LAG = 8192
"""Log entries a follower may be behind before it leaves the group."""
SLICE_BYTES = 256 * 1024
"""Reply bytes of one batch per loop turn: other clients are served in between."""
MAX_BACKLOG = 1024 * 1024
BACKLOG_PAUSE = 0.001
LONGEST_PAUSE = 0.008
"""A batch goes on once the requester's connection has no more than so many bytes waiting, looked at so often. A fast
reader has taken them within a millisecond; one that has not is looked at less often."""
MAX_STREAMING = 64
"""Batches being sent at once per replica; more are refused like by a replica that is not there (the client retries)."""

_U64 = struct.Struct("<Q")
_BUSY = b"NATS/1.0 503\r\n\r\n"


class ReadGroup:
    def __init__(self, context: NodeContext, replica: StreamReplica) -> None:
        self._context = context
        self._replica = replica
        self._reader = DirectGet(replica.assignment.name, replica.store)
        self._prefixes = [PREFIX]
        if context.domain:
            self._prefixes.append(b"$JS.%b.API.DIRECT.GET." % context.domain.encode())
        self._subscriptions: list[Subscription] = []
        self._joining: asyncio.Task[None] | None = None
        self._waits = ReadWaits(context.clock, context.timers)
        self._streaming = 0
        self._life = 0
        """Batches of an earlier one are not continued."""
        self.answered = 0
        """Requests answered (monitoring)."""

    @property
    def joined(self) -> bool:
        return bool(self._subscriptions)

    def role_changed(self, leading: bool) -> None:
        if leading:
            self._join()
        else:
            self._join_when_current()

    def config_changed(self) -> None:
        """allow_direct may have been toggled: takes effect on every member when it applies the update (1.12)."""
        if not self._replica.machine.rules.allow_direct:
            self.leave()
        elif self._replica.leading:
            self._join()
        else:
            self._join_when_current()

    def tick(self) -> None:
        group = self._replica.group
        if self._replica.leading:
            return
        if self.joined and group.commit_index - group.applied_index > MAX_LAG:
            self.leave()
        elif not self.joined:
            self._join_when_current()

    def leave(self) -> None:
        """Takes no more requests; batches under way are finished."""
        for subscription in self._subscriptions:
            self._replica.bus.unsubscribe(subscription)
        self._subscriptions.clear()

    def abort(self) -> None:
        """The stored state is not to be read any more. Batches under way end without an EOB, so that their readers see
        that something is missing."""
        self.leave()
        self._life += 1
        self._streaming = 0
        self._waits.clear()

    def stop(self) -> None:
        self.abort()
        if self._joining is not None:
            self._joining.cancel()

    def _join(self) -> None:
        allowed = self._replica.machine.rules.allow_direct and self._context.meta_current
        if self._replica.retiring:
            return
        if self.joined or not allowed or not self._replica.sound:
            return
        name = self._replica.assignment.name.encode()
        subscribe = self._replica.bus.subscribe
        for prefix in self._prefixes:
            self._subscriptions += [
                subscribe(prefix + name, self._when_current(self._on_body), QUEUE),
                subscribe(prefix + name + b".>", self._when_current(self._on_subject), QUEUE),
                subscribe(prefix + b"LAST." + name + b".>", self._when_current(self._on_alias), QUEUE),
            ]

    def _join_when_current(self) -> None:
        replica = self._replica
        if self.joined or self._joining is not None or not replica.machine.rules.allow_direct or not replica.sound:
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
        leader = group.leader
        if leader is None or leader == self._context.me:
            return
        try:
            reply = await self._context.mesh.call(leader, COMMIT_METHOD, struct.pack("<I", group.gid), 2.0)
            (commit,) = _U64.unpack(reply)
        except (MeshError, struct.error):
            return
        for _ in range(200):
            if group.applied_index >= commit:
                self._join()
                return
            await asyncio.sleep(0.01)

    # ---- requests

    def applied(self, index: int) -> None:
        """The replica has applied `index`: reads that waited for it are answered."""
        if len(self._waits):
            self._waits.applied(index)

    def _when_current(self, answer: Callback) -> Callback:
        """`answer`, called once what this replica knows to be committed is applied (see `read_waits`)."""
        group = self._replica.group

        def receive(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
            commit = group.commit_index
            if commit <= group.applied_index:
                answer(subject, reply, headers, payload, origin)
            else:
                request = (subject, reply, headers, payload)
                self._waits.hold(
                    commit, functools.partial(answer, *request, origin), functools.partial(self._hand_on, *request)
                )

        return receive

    def _hand_on(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """This replica does not keep up: it leaves the group, and another member answers."""
        self.leave()
        self._replica.bus.publish(subject, payload, reply, headers)

    def _on_body(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if reply:
            try:
                frames = self._reader.answer(payload, headers)
            except (DamagedError, KvError) as error:
                self._unreadable(reply, error)
                return
            self._send(reply, frames if isinstance(frames, tuple) else iter(frames))

    def _on_subject(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        key = self._key(subject, b"")
        self._answer_subject(key, reply, headers, payload, alias=False)

    def _on_alias(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if self._context.has_stream(self._replica.assignment.account, "LAST"):
            return  # a stream really named LAST listens on the same subjects: it wins (1.10)
        key = self._key(subject, b"LAST.")
        self._answer_subject(key, reply, headers, payload, alias=True)

    def _key(self, subject: bytes, alias: bytes) -> bytes:
        """What follows the stream's name."""
        prefix = next(p for p in self._prefixes if subject.startswith(p))
        return subject[len(prefix) + len(alias) + len(self._replica.assignment.name.encode()) + 1 :]

    def _answer_subject(self, key: bytes, reply: bytes, headers: bytes, payload: bytes, *, alias: bool) -> None:
        if reply:
            try:
                frames = self._reader.answer_subject(key, payload, headers, with_pending=alias)
            except (DamagedError, KvError) as error:
                self._unreadable(reply, error)
                return
            self._send(reply, frames if isinstance(frames, tuple) else iter(frames))

    def _send(self, reply: bytes, frames: tuple[Frame, ...] | Iterator[Frame]) -> None:
        self.answered += 1
        publish = self._replica.bus.publish
        if isinstance(frames, tuple):
            for headers, payload in frames:
                publish(reply, payload, b"", headers)
        elif self._streaming >= MAX_STREAMING:
            publish(reply, b"", b"", _BUSY)
        else:
            self._streaming += 1
            self._send_slice(self._life, reply, frames)

    def _send_slice(self, life: int, reply: bytes, frames: Iterator[Frame], pause: float = BACKLOG_PAUSE) -> None:
        if life != self._life:
            return
        bus = self._replica.bus
        if bus.backlog(reply) > MAX_BACKLOG:  # the reader is slow: wait for it, do not bury it
            next_pause = min(2 * pause, LONGEST_PAUSE)
            self._context.timers.call_later(pause, self._send_slice, life, reply, frames, next_pause)
            return
        part: list[Frame] = []
        more = False
        sent = 0
        try:
            for frame in frames:
                part.append(frame)
                sent += len(frame[0]) + len(frame[1])
                if sent >= SLICE_BYTES:
                    more = True
                    break
        except (DamagedError, KvError) as error:
            self._report(error)  # no EOB: the client sees that its batch is incomplete
            if life != self._life:
                return  # the replica's state is not to be read any more, nor what was read just now
        taken = bus.publish_frames(reply, part) if part else 0
        if more and taken:
            self._context.timers.call_soon(self._send_slice, life, reply, frames)
        elif life == self._life:
            self._streaming -= 1  # all is sent, or the requester is gone

    def _unreadable(self, reply: bytes, error: DamagedError | KvError) -> None:
        """Never a 404 for what is only unreadable here: this replica leaves the group and says that it cannot answer,
        which clients retry on; the retry meets a healthy replica."""
        self._report(error)
        self._replica.bus.publish(reply, b"", b"", _BUSY)

    def _report(self, error: DamagedError | KvError) -> None:
        if isinstance(error, DamagedError):
            self._replica.report_damage(error)
        else:
            self._context.log.error("the data store cannot be read", error=str(error))
