"""Looks after the files of the node's data store: when they are damaged, the store is renewed at a start of the server.

That is asked for only where peers have what is lost, and while every group can do without this node for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.cluster.restart_safety import RestartSafety
from jetcluster.meta.state import Assignment
from jetcluster.replica.background import Background
from jetcluster.replica.context import NodeContext

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica

LOOK_SECONDS: Final = 10.0
"""Between two looks at the files' sizes."""
RETRY_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 5.0
"""After a start nothing is renewed for so long: the node first finds out who is there."""


class StoreCare:
    """One per node; `tick` a few times per second."""

    def __init__(
        self,
        context: NodeContext,
        replicas: Mapping[int, StreamReplica],
        broken: Mapping[int, tuple[Assignment, str]],
        safety: RestartSafety,
        background: Background,
        renew: Callable[[str], None],
    ) -> None:
        """`renew(reason)` starts the server again with a renewed store, or does not."""
        self._context = context
        self._replicas = replicas
        self._broken = broken
        self._safety = safety
        self._background = background
        self._renew = renew
        self._look_at = self._try_at = context.clock.monotonic() + SETTLE_SECONDS
        self._told = False
        self._asked = False

    def tick(self) -> None:
        now = self._context.clock.monotonic()
        kv = self._context.kv
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            kv.check_files()
        reason = kv.damage or self._unreadable()
        if not reason or now < self._try_at or self._asked:
            return
        self._try_at = now + RETRY_SECONDS
        if not self._told:
            self._told = True
            self._context.log.error("the files of the data store are damaged", damage=reason)
        if not self._context.cluster_name:
            return  # there is nobody to fetch anything from: what can be read is all there is
        self._background.spawn(self._try(reason))

    async def _try(self, reason: str) -> None:
        alone = [a.name for a in self._hurt() if len(a.peers) < 2]
        if alone:
            # What is left of them can be read as long as the store is not renewed.
            self._context.log.debug("the data store is not renewed: no peer has these streams", streams=alone)
            return
        safety = await self._safety.check()
        if safety.risks:
            self._context.log.debug("the data store is not renewed yet", risks=[risk.text for risk in safety.risks])
            return
        if not self._asked:
            self._asked = True
            self._renew(reason)

    def _unreadable(self) -> str:
        """A stream that other nodes have and that could not be started here because of what its records are."""
        return next((why for a, why in self._broken.values() if len(a.peers) > 1 and "damaged" in why.lower()), "")

    def _hurt(self) -> list[Assignment]:
        found = [replica.assignment for replica in self._replicas.values() if replica.repair.in_store]
        return found + [assignment for assignment, _ in self._broken.values()]
