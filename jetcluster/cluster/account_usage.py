"""What an account's streams take on all nodes that can be reached, for `$JS.API.INFO`."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jetcluster.cluster.context import NodeContext
    from jetcluster.cluster.stream_replica import StreamReplica

METHOD: Final = "store.used"
TIERS_METHOD: Final = "store.used_by_tier"
_SECONDS: Final = 2.0
_USED: Final = struct.Struct("<QQQ")

Used = tuple[int, int, int]
"""Bytes of memory and of file streams, every replica counted, and consumers."""


class AccountUsage:
    """One per node."""

    def __init__(self, context: NodeContext, replicas: Mapping[int, StreamReplica]) -> None:
        self._context = context
        self._replicas = replicas
        context.mesh.serve(METHOD, self._serve)
        context.mesh.serve(TIERS_METHOD, self._serve_tiers)

    async def of(self, account: str) -> Used:
        found = [_USED.unpack(answer) for answer in await self._ask(METHOD, account)]
        memory, file, consumers = (sum(column) for column in zip(*found, strict=True))
        return memory, file, consumers

    async def by_tier(self, account: str) -> dict[int, Used]:
        """By the streams' number of replicas. Nodes of before tiers do not answer, and are left out."""
        total: defaultdict[int, Used] = defaultdict(lambda: (0, 0, 0))
        for answer in await self._ask(TIERS_METHOD, account):
            for replicas, *more in json.loads(answer):
                memory, file, consumers = (one + other for one, other in zip(total[replicas], more, strict=True))
                total[replicas] = memory, file, consumers
        return dict(total)

    async def _ask(self, method: str, account: str) -> list[bytes]:
        context = self._context
        calls = (
            context.mesh.call(peer, method, account.encode(), _SECONDS) for peer in (context.me, *context.mesh.peers)
        )
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, bytes)]

    async def _serve(self, peer: str, payload: bytes) -> bytes:
        found = self._local(payload.decode()).values()
        return _USED.pack(*(sum(column) for column in zip((0, 0, 0), *found, strict=True)))

    async def _serve_tiers(self, peer: str, payload: bytes) -> bytes:
        return json.dumps([[replicas, *used] for replicas, used in self._local(payload.decode()).items()]).encode()

    def _local(self, account: str) -> dict[int, Used]:
        """What is on this node; consumers of the streams that are led here."""
        found: defaultdict[int, Used] = defaultdict(lambda: (0, 0, 0))
        for replica in self._replicas.values():
            assignment = replica.assignment
            if assignment.account == account:
                memory, file, consumers = found[assignment.replicas]
                size = replica.store.byte_count
                memory, file = (memory + size, file) if assignment.memory else (memory, file + size)
                consumers += replica.machine.consumer_count if replica.leading else 0
                found[assignment.replicas] = memory, file, consumers
        return found
