"""`PagedReplies`: replies that are sent piece by piece, such as the batches of a Direct Get.

Between two pieces other clients are served. A reply goes on once its reader has taken most of what it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetcluster.replica.replica_state import ReplicaState
from jetcluster.store.api import DamagedError, LostViewError
from jetcluster.store.kv import KvError
from jetcluster.stream.direct_get import Frame

SLICE_BYTES = 256 * 1024
"""Reply bytes of one batch per loop turn."""
MAX_BACKLOG = 1024 * 1024
BACKLOG_PAUSE = 0.001
LONGEST_PAUSE = 0.008
"""A batch goes on once the requester's connection has at most MAX_BACKLOG bytes waiting. The connection is looked at
after so many seconds: a fast reader has taken them within a millisecond; one that has not is looked at less often."""
RENEWAL = 1.0
LONGEST_FROZEN = 30.0
"""Seconds. The data store's snapshot for a batch that waits is taken anew every RENEWAL, so that it keeps little that
is gone; a batch whose reader is slower than LONGEST_FROZEN over data that is gone ends without an EOB."""
MAX_STREAMING = 64
"""Batches being sent at once by one member of a queue group; more are refused as by a replica that is not there (the
client retries)."""


class Paged(Protocol):
    """A reply that is sent piece by piece: `direct_get.GetReply`, `objects.catalog.Content`."""

    done: bool

    @property
    def frozen(self) -> bool: ...

    def take(self, size: int) -> list[Frame]: ...

    def hold(self) -> None: ...

    def close(self) -> None: ...


class _PagedReply:
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


class PagedReplies:
    """The batches that one member of a queue group sends. `report` takes what a stored record, or the data store,
    raised."""

    def __init__(self, replica: ReplicaState, report: Callable[[Exception], None]) -> None:
        self._context = replica.context
        self._bus = replica.bus
        self._report = report
        self.streaming = 0
        """Batches being sent (monitoring)."""
        self._life = 0
        """Batches of an earlier one are not continued."""

    @property
    def has_room(self) -> bool:
        """One more may be sent."""
        return self.streaming < MAX_STREAMING

    def send(self, reply: bytes, answer: Paged) -> None:
        """Publishes all of `answer` to `reply`, as fast as it is taken there; ends when nobody listens any more."""
        self.streaming += 1
        self._send_slice(_PagedReply(self._life, reply, answer))

    def abort(self) -> None:
        """Batches under way end without an EOB, so that their readers see that something is missing."""
        self._life += 1
        self.streaming = 0

    def _send_slice(self, one: _PagedReply) -> None:
        """Publishes the next frames of a batch, or waits."""
        if one.life != self._life:
            one.answer.close()
            return
        bus = self._bus
        if bus.backlog(one.reply) > MAX_BACKLOG:  # the reader is slow: wait for it, do not bury it
            if self._hold(one):
                self._context.timers.call_later(one.pause, self._send_slice, one)
                one.pause = min(2 * one.pause, LONGEST_PAUSE)
            else:
                self._ended(one)
            return
        one.pause = BACKLOG_PAUSE
        answer = one.answer
        frames: list[Frame] = []
        try:
            frames = answer.take(SLICE_BYTES)
        except (DamagedError, KvError) as error:
            self._report(error)  # no EOB: the client sees that its batch is incomplete
        except LostViewError:
            self._context.log.warning("a batch was cut off: what it still had to send was removed")
        else:
            gone = frames and not bus.publish_frames(one.reply, frames)
            one.held_at = -RENEWAL
            if not answer.done and not gone and self._hold(one):
                self._context.timers.call_soon(self._send_slice, one)
                return
        self._ended(one)

    def _hold(self, one: _PagedReply) -> bool:
        """Before others run. False when the batch must end: it keeps what is gone from the stream for too long."""
        now = self._context.clock.monotonic()
        if one.answer.frozen:
            one.frozen_at = one.frozen_at or now
            return now - one.frozen_at < LONGEST_FROZEN
        if now - one.held_at >= RENEWAL:
            one.answer.hold()
            one.held_at = now
        return True

    def _ended(self, one: _PagedReply) -> None:
        one.answer.close()
        if one.life == self._life:
            self.streaming -= 1
