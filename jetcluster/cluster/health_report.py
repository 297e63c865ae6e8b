"""Says a node's verdict on itself: one line in the log and one advisory when a trouble begins and when it is over, and
has the node's replicas look at once whether they may still answer reads and own consumers.

Raft hands leaderships over by itself (`raft.node`); /healthz and /metrics ask `NodeHealth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jetcluster.health.node_health import Aspect, Trouble
from jetcluster.model.advisory import server_health
from jetcluster.replica.context import NodeContext, tell

if TYPE_CHECKING:
    from jetcluster.replica.stream_replica import StreamReplica


class HealthReport:
    """One per node."""

    def __init__(self, context: NodeContext, replicas: Mapping[int, StreamReplica]) -> None:
        self._context = context
        self._replicas = replicas
        health = context.raft.health
        commits = context.turn_commit
        health.watch(Aspect.SPACE, lambda: commits.failing if commits.full else "")
        health.watch(Aspect.SPACE, context.account_quota.trouble)
        health.watch(Aspect.STORE, lambda: "" if commits.full else commits.failing)
        health.watch(Aspect.STORE, context.kv.trouble)
        health.on_change(self._changed)

    def _changed(self, trouble: Trouble, began: bool) -> None:
        context = self._context
        seconds = round(context.clock.monotonic() - trouble.since, 1)
        aspect, reason = trouble.aspect.value, trouble.reason
        if began:
            context.log.error("this node is not well", aspect=aspect, reason=reason)
        else:
            context.log.warning("this node is well again", aspect=aspect, reason=reason, seconds=seconds)
        event = server_health(context.name, context.me, aspect, reason, None if began else seconds)
        tell(context, context.system_account, event)
        context.timers.call_soon(self._look)

    def _look(self) -> None:
        for replica in list(self._replicas.values()):
            replica.health_changed()
