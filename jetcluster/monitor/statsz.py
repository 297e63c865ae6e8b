"""STATSZ: what servers tell about themselves every ten seconds, and whenever the system account asks."""

from __future__ import annotations

from jetcluster.model.times import rfc3339
from jetcluster.monitor.accstatz import data_stats
from jetcluster.monitor.jsz import jetstream_config, jetstream_limits, jetstream_stats, meta_cluster
from jetcluster.monitor.source import Json
from jetcluster.monitor.varz import by_kind, traffic
from jetcluster.monitor.view import NodeView, engine_of, links_of, mesh_of


def statsz(node: NodeView) -> Json:
    server, links = node.server, sorted(links_of(node), key=lambda link: int(link.stats.rid))
    totals, usage = traffic(node), node.page_counters.usage
    mesh = mesh_of(node)
    routes = mesh.counters if mesh is not None else None
    found: Json = {
        "start": rfc3339(server.start_ns),
        "mem": usage.memory_bytes(),
        "cores": usage.cores(),
        "cpu": node.page_counters.cpu.percent(),
        "connections": totals["connections"],
        "total_connections": totals["total_connections"],
        "active_accounts": sum(1 for router in server.accounts if router.index.count),
        "subscriptions": server.accounts.subscriptions,
        "sent": data_stats(totals["out_msgs"], totals["out_bytes"]),
        "sent_to_clients": data_stats(totals["out_client_msgs"], totals["out_client_bytes"]),
        "received": data_stats(totals["in_msgs"], totals["in_bytes"]),
        "received_from_clients": data_stats(totals["in_client_msgs"], totals["in_client_bytes"]),
        "slow_consumers": totals["slow_consumers"],
        "slow_consumer_stats": by_kind(server.state.slow_consumers, routes.slow if routes else 0),
        "stale_connections": totals["stale_connections"],
        "stale_connection_stats": by_kind(server.state.stale_connections, routes.stale if routes else 0),
        "stalled_clients": totals["stalled_clients"],
    }
    if links:
        found["routes"] = [
            {
                "rid": link.stats.rid,
                "name": link.info.name if link.info is not None else "",
                "sent": data_stats(link.stats.out_msgs, link.stats.out_bytes),
                "received": data_stats(link.stats.in_msgs, link.stats.in_bytes),
                "pending": link.pending,
            }
            for link in links
        ]
    found["active_servers"] = 1 + len(links)
    if engine_of(node) is not None:
        config = jetstream_config(node)
        del config["store_dir"]
        found["jetstream"] = {"config": config, "stats": jetstream_stats(node)}
        meta = meta_cluster(node)
        if meta:
            found["jetstream"]["meta"] = meta
        found["jetstream"]["limits"] = jetstream_limits(node)
    found["gomaxprocs"] = usage.cores()
    return found
