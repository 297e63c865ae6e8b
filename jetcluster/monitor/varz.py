"""/varz: the version, options and counters of the server. STATSZ: the statistics that a server publishes every ten
seconds and on a request of the system account.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC
from functools import lru_cache
from pathlib import Path

from jetcluster import REPORTED_VERSION, __version__, native
from jetcluster.config import feature_flags
from jetcluster.config.tls_options import TlsOptions
from jetcluster.model.times import rfc3339
from jetcluster.monitor.accstatz import data_stats
from jetcluster.monitor.claims_view import of_operators
from jetcluster.monitor.jsz import jetstream_config, jetstream_limits, jetstream_stats, meta_cluster
from jetcluster.monitor.source import Json
from jetcluster.monitor.view import engine_of, figures, leaf_links, links_of, mesh_of, uptime
from jetcluster.node.node import Node


def varz(node: Node) -> Json:
    server, options = node.server, node.options
    info = server.info
    now, usage = node.clock.time_ns(), node.page_counters.usage
    found: Json = {
        "server_id": server.server_id,
        "server_name": server.name,
        "version": REPORTED_VERSION,
        "proto": info["proto"],
        "go": info["go"],
        "jetcluster": {"version": __version__, "loops": native.described, **_balance(node)},
        "host": options.host,
        "port": server.port,
    }
    for key in ("auth_required", "tls_required", "tls_verify", "connect_urls"):
        if info.get(key):
            found[key] = info[key]
    if server.ws_port is not None and (urls := server.ws_port.state.connect_urls):
        found["ws_connect_urls"] = urls
    found |= {
        "max_connections": options.max_connections,
        "ping_interval": int(options.ping_interval * 1e9),
        "ping_max": options.ping_max,
        "http_host": options.http_host or options.host,
        "http_port": (node.monitor_port or options.http_port) if options.http_port else 0,
        "http_base_path": options.http_base_path,
        "https_port": (node.monitor_port or options.https_port) if options.https_port else 0,
        "auth_timeout": options.auth_timeout,
        "max_control_line": options.max_control_line,
        "max_payload": options.max_payload,
        "max_pending": options.max_pending,
        "cluster": _cluster(node),
        "gateway": {},
        "leaf": _leaf(node),
        "mqtt": {},
        "websocket": _websocket(node),
        "jetstream": _jetstream(node),
        "tls_timeout": options.tls.timeout if options.tls else 2.0,
        "write_deadline": int(options.write_deadline * 1e9),
        "start": rfc3339(server.start_ns),
        "now": rfc3339(now),
        "uptime": uptime((now - server.start_ns) / 1e9),
        "mem": usage.memory_bytes(),
        "cores": usage.cores(),
        "gomaxprocs": usage.cores(),
        "cpu": node.page_counters.cpu.percent(),
    }
    found |= _certificate_end(options.tls, node.config_load_ns) | traffic(node)
    found["subscriptions"] = server.accounts.subscriptions
    found["http_req_stats"] = dict(sorted(node.page_counters.requests.items()))
    found["config_load_time"] = rfc3339(node.config_load_ns or server.start_ns)
    if options.config_digest:
        found["config_digest"] = options.config_digest
    if options.server_tags:
        found["tags"] = options.server_tags
    if options.server_metadata:
        found["metadata"] = options.server_metadata
    found["feature_flags"] = feature_flags.merged(options.feature_flags)
    found |= of_operators(node)
    found["system_account"] = options.system_account_name
    mesh = mesh_of(node)
    routes = mesh.counters if mesh is not None else None
    found["slow_consumer_stats"] = by_kind(server.state.slow_consumers, routes.slow if routes else 0)
    found["stale_connection_stats"] = by_kind(server.state.stale_connections, routes.stale if routes else 0)
    found["disk_io_wait_stats"] = _disk_waits(node)
    return found


def _balance(node: Node) -> Json:
    """Returns what this server has moved for balance while it led the meta group."""
    engine = engine_of(node)
    if engine is None or engine.balancer is None:
        return {}
    rules, balancer = engine.balancer.rules(), engine.balancer
    last = [move.to_dict() for move in balancer.last]
    return {"balance": {**rules._asdict(), "moved": dict(balancer.moved), "last": last}}


def _disk_waits(node: Node) -> Json:
    """Returns the waits for the journal's writes, which one thread makes in sequence. Times are in nanoseconds."""
    waits = node.jetstream.disk_waits if node.jetstream is not None else None
    return {
        "waiters": waits.waiters if waits is not None else 0,
        "waits": waits.waits if waits is not None else 0,
        "wait_time": waits.wait_ns if waits is not None else 0,
        "max_wait_time": waits.max_wait_ns if waits is not None else 0,
    }


def by_kind(clients: int, routes: int) -> Json:
    return {"clients": clients, "routes": routes, "gateways": 0, "leafs": 0}


def traffic(node: Node) -> Json:
    """Returns totals of clients, routes and leaf links; those named `client` count clients alone."""
    server, leaves = node.server, leaf_links(node)
    links = links_of(node)
    totals = server.clients.totals()

    routed = Counter[str]()
    for link in links:
        routed.update(figures(link.stats))
    for leaf in leaves:
        routed.update(figures(leaf))
    return {
        "connections": server.clients.connected,
        "total_connections": server.clients.total,
        "routes": len(links),
        "remotes": len(links),
        "leafnodes": len(leaves),
        "in_msgs": totals.in_msgs + routed["in_msgs"],
        "in_bytes": totals.in_bytes + routed["in_bytes"],
        "in_client_msgs": totals.in_msgs,
        "in_client_bytes": totals.in_bytes,
        "out_msgs": totals.out_msgs + routed["out_msgs"],
        "out_bytes": totals.out_bytes + routed["out_bytes"],
        "out_client_msgs": totals.out_msgs,
        "out_client_bytes": totals.out_bytes,
        "slow_consumers": server.state.slow_consumers,
        "stale_connections": server.state.stale_connections,
        "stalled_clients": server.state.stalled_clients,
    }


def _cluster(node: Node) -> Json:
    cluster = node.options.cluster
    if not node.options.is_clustered:
        return {}
    found: Json = {
        "name": cluster.name,
        "addr": cluster.host,
        "cluster_port": (0 if node.jetstream is None else node.jetstream.cluster_port) or cluster.port,
        "auth_timeout": cluster.authorization.timeout or 2.0,
        "urls": [_without_credentials(url) for url in cluster.routes],
        "tls_timeout": 2.0,
        "pool_size": 1,
    }
    return found | _listener_tls(cluster.tls, node.config_load_ns, mutual=True)


def _leaf(node: Node) -> Json:
    options, leafnodes = node.options.leafnodes, node.leafnodes
    if leafnodes is None:
        return {}
    found: Json = {}
    if options.port:
        found |= {"host": options.host, "port": leafnodes.port}
        found |= {"auth_timeout": options.auth_timeout, "tls_timeout": 2.0}
        found |= _listener_tls(options.tls, node.config_load_ns)
    if options.remotes:
        found["remotes"] = [
            {"local_account": remote.account, "urls": [_without_credentials(url) for url in remote.urls]}
            for remote in options.remotes
        ]
    return found


def _websocket(node: Node) -> Json:
    options, port = node.options.websocket, node.server.ws_port
    if port is None:
        return {}
    found: Json = {
        "host": options.host,
        "port": port.port,
        "advertise": options.advertise,
        "no_auth_user": options.no_auth_user,
        "jwt_cookie": options.jwt_cookie,
        "handshake_timeout": int(options.handshake_timeout * 1e9),
        "auth_timeout": options.authorization.timeout,
        "no_tls": options.no_tls,
        "tls_map": options.tls is not None and options.tls.verify_and_map,
        "tls_pinned_certs": options.tls.pinned_certs if options.tls else [],
        "same_origin": options.same_origin,
        "allowed_origins": options.allowed_origins,
        "compression": options.compression,
    }
    found |= _certificate_end(options.tls, node.config_load_ns)
    return {key: value for key, value in found.items() if value}


def _listener_tls(tls: TlsOptions | None, loaded_ns: int, *, mutual: bool = False) -> Json:
    """Returns the TLS of a port with its own block. `mutual`: certificates are requested even without `verify`."""
    if tls is None:
        return {}
    found: Json = {"tls_timeout": tls.timeout, "tls_required": True}
    if tls.verify or mutual:
        found["tls_verify"] = True
    return found | _certificate_end(tls, loaded_ns)


def _certificate_end(tls: TlsOptions | None, loaded_ns: int) -> Json:
    """Returns `tls_cert_not_after`; the file is read once per load of the configuration."""
    end = certificate_end(tls, loaded_ns)
    return {"tls_cert_not_after": end} if end else {}


def certificate_end(tls: TlsOptions | None, loaded_ns: int) -> str:
    """Returns when the certificate of a port ends, as RFC 3339; "" without one. `loaded_ns`: of the configuration."""
    return _not_after(tls.cert_file, loaded_ns) if tls is not None and tls.cert_file else ""


@lru_cache(maxsize=16)
def _not_after(file: str, _loaded_ns: int) -> str:
    from cryptography import x509

    try:
        with Path(file).open("rb") as pem:
            end = x509.load_pem_x509_certificate(pem.read()).not_valid_after_utc
    except (OSError, ValueError):
        return ""
    return end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_credentials(url: str) -> str:
    """Returns `host:port` of a route's URL, without the password."""
    return url.split("://", 1)[-1].rpartition("@")[2]


def _jetstream(node: Node) -> Json:
    if engine_of(node) is None:
        return {}
    found: Json = {"config": jetstream_config(node), "stats": jetstream_stats(node)}
    meta = meta_cluster(node)
    if meta:
        found["meta"] = meta
    found["limits"] = jetstream_limits(node)
    return found


def statsz(node: Node) -> Json:
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
    jetstream = _jetstream(node)
    if jetstream:
        del jetstream["config"]["store_dir"]
        found["jetstream"] = jetstream
    found["gomaxprocs"] = usage.cores()
    return found
