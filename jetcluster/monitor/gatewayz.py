"""/gatewayz: always without gateways, which this server does not have; tools ask for the page all the same."""

from __future__ import annotations

from jetcluster.monitor.source import Json, Query, flag, subs_detail
from jetcluster.monitor.view import NodeView, now_text


def gatewayz(node: NodeView, query: Query) -> Json:
    """Raises QueryError."""
    subs_detail(query)
    flag(query, "accs")
    return {
        "server_id": node.server.server_id,
        "now": now_text(node),
        "outbound_gateways": {},
        "inbound_gateways": {},
    }
