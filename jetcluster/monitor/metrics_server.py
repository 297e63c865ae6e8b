"""`gnatsd_*`: what prometheus-nats-exporter makes of /varz, /connz, /routez, /leafz, /subsz, /accstatz and /healthz.

Same names and labels, so that dashboards made for it go on. `server_id` is the server's name, as with the exporter's
`-use_internal_server_name`: the id changes with every start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from jetcluster.model.times import MILLISECOND, parse_rfc3339
from jetcluster.monitor.connz import DEFAULT_LIMIT
from jetcluster.monitor.exposition import Exposition, Labels
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import Health, Json, Query
from jetcluster.monitor.view import NodeView, figures, leaf_links, links_of

_CONNECTION_LABELS = (
    "cid", "kind", "type", "ip", "port", "name", "lang", "version", "tls_version", "tls_cipher_suite",
)  # fmt: skip
_TEXTS = ("server_id", "server_name", "version", "cluster_name", "jetstream_meta_leader", "jetstream_meta_name")
_TIMES = ("start", "config_load_time")
_NO_LIMIT = ("conn", "data", "exports", "imports", "leaf", "payload", "subs", "wildcards")
"""The exporter shows limits of JWT accounts, and 0 where an account comes from the configuration."""


def server_metrics(out: Exposition, node: NodeView, source: NodeSource, core: str, query: Query) -> None:
    """`core`: the prefix, `gnatsd` unless asked otherwise."""
    own: Labels = (("server_id", node.server.name),)
    _numbers(out, f"{core}_varz", source.page("varz", {}), own)
    _connections(out, f"{core}_connz", node, own)
    if query.get("connections"):
        _each_connection(out, f"{core}_connz", node, source, own, query)
    _routes(out, f"{core}_routez", node, own)
    _leafs(out, f"{core}_leafz", node, own)
    _numbers(out, f"{core}_subsz", source.page("subsz", {}), own)
    stats = source.page("accstatz", {"unused": "1"})["account_statz"]
    _accounts(out, f"{core}_accstatz", stats, own)
    _account_details(out, f"{core}_accountz", node, stats, own)


def health_metric(out: Exposition, node: NodeView, core: str, health: Health) -> None:
    own = (("server_id", node.server.name),)
    out.gauge(f"{core}_healthz_status", "0 is healthy", 0 if health.status == 200 else 1, own)
    out.gauge(f"{core}_healthz_status_value", "status", 1, (*own, ("value", health.body["status"])))


def _numbers(out: Exposition, prefix: str, page: Mapping[str, Any], labels: Labels, path: str = "") -> None:
    """Every number of a page, those of objects in it with the names joined; a few texts as labels."""
    for key, value in page.items():
        at = f"{path}_{key}" if path else key
        name = f"{prefix}_{at}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            out.gauge(name, at, value, labels)
        elif at in _TEXTS:
            out.gauge(name, at, 1, (*labels, ("value", value)))
        elif at in _TIMES:
            out.gauge(name, "Unix time in milliseconds", parse_rfc3339(value) // MILLISECOND, labels)
        elif at == "http_req_stats":
            for page_path, count in value.items():
                out.gauge(f"{name}_{page_path.strip('/').replace('/', '_')}", "requests", count, labels)
        elif isinstance(value, dict) and at != "metadata":
            _numbers(out, prefix, value, labels, at)


def _connections(out: Exposition, prefix: str, node: NodeView, labels: Labels) -> None:
    clients = list(node.server.clients)
    totals = {
        "num_connections": min(len(clients), DEFAULT_LIMIT),
        "total": len(clients),
        "offset": 0,
        "limit": DEFAULT_LIMIT,
        "pending_bytes": sum(client.pending for client in clients),
        "subscriptions": sum(len(client.subscriptions) for client in clients),
    }
    sums = Counter[str]()
    for client in clients:
        sums.update(figures(client))
    for key in ("in_bytes", "out_bytes", "in_msgs", "out_msgs"):
        out.counter(f"{prefix}_{key}", key, sums[key], labels)
    for key, value in totals.items():
        out.gauge(f"{prefix}_{key}", key, value, labels)


def _each_connection(
    out: Exposition, prefix: str, node: NodeView, source: NodeSource, own: Labels, query: Query
) -> None:
    """A page of connections, each with labels of its own; times in milliseconds, the rtt in microseconds."""
    asked = {key: query[key] for key in ("limit", "offset", "sort") if key in query}
    now, now_ns = node.clock.monotonic(), node.clock.time_ns()
    for shown in source.page("connz", {"auth": "1", **asked})["connections"]:
        client = node.server.clients.get(shown["cid"])
        assert client is not None, "it was on the page"
        account = (("account", client.account), ("account_id", client.account), ("name_tag", client.account))
        labels = (*own, *((name, shown.get(name, "")) for name in _CONNECTION_LABELS), *account)
        idle = int((now - client.last_activity) * 1000)
        for key, value in (
            ("pending_bytes", client.pending),
            ("subscriptions", len(client.subscriptions)),
            ("start", client.start_ns // MILLISECOND),
            ("last_activity", now_ns // MILLISECOND - idle),
            ("rtt", round(client.rtt * 1e6)),
            ("uptime", (now_ns - client.start_ns) // MILLISECOND),
            ("idle", idle),
        ):
            out.gauge(f"{prefix}_{key}", key, value, labels)
        for key, value in figures(client).items():
            out.counter(f"{prefix}_{key}", key, value, labels)


def _routes(out: Exposition, prefix: str, node: NodeView, own: Labels) -> None:
    links = sorted(links_of(node), key=lambda link: int(link.stats.rid))
    out.gauge(f"{prefix}_num_routes", "num_routes", len(links), own)
    for key, value in (("server_id", node.server.server_id), ("server_name", node.server.name)):
        out.gauge(f"{prefix}_{key}", key, 1, (*own, ("value", value)))
    now = node.clock.monotonic()
    for link in links:
        stats, info = link.stats, link.info
        labels = (*own, ("rid", stats.rid))
        remote = (("remote_id", link.peer_id), ("remote_name", info.name if info is not None else ""))
        out.gauge(
            f"{prefix}_route_info",
            "route_info",
            1,
            (*labels, *remote, ("account", ""), ("ip", stats.ip), ("compression", "off")),
        )
        out.gauge(f"{prefix}_route_rtt_seconds", "rtt_seconds", stats.rtt, labels)
        out.gauge(f"{prefix}_route_uptime_seconds", "uptime_seconds", round(now - stats.started, 3), labels)
        out.gauge(
            f"{prefix}_route_subscriptions",
            "subscriptions",
            sum(router.peers.wanted_by(link) for router in node.server.accounts),
            labels,
        )
        for key, count in figures(stats).items():
            out.gauge(f"{prefix}_route_{key}", key, count, labels)


def _leafs(out: Exposition, prefix: str, node: NodeView, own: Labels) -> None:
    links = leaf_links(node)
    out.gauge(f"{prefix}_conn_nodes_total", "nodes_total", len(links), own)
    for link in links:
        account = (("account", link.account), ("account_id", link.account))
        labels = (*own, *account, ("ip", link.ip), ("port", link.port), ("name", link.remote_name))
        out.gauge(f"{prefix}_info", "info", 1, labels)
        out.gauge(f"{prefix}_conn_rtt", "rtt", link.rtt, labels)
        out.gauge(f"{prefix}_conn_subscriptions_total", "subscriptions_total", link.wanted, labels)
        for key, value in figures(link).items():
            out.gauge(f"{prefix}_conn_{key}", key, value, labels)


def _accounts(out: Exposition, prefix: str, stats: list[Json], own: Labels) -> None:
    for stat in stats:
        name = stat["acc"]
        labels = (*own, ("account", name), ("account_id", name), ("account_name", name))
        for key, value in (
            ("current_connections", stat["conns"]),
            ("total_connections", stat["total_conns"]),
            ("subscriptions", stat["num_subscriptions"]),
            ("leaf_nodes", stat["leafnodes"]),
            ("sent_messages", stat["sent"]["msgs"]),
            ("sent_bytes", stat["sent"]["bytes"]),
            ("received_messages", stat["received"]["msgs"]),
            ("received_bytes", stat["received"]["bytes"]),
            ("slow_consumers", stat["slow_consumers"]),
        ):
            out.gauge(f"{prefix}_{key}", key, value, labels)


def _account_details(out: Exposition, prefix: str, node: NodeView, stats: list[Json], own: Labels) -> None:
    apis = node.jetstream.apis if node.jetstream is not None else {}
    for stat in stats:
        name = stat["acc"]
        labels = (*own, ("account_id", name), ("account_name", name))
        for key, value in (
            ("expired", False),
            ("complete", True),
            ("jetstream_enabled", name in apis),
            ("is_system", name == node.options.system_account_name),
            ("leafnode_connections", stat["leafnodes"]),
            ("client_connections", stat["conns"]),
            ("subscriptions", stat["num_subscriptions"]),
        ):
            out.gauge(f"{prefix}_{key}", key, value, labels)
        for key in _NO_LIMIT:
            out.gauge(f"{prefix}_limit_{key}", f"limit_{key}", 0, labels)
