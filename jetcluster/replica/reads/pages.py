"""`PagedReplies`: replies that are sent piece by piece, such as the batches of a Direct Get.

Other clients are served between two pieces. A reply goes on once its reader has taken most of the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetcluster.replica.replica_state import ReplicaState
from jetcluster.store.api import DamagedError, LostViewError
from jetcluster.store.kv import KvError
from jetcluster.stream.read.direct_get import Frame

SLICE_BYTES = 256 * 1024
"""Reply bytes of one batch per loop turn."""
MAX_BACKLOG = 1024 * 1024
MIN_PAUSE_SECONDS = 0.001
MAX_PAUSE_SECONDS = 0.008
"""A batch goes on once the requester's connection has at most MAX_BACKLOG bytes waiting. A fast reader has taken them
within a millisecond; the connection of a slower one is checked less and less often."""
RENEWAL_SECONDS = 1.0
MAX_FROZEN_SECONDS = 30.0
"""A waiting batch renews its snapshot of the data store every RENEWAL_SECONDS, so that little deleted data is kept. A
batch that needs deleted data for longer than MAX_FROZEN_SECONDS ends without an EOB."""
MAX_STREAMING = 64
"""Batches in progress per member of a queue group. Further ones get a 503, and the client retries."""


class Paged(Protocol):
    """A reply that is sent piece by piece: `direct_get.GetReply`, `objects.catalog.Content`."""

    done: bool

    @property
    def frozen(self) -> bool: ...

    def take(self, size: int) -> list[Frame]: ...

    def hold(self) -> None: ...

    def close(self) -> None: ...


class _PagedReply:
    """One batch in progress."""

    __slots__ = ("answer", "frozen_at", "held_at", "life", "pause", "reply")

    def __init__(self, life: int, reply: bytes, answer: Paged) -> None:
        self.life = life
        self.reply = reply
        self.answer = answer
        self.pause = MIN_PAUSE_SECONDS
        self.held_at = -RENEWAL_SECONDS
        """When `hold` was called after the last slice, or again; earlier than that when it was not."""
        self.frozen_at = 0.0


class PagedReplies:
    """The batches of one member of a queue group. `report` takes errors of stored records and of the data store."""

    def __init__(self, replica: ReplicaState, report: Callable[[Exception], None]) -> None:
        self._runtime = replica.runtime
        self._bus = replica.bus
        self._report = report
        self.streaming = 0
        """Number of batches in progress (monitoring)."""
        self._life = 0
        """Increased by `abort`: batches of an earlier life do not continue."""

    @property
    def has_room(self) -> bool:
        """True while another batch may begin."""
        return self.streaming < MAX_STREAMING

    def send(self, reply: bytes, answer: Paged) -> None:
        """Publish all of `answer` to `reply`, as fast as its reader takes it; end when the subject has no reader."""
        self.streaming += 1
        self._send_slice(_PagedReply(self._life, reply, answer))

    def abort(self) -> None:
        """End all batches without an EOB, so that their readers see that messages are missing."""
        self._life += 1
        self.streaming = 0

    def _send_slice(self, one: _PagedReply) -> None:
        """Publish the next frames of a batch, or wait for its reader."""
        if one.life != self._life:
            one.answer.close()
            return
        bus = self._bus
        if bus.backlog(one.reply) > MAX_BACKLOG:  # the reader is slow: wait for it, do not bury it
            if self._hold(one):
                self._runtime.timers.call_later(one.pause, self._send_slice, one)
                one.pause = min(2 * one.pause, MAX_PAUSE_SECONDS)
            else:
                self._ended(one)
            return
        one.pause = MIN_PAUSE_SECONDS
        answer = one.answer
        frames: list[Frame] = []
        try:
            frames = answer.take(SLICE_BYTES)
        except (DamagedError, KvError) as error:
            self._report(error)  # no EOB: the client sees that its batch is incomplete
        except LostViewError:
            self._runtime.log.warning("a batch was cut off: what it still had to send was removed")
        else:
            gone = frames and not bus.publish_frames(one.reply, frames)
            one.held_at = -RENEWAL_SECONDS
            if not answer.done and not gone and self._hold(one):
                self._runtime.timers.call_soon(self._send_slice, one)
                return
        self._ended(one)

    def _hold(self, one: _PagedReply) -> bool:
        """Release or renew the snapshot before other work runs. False: it has kept deleted data for too long."""
        now = self._runtime.clock.monotonic()
        if one.answer.frozen:
            one.frozen_at = one.frozen_at or now
            return now - one.frozen_at < MAX_FROZEN_SECONDS
        if now - one.held_at >= RENEWAL_SECONDS:
            one.answer.hold()
            one.held_at = now
        return True

    def _ended(self, one: _PagedReply) -> None:
        one.answer.close()
        if one.life == self._life:
            self.streaming -= 1
