"""`MonitorSource` of a running node."""

from __future__ import annotations

from jetcluster.monitor.connz import connz
from jetcluster.monitor.healthz import healthz
from jetcluster.monitor.jsz import jsz
from jetcluster.monitor.routez import routez
from jetcluster.monitor.source import Health, Json, Query
from jetcluster.monitor.subsz import subsz
from jetcluster.monitor.varz import CpuMeter, varz
from jetcluster.monitor.view import NodeView


class NodeSource:
    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._cpu = CpuMeter()
        self._requests: dict[str, int] = {}

    def varz(self, query: Query) -> Json:
        return varz(self._node, self._requests, self._cpu)

    def connz(self, query: Query) -> Json:
        return connz(self._node, query)

    def routez(self, query: Query) -> Json:
        return routez(self._node, query)

    def subsz(self, query: Query) -> Json:
        return subsz(self._node, query)

    def jsz(self, query: Query) -> Json:
        return jsz(self._node, query)

    def healthz(self, query: Query) -> Health:
        return healthz(self._node, query)

    def count_request(self, path: str) -> None:
        self._requests[path] = self._requests.get(path, 0) + 1
