"""`NodeSource`: the pages of a running node, for HTTP and for the system account."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from jetcluster.budget import Steps, at_once
from jetcluster.health.usage import Usage
from jetcluster.monitor.accountz import accountz
from jetcluster.monitor.accstatz import accstatz
from jetcluster.monitor.connz import connz_steps
from jetcluster.monitor.gatewayz import gatewayz
from jetcluster.monitor.healthz import healthz, restart_health
from jetcluster.monitor.jsz import jsz_steps
from jetcluster.monitor.leafz import leafz
from jetcluster.monitor.raftz import raftz
from jetcluster.monitor.routez import routez_steps
from jetcluster.monitor.source import Health, Json, Query, flag
from jetcluster.monitor.subsz import subsz_steps
from jetcluster.monitor.varz import varz
from jetcluster.monitor.view import NodeView

T = TypeVar("T")
_IN_STEPS = {"connz": connz_steps, "jsz": jsz_steps, "routez": routez_steps, "subsz": subsz_steps}
"""Pages as long as a client or the number of streams makes them."""


_SHORT: Mapping[str, Callable[[NodeView, Query], Json]] = {
    "accountz": accountz,
    "accstatz": accstatz,
    "gatewayz": gatewayz,
    "leafz": leafz,
    "raftz": raftz,
    "varz": lambda node, _: varz(node),
}


class NodeSource:
    """Pages by name, each a JSON object with nats-server's field names. All raise QueryError. They run on the event
    loop, so what can be long is made `in_steps`."""

    def __init__(self, node: NodeView) -> None:
        self._node = node

    def page(self, name: str, query: Query) -> Json:
        """The page `name`, made at once. Raises QueryError, KeyError."""
        return at_once(self.in_steps(name, query))

    async def healthz(self, query: Query) -> Health:
        if flag(query, "safe-to-restart"):
            return await restart_health(self._node)
        return healthz(self._node, query)

    def in_steps(self, name: str, query: Query) -> Steps[Json]:
        """As `page`, in steps of about a millisecond."""
        steps = _IN_STEPS.get(name)
        if steps is not None:
            return (yield from steps(self._node, query))
        return _SHORT[name](self._node, query)

    async def run(self, asker: str, steps: Steps[T]) -> T:
        """Within the time of the loop that the node's jobs have. Raises BusyError, and what `steps` raise."""
        return await self._node.server.budget.run(("monitor", asker), steps)

    @property
    def usage(self) -> Usage:
        return self._node.page_counters.usage

    def count_request(self, path: str) -> None:
        """Counts a request over HTTP, for `http_req_stats` of /varz."""
        counts = self._node.page_counters.requests
        counts[path] = counts.get(path, 0) + 1
