"""Options of a node's parts, derived from its configuration: journal, mesh, batches, uploads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from jetcluster.config.account_options import AuthorizationOptions
from jetcluster.config.options import ClusterOptions, CompatOptions, JetStreamOptions, WorkerOptions
from jetcluster.config.tls_options import TlsOptions
from jetcluster.files import Files, total_bytes
from jetcluster.mesh.auth import RouteCredentials
from jetcluster.mesh.options import ConfiguredRoute, MeshTls
from jetcluster.server.listener import host_port

if TYPE_CHECKING:
    import ssl

    from jetcluster.cluster.balancer import BalanceRules
    from jetcluster.cluster.bootstrap import Founding
    from jetcluster.objects.host import ObjectLimits
    from jetcluster.raft.config import JournalOptions
    from jetcluster.stream.lead.atomic_stage import BatchLimits

MIN_SEGMENT_BYTES = 4 * 1024 * 1024


def balance_rules(jetstream: JetStreamOptions) -> BalanceRules:
    from jetcluster.cluster.balancer import BalanceRules

    return BalanceRules(jetstream.balance_leaders, jetstream.balance_replicas)


def founding_of(worker: WorkerOptions | None) -> Founding:
    from jetcluster.cluster.bootstrap import Founding

    if worker is None:
        return Founding.TOGETHER
    return Founding.NEVER if worker.index else Founding.ALONE if worker.alone else Founding.TOGETHER


def tls_context(tls: TlsOptions | None) -> ssl.SSLContext | None:
    """Returns the TLS of a listening port; None without TLS. Raises ConfigError when files are unusable."""
    if tls is None:
        return None
    from jetcluster.config.tls import server_context

    return server_context(tls)


def journal_options(directory: Path, sync_interval: float | None, files: Files = os) -> JournalOptions:
    """Scales all sizes with the disk: a small volume must not be full from the start, nor of journal alone."""
    from jetcluster.raft.config import JournalOptions

    total = total_bytes(directory, files)
    usual = JournalOptions()
    return JournalOptions(
        segment_bytes=min(usual.segment_bytes, max(total // 32, MIN_SEGMENT_BYTES)),
        reserve_bytes=min(usual.reserve_bytes, total // 10),
        retain_bytes=min(usual.retain_bytes, total // 32),
        node_retain_bytes=min(usual.node_retain_bytes, total // 8),
        sync_interval=sync_interval,
    )


def credentials(authorization: AuthorizationOptions) -> RouteCredentials | None:
    if not authorization.user:
        return None
    return RouteCredentials(authorization.user, authorization.password)


def mesh_tls(cluster: ClusterOptions, tls: TlsOptions) -> MeshTls:
    """Raises ConfigError when files are unusable."""
    from jetcluster.config.tls import client_context, server_context

    check = None
    if tls.pinned_certs or tls.check_known_urls or tls.verify_and_map:
        from jetcluster.auth.certificates import route_check

        user = cluster.authorization.user if tls.verify_and_map else None
        check = route_check(tls.pinned_certs, cluster.routes if tls.check_known_urls else None, user)
    return MeshTls(server_context(tls, mutual=True), client_context(tls), tls.timeout, check)


def route(url: str) -> ConfiguredRoute:
    """Parses `nats://[user:password@]host:port`."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    credentials = None
    if parts.username:
        credentials = RouteCredentials(unquote(parts.username), unquote(parts.password or ""))
    return ConfiguredRoute(parts.hostname or "127.0.0.1", parts.port or 6222, credentials)


def object_limits(options: JetStreamOptions) -> ObjectLimits:
    from jetcluster.objects.host import ObjectLimits

    default = ObjectLimits()
    uploads, idle = options.max_object_uploads, options.object_idle_timeout
    return default._replace(uploads=uploads or default.uploads, idle=idle or default.idle)


def max_buffered(jetstream: JetStreamOptions) -> tuple[int, int]:
    from jetcluster.stream.lead.answers import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES

    messages, size = jetstream.max_buffered_msgs, jetstream.max_buffered_size
    return messages if messages > 0 else MAX_PENDING_MESSAGES, size if size > 0 else MAX_PENDING_BYTES


def batch_limits(options: JetStreamOptions, compat: CompatOptions) -> BatchLimits:
    """Returns the limits of batches; zero means the default, as in nats-server."""
    from jetcluster.stream.lead.atomic_stage import BatchLimits

    default, own = BatchLimits(), options.batch_allow_msg_id
    return BatchLimits(
        per_stream=options.max_batch_inflight_per_stream or default.per_stream,
        total=options.max_batch_inflight_total or default.total,
        messages=options.max_batch_size or default.messages,
        fast_per_stream=options.max_batch_inflight_per_stream or default.fast_per_stream,
        fast_total=options.max_batch_inflight_total or default.fast_total,
        timeout=options.max_batch_timeout or default.timeout,
        allow_msg_id=compat.batch_msg_id == "deduplicate" if own is None else own,
    )


def shown_size(count: float) -> str:
    """Returns a size as nats-server writes it: `17.66 GB`."""
    units = ["B", "KB", "MB", "GB", "TB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.2f} {units[0]}"


def router_port_error(host: str, port: int, error: OSError) -> str:
    why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
    return f"Error listening on router port: {port} - listen tcp {host_port(host, port)}: bind: {why}"


def default_folder() -> str:
    """Returns nats-server's folder for a configuration without one."""
    import tempfile  # with the packers that it imports 2 ms of a start

    return f"{tempfile.gettempdir()}/nats"
