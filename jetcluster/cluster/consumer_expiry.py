"""Consumers that nobody used for their inactive_threshold: their owners say so, the stream's leader deletes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from jetcluster.errors import ApiError

if TYPE_CHECKING:
    from jetcluster.meta.state import Assignment
    from jetcluster.replica.rounds import Background
    from jetcluster.replica.stream_replica import StreamReplica

Ask = Callable[["Assignment", str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""`JetStream.stream_request`."""


class ConsumerExpiry:
    """One request at a time per stream; what fails is asked for again by the owner."""

    def __init__(self, replicas: Mapping[int, StreamReplica], ask: Ask, background: Background) -> None:
        self._replicas = replicas
        self._ask = ask
        self._background = background
        self._running: set[int] = set()

    def watch(self, replica: StreamReplica) -> None:
        """Does at once what owners ask for at once: a threshold may be shorter than the time between ticks."""
        gid = replica.assignment.gid
        replica.consumers.tell_unused = lambda: self.look(gid, replica)

    def look(self, gid: int, replica: StreamReplica) -> None:
        """Asks again for what is left."""
        if replica.consumers.unused and gid not in self._running:
            self._running.add(gid)
            self._background.spawn(self._expire(gid, replica))

    async def _expire(self, gid: int, replica: StreamReplica) -> None:
        unused = replica.consumers.unused
        try:
            while unused:
                cid, state = unused.popitem()
                owner = replica.consumers.owner(cid)
                if owner is not None and not owner.num_waiting and not owner.push_bound:
                    await self._ask(replica.assignment, "consumer_expire", {"name": state.name, "cid": cid})
        except ApiError:
            return  # no leader: asked again by the owner
        finally:
            self._running.discard(gid)
