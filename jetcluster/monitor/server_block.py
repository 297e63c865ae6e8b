"""The `server` object of every `$SYS` reply and event: who says this."""

from __future__ import annotations

from jetcluster import REPORTED_VERSION
from jetcluster.model.times import rfc3339
from jetcluster.monitor.feature_flags import FEATURE_FLAGS
from jetcluster.monitor.source import Json
from jetcluster.monitor.view import NodeView

JETSTREAM_FLAG = 1


class ServerBlock:
    """`seq` counts what this server has said."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._seq = 0

    def make(self) -> Json:
        options, server = self._node.options, self._node.server
        self._seq += 1
        found: Json = {"name": server.name, "host": options.host, "id": server.server_id}
        if options.is_clustered:
            found["cluster"] = options.cluster_name
        if options.domain:
            found["domain"] = options.domain
        found["ver"] = REPORTED_VERSION
        if options.server_tags:
            found["tags"] = list(options.server_tags)
        if options.server_metadata:
            found["metadata"] = dict(options.server_metadata)
        found["feature_flags"] = dict(FEATURE_FLAGS)
        enabled = options.jetstream.enabled
        found |= {"jetstream": enabled, "flags": JETSTREAM_FLAG if enabled else 0}
        return found | {"seq": self._seq, "time": rfc3339(self._node.clock.time_ns())}
