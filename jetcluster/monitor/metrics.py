"""/metrics for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from jetcluster.monitor.exposition import Exposition
from jetcluster.monitor.lag import LagNotes
from jetcluster.monitor.metrics_jetstream import jetstream_metrics
from jetcluster.monitor.metrics_own import latency_metrics, node_metrics, replica_metrics, storage_metrics
from jetcluster.monitor.metrics_server import health_metric, server_metrics
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Query, QueryError
from jetcluster.monitor.view import NodeView

CORE, JETSTREAM = "gnatsd", "jetstream"
STREAMS_PER_TURN = 20


class Metrics:
    """One per node."""

    def __init__(self, node: NodeView, source: NodeSource) -> None:
        self._node = node
        self._source = source
        self._notes = LagNotes(node)

    async def scrape(self, query: Query) -> bytes:
        """`prefix` takes the place of the exporter's `gnatsd` and `jetstream`. Raises QueryError."""
        prefix = query.get("prefix", "")
        if prefix and not (prefix.isascii() and prefix.replace("_", "a").isalnum() and not prefix[0].isdigit()):
            raise QueryError(f"invalid prefix: {prefix[:80]}")
        core, system = prefix or CORE, prefix or JETSTREAM
        node, source, out = self._node, self._source, Exposition()
        self._notes.asked()
        server_metrics(out, node, source, core, query)
        health_metric(out, node, core, await source.healthz({}))
        node_metrics(out, node)
        latency_metrics(out, node)
        storage_metrics(out, node)
        await _spread(jetstream_metrics(out, node, source, system, query))
        await _spread(replica_metrics(out, node, self._notes))
        return out.render()


async def _spread(work: Iterator[None]) -> None:
    """A node may hold thousands of streams: clients are served in between."""
    for count, _ in enumerate(work, 1):
        if not count % STREAMS_PER_TURN:
            await asyncio.sleep(0)
