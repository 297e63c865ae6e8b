"""`EveryNode`: questions to all connected nodes, which no single node can answer."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.replica.consumer_exchange import until

if TYPE_CHECKING:
    from jetcluster.clock import Clock
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.logs import Log
    from jetcluster.mesh.core import MeshCore
    from jetcluster.replica.stream_replica import StreamReplica

SETTLE_METHOD: Final = "meta.settle"
SETTLE_SECONDS: Final = 2.0
USED_METHOD: Final = "store.used"
TIERS_METHOD: Final = "store.used_by_tier"
ABSENT_METHOD: Final = "store.used_of_absent"
_REVISION: Final = struct.Struct("<Q")
_USED: Final = struct.Struct("<QQQ")

Used = tuple[int, int, int]
"""Bytes of memory streams and of file streams, every replica counted, and number of consumers."""


class EveryNode:
    """Asks all connected servers, and answers for this one."""

    def __init__(
        self, mesh: MeshCore, clock: Clock, log: Log, meta: MetaReplica, replicas: Mapping[int, StreamReplica]
    ) -> None:
        self._mesh = mesh
        self._me = mesh.me.peer_id
        self._clock = clock
        self._log = log
        self._meta = meta
        self._replicas = replicas
        mesh.serve(SETTLE_METHOD, self._serve_settle)
        mesh.serve(USED_METHOD, self._serve_used)
        mesh.serve(TIERS_METHOD, self._serve_tiers)
        mesh.serve(ABSENT_METHOD, self._serve_absent)

    async def settle(self, revision: int) -> None:
        """Returns when every connected node has applied `revision` of the meta log, or after 2 s."""
        peers = (self._me, *self._mesh.peers)
        payload = _REVISION.pack(revision)
        calls = (self._mesh.call(peer, SETTLE_METHOD, payload, SETTLE_SECONDS) for peer in peers)
        await asyncio.gather(*calls, return_exceptions=True)

    async def heard(self, revision: int) -> None:
        """Returns when this node has applied `revision` of the meta log, or after 2 s: who was told of a change here
        finds it here."""
        await until(lambda: self._meta.machine.applied_index >= revision, self._clock, SETTLE_SECONDS)

    async def used(self, account: str) -> Used:
        """Returns the usage of the account's streams on all reachable nodes."""
        found = [_USED.unpack(answer) for answer in await self._ask(USED_METHOD, account)]
        found += (await self._of_absent(account)).values()
        memory, file, consumers = (sum(column) for column in zip((0, 0, 0), *found, strict=True))
        return memory, file, consumers

    async def used_by_tier(self, account: str) -> dict[int, Used]:
        """Returns `used` by the streams' number of replicas."""
        total = self._sum(await self._ask(TIERS_METHOD, account))
        for replicas, more in (await self._of_absent(account)).items():
            total[replicas] = _plus(total[replicas], more)
        return dict(total)

    async def _of_absent(self, account: str) -> dict[int, Used]:
        """Returns the usage of members that are not connected, by the streams' number of replicas: the size at the
        leaders of their streams. The usage of a stream without a leader is unknown."""
        absent = [peer for peer in self._meta.machine.nodes if peer not in (self._me, *self._mesh.peers)]
        if not absent:
            return {}
        return self._sum(await self._ask(ABSENT_METHOD, json.dumps({"account": account, "absent": absent})))

    def _sum(self, answers: list[bytes]) -> defaultdict[int, Used]:
        total: defaultdict[int, Used] = defaultdict(lambda: (0, 0, 0))
        for answer in answers:
            try:
                rows = [tuple(map(int, row)) for row in json.loads(answer)]
                for replicas, memory, file, consumers in rows:
                    total[replicas] = _plus(total[replicas], (memory, file, consumers))
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                self._log.warning("malformed usage", error=repr(error))
        return total

    async def _ask(self, method: str, question: str) -> list[bytes]:
        """Returns the answers that arrived. A removed server is not asked: what it holds does not count."""
        removed = self._meta.machine.removed
        peers = [peer for peer in (self._me, *self._mesh.peers) if peer not in removed]
        calls = (self._mesh.call(peer, method, question.encode(), 2.0) for peer in peers)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, bytes)]

    async def _serve_settle(self, peer: str, payload: bytes) -> bytes:
        (revision,) = _REVISION.unpack(payload)
        await self.heard(revision)
        return b""

    async def _serve_used(self, peer: str, payload: bytes) -> bytes:
        found = self._local(payload.decode()).values()
        return _USED.pack(*(sum(column) for column in zip((0, 0, 0), *found, strict=True)))

    async def _serve_tiers(self, peer: str, payload: bytes) -> bytes:
        return json.dumps([[replicas, *used] for replicas, used in self._local(payload.decode()).items()]).encode()

    async def _serve_absent(self, peer: str, payload: bytes) -> bytes:
        question = json.loads(payload)
        account, absent = str(question["account"]), {str(name) for name in question["absent"]}
        found: defaultdict[int, Used] = defaultdict(lambda: (0, 0, 0))
        for replica in self._replicas.values():
            assignment = replica.assignment
            if assignment.account == account and replica.leading:
                size = replica.store.byte_count * len(absent.intersection(assignment.peers))
                more = (size, 0, 0) if assignment.memory else (0, size, 0)
                found[assignment.replicas] = _plus(found[assignment.replicas], more)
        return json.dumps([[replicas, *used] for replicas, used in found.items()]).encode()

    def _local(self, account: str) -> dict[int, Used]:
        """Returns the usage on this node by number of replicas; consumers count where their stream is led."""
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


def _plus(one: Used, other: Used) -> Used:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
