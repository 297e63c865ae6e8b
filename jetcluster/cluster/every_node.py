"""`EveryNode`: questions that go to all connected nodes, of whom one alone does not know the answer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jetcluster.cluster.context import NodeContext
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.cluster.stream_replica import StreamReplica

SETTLE_METHOD: Final = "meta.settle"
SETTLE_SECONDS: Final = 2.0
USED_METHOD: Final = "store.used"
_REVISION: Final = struct.Struct("<Q")
_USED: Final = struct.Struct("<QQQ")


class EveryNode:
    def __init__(self, context: NodeContext, meta: MetaReplica, replicas: Mapping[int, StreamReplica]) -> None:
        self._context = context
        self._meta = meta
        self._replicas = replicas
        context.mesh.serve(SETTLE_METHOD, self._serve_settle)
        context.mesh.serve(USED_METHOD, self._serve_used)

    async def settle(self, revision: int) -> None:
        """Returns when every connected node has applied `revision` of the meta log, or after about 2 s."""
        peers = (self._context.me, *self._context.mesh.peers)
        payload = _REVISION.pack(revision)
        calls = (self._context.mesh.call(peer, SETTLE_METHOD, payload, SETTLE_SECONDS) for peer in peers)
        await asyncio.gather(*calls, return_exceptions=True)

    async def used(self, account: str) -> tuple[int, int, int]:
        """Bytes of the account's memory and file streams on all reachable nodes, and consumers of its streams."""
        peers = (self._context.me, *self._context.mesh.peers)
        calls = (self._context.mesh.call(peer, USED_METHOD, account.encode(), 2.0) for peer in peers)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found = [_USED.unpack(answer) for answer in answers if isinstance(answer, bytes)]
        memory, file, consumers = (sum(column) for column in zip(*found, strict=True))
        return memory, file, consumers

    async def _serve_settle(self, peer: str, payload: bytes) -> bytes:
        (revision,) = _REVISION.unpack(payload)
        clock = self._context.clock
        end = clock.monotonic() + SETTLE_SECONDS
        while True:
            if self._meta.machine.applied_index >= revision or clock.monotonic() >= end:
                return b""
            await asyncio.sleep(0.005)

    async def _serve_used(self, peer: str, payload: bytes) -> bytes:
        used = {True: 0, False: 0}
        consumers = 0
        for replica in self._replicas.values():
            if replica.assignment.account == payload.decode():
                used[replica.assignment.memory] += replica.store.byte_count
                consumers += replica.machine.consumer_count if replica.leading else 0
        return _USED.pack(used[True], used[False], consumers)
