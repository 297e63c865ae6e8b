"""`MetaCatchUp`: how a node that starts gets to know all streams that there are, before it serves any."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jetcluster.mesh.api import MeshError
from jetcluster.raft.api import META_GROUP
from jetcluster.replica.context import NodeContext
from jetcluster.replica.read_confirm import COMMIT_METHOD

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica

RETRY: Final = 0.02
ASK_SECONDS: Final = 2.0
AGAIN: Final = 2.0
"""Seconds until a meta leader is asked again how far this node has to come: what one said may never be reached."""
POLL: Final = 0.005

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class MetaCatchUp:
    """One per node with JetStream. `current` is called once this node has applied what the meta leader had committed
    when it was asked, unless the node knows by itself that it has (`NodeContext.meta_current`)."""

    def __init__(self, context: NodeContext, meta: MetaReplica, current: Callable[[], None]) -> None:
        self._context = context
        self._meta = meta
        self._current = current

    async def run(self) -> None:
        """Streams that were deleted while this node's last meta state was not flushed yet would else take publishes
        once more, and lose them."""
        commit: int | None = None
        again = 0.0
        while not self._context.meta_current:
            if commit is not None and (group := self._meta.group) is not None and group.applied_index >= commit:
                self._current()
            elif commit is None or self._context.clock.monotonic() >= again:
                told = await self.ask()
                commit = commit if told is None else told
                again = self._context.clock.monotonic() + AGAIN
            else:
                await asyncio.sleep(POLL)

    async def ask(self) -> int | None:
        """The meta group's commit index, from its leader; None, after a moment, when that cannot be had now."""
        context = self._context
        leader = context.leaders.get(META_GROUP)
        if leader is None or leader == context.me:
            await context.leaders.wait(META_GROUP, RETRY)
            return None
        try:
            reply = await context.mesh.call(leader, COMMIT_METHOD, _U32.pack(META_GROUP), ASK_SECONDS)
            (commit,) = _U64.unpack(reply)
        except (MeshError, struct.error):
            await asyncio.sleep(RETRY)
            return None
        return int(commit)
