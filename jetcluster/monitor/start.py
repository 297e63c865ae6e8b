"""The monitoring listener: its port is open from the start on, its pages are served when the node is ready."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from jetcluster.cluster.open_port import WILDCARDS, addresses
from jetcluster.config.options import Options, TlsOptions
from jetcluster.logs import get_logger
from jetcluster.monitor.http import Pages
from jetcluster.monitor.http_connection import HttpConnection
from jetcluster.monitor.metrics import Metrics
from jetcluster.monitor.node_source import source_of
from jetcluster.monitor.view import NodeView

if TYPE_CHECKING:
    import ssl

log = get_logger("monitor")

BACKLOG = 128
MAX_CONNECTIONS = 1024
"""At a time, or as many as there are descriptors for; for a further one the oldest goes that waits for a request."""
HANDSHAKE_SECONDS = 5.0
SHUTDOWN_SECONDS = 0.25
"""How long a request in progress may hold up the process's exit."""


class MonitorError(OSError):
    """The monitoring port cannot be opened; the text is ready for the `[FTL]` line."""


class Monitor:
    """A listening monitoring port. `port` is the bound one."""

    def __init__(self, node: NodeView, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._node = node
        self._listener = listener
        self._tls = tls
        self.scheme = "http" if tls is None else "https"
        self.host, self.port = listener.getsockname()[:2]
        self._server: asyncio.Server | None = None
        self._connections: dict[HttpConnection, None] = {}

    async def serve(self) -> None:
        """Answers from now on; who came before has waited in the system's queue."""
        source = source_of(self._node)
        answer = Pages(source, Metrics(self._node, source), self._node.options.http_base_path).answer
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(answer, self._connections, self._has_room),
            sock=self._listener,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls is not None else None,
        )

    def _has_room(self, transport: asyncio.BaseTransport) -> bool:
        watch, own = self._node.server.crowd.watch, transport.get_extra_info("socket")
        is_crowded = watch is not None and own is not None and watch.crowded(own.fileno())
        if len(self._connections) < MAX_CONNECTIONS and not is_crowded:
            return True
        idle = next((one for one in self._connections if one.work is None), None)
        if idle is None:
            return False
        del self._connections[idle]
        idle.cut()
        return True

    def renew_certificate(self, options: TlsOptions | None) -> None:
        """After a reload: from now on handshakes show what the files hold. Raises ConfigError."""
        if self._tls is not None and options is not None:
            from jetcluster.config.tls import load_certificate

            load_certificate(self._tls, options)

    async def stop(self) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.close()
        work = [one.work for one in self._connections if one.work is not None]
        if work:
            await asyncio.wait(work, timeout=SHUTDOWN_SECONDS)
        for one in list(self._connections):
            one.finish()
        self._listener.close()


def start_monitor(node: NodeView) -> Monitor:
    """Opens the port of `options.http_port` or `https_port` (-1: a free one), which nobody serves yet. Raises
    MonitorError, ConfigError."""
    options = node.options
    tls = _tls(options)
    host, port = options.http_host or options.host, max(options.http_port or options.https_port, 0)
    listener = _listen(host, port)
    monitor = Monitor(node, listener, tls)
    if host in WILDCARDS:
        monitor.host = host  # it listens on [::] then, for IPv4 too
    shown = f"[{host}]" if ":" in host else host
    log.info(f"Starting {monitor.scheme} monitor on {shown}:{monitor.port}")
    return monitor


def _tls(options: Options) -> ssl.SSLContext | None:
    """Who looks at the monitoring needs no certificate, whatever clients need, unless `https_verify` says so."""
    if not options.https_port:
        return None
    if options.http_port:
        ports = f"HTTP ({options.http_port}) and HTTPs ({options.https_port})"
        raise MonitorError(f"Can't start monitoring: can't specify both {ports} ports")
    if options.tls is None:
        raise MonitorError("Can't start monitoring: TLS cert and key required for HTTPS")
    from jetcluster.config.tls import server_context

    return server_context(replace(options.tls, verify=options.https_verify))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if len(addresses(host)) > 1 and socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=BACKLOG, reuse_port=False, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=False)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        shown = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        raise MonitorError(
            f"Can't start monitoring: can't listen to the monitor port: listen tcp {shown}: bind: {reason}"
        ) from error
    listener.setblocking(False)
    return listener
