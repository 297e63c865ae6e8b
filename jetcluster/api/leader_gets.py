"""STREAM.MSG.GET of streams that this node leads. Under a lease (`raft.core.lease`) a request is answered as it comes;
otherwise those that come together share one proof of the leadership. None needs a task.

Only plain requests that find their message are answered here. All others, and all of a round that proves nothing, are
given back and take the general way (`dispatch`), which refuses, waits and asks elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from jetcluster.api.request import ApiContext, Request
from jetcluster.budget import BusyError, Work, at_once
from jetcluster.replica.stream_replica import CONFIRM_SECONDS
from jetcluster.stream.read import direct_get, msg_get
from jetcluster.stream.read.freshness import ANY

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

MAX_REQUEST_BYTES: Final = 1024
TURN_BYTES: Final = 64 << 10
"""Bytes of requests and answers per turn of the loop that are answered as they come; further ones take turns with other
work."""
STEP_BYTES: Final = 16 << 10
REQUEST_BYTES: Final = 2 << 10
"""Bytes of answers between two looks at the clock, and what a request counts besides its answer."""


class _Stream:
    """The requests for one stream: those of the round under way, and those that have come since it began."""

    def __init__(self, replica: StreamReplica) -> None:
        self.replica = replica
        self.round: deque[Request] = deque()
        self.next: deque[Request] = deque()
        self.timer: asyncio.TimerHandle | None = None
        """Ends a round that proves nothing; None once it is proven."""


class LeaderGets:
    """The fast lane of one account's API. One round per stream is under way at a time."""

    def __init__(
        self,
        context: ApiContext,
        answered: Callable[[Request, bytes], object],
        given_back: Callable[[Collection[Request]], object],
    ) -> None:
        self._context = context
        self._answered, self._given_back = answered, given_back
        self._streams: dict[int, _Stream] = {}
        """Group id -> its requests; a stream without requests is not there."""
        self.waiting = 0
        """Requests that are neither answered nor given back."""
        self._room = TURN_BYTES

    def take(self, request: Request, stream: bytes) -> bool:
        """Answer a request, now or later; False when it must take the general way."""
        if request.headers or not request.reply or len(request.payload) > MAX_REQUEST_BYTES:
            return False
        replica = self._context.cluster.led(request.account, stream.decode("utf-8", "replace"))
        if replica is None:
            return False
        gid = replica.assignment.gid
        known = self._streams.get(gid)
        if known is None and self._room > 0 and replica.group.reads_now() and replica.whole:
            return self._answer_now(replica, request)
        if known is None:
            known = self._streams[gid] = _Stream(replica)
            asyncio.get_running_loop().call_soon(self._begin, gid, known)  # with all that come in this turn
        known.next.append(request)
        self.waiting += 1
        return True

    def _answer_now(self, replica: StreamReplica, request: Request) -> bool:
        """Answer under a lease; False when the request must take the general way."""
        answer = _answer(replica, request)
        if answer is None:
            return False
        if self._room == TURN_BYTES:
            asyncio.get_running_loop().call_soon(self._turn)
        self._room -= len(answer) + REQUEST_BYTES // 2
        self._answered(request, answer)
        return True

    def _turn(self) -> None:
        self._room = TURN_BYTES

    def stop(self) -> None:
        """Forget all requests."""
        self._streams.clear()
        self.waiting = 0

    def _begin(self, gid: int, stream: _Stream) -> None:
        if self._streams.get(gid) is not stream:
            return
        if not stream.next:
            del self._streams[gid]
            return
        stream.round, stream.next = stream.next, stream.round
        loop = asyncio.get_running_loop()
        stream.timer = loop.call_later(CONFIRM_SECONDS, self._proven, gid, stream, False)

        def answered(proven: bool) -> None:
            loop.call_soon(self._proven, gid, stream, proven)

        if stream.replica.group.reads_now():
            answered(True)
        else:
            stream.replica.group.read_index(answered)

    def _proven(self, gid: int, stream: _Stream, proven: bool) -> None:
        if stream.timer is None or self._streams.get(gid) is not stream:
            return  # it came too late
        stream.timer.cancel()
        stream.timer = None
        if not proven or not self._is_whole(gid, stream):
            del self._streams[gid]
            stream.round += stream.next
            self._give_back(stream)
            return
        account = stream.replica.assignment.account
        try:
            self._context.budget.start(
                account,
                self._steps(gid, stream),
                lambda _: self._begin(gid, stream),
                lambda error: self._failed(gid, stream, error),
            )
        except BusyError as error:
            self._failed(gid, stream, error)

    def _failed(self, gid: int, stream: _Stream, error: Exception) -> None:
        self._context.log.debug("a round of MSG.GET was given back", gid=gid, error=repr(error))
        self._give_back(stream)
        self._begin(gid, stream)

    def _give_back(self, stream: _Stream) -> None:
        requests, stream.round = stream.round, deque()
        self.waiting -= len(requests)
        self._given_back(requests)

    def _is_whole(self, gid: int, stream: _Stream) -> bool:
        """True while the replica may be read from, and is the stream's."""
        return stream.replica.whole and self._context.cluster.replicas.get(gid) is stream.replica

    def _steps(self, gid: int, stream: _Stream) -> Work[None]:
        while stream.round and self._streams.get(gid) is stream:
            if not self._is_whole(gid, stream):  # it was in the step before
                self._give_back(stream)
                return
            size = 0
            while stream.round and size < STEP_BYTES:
                request = stream.round.popleft()
                self.waiting -= 1
                answer = _answer(stream.replica, request)
                if answer is None:
                    self._given_back((request,))
                else:
                    self._answered(request, answer)
                    size += len(answer)
                size += REQUEST_BYTES
            yield 0.0


def _answer(replica: StreamReplica, request: Request) -> bytes | None:
    """The whole reply; None for a request that is refused, finds nothing, or may take long."""
    try:
        wanted: Any = msg_get.decode(request.payload, strict=request.strict)
        if wanted.fresh != ANY or wanted.msg_id_prefixes or direct_get.preparing(replica.store, wanted) is not None:
            return None
        message = msg_get.found(replica.store, wanted)
        if len(message.headers) >= msg_get.LONG_HEADER_BYTES:
            return None
        return at_once(msg_get.rendering(message, no_headers=wanted.no_hdr))
    except Exception:  # noqa: BLE001 - the general way meets it again, and says or reports it
        return None
