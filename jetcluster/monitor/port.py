"""The monitoring listener: its port is open before "Server is ready"; aiohttp is imported at the first connection.

Importing aiohttp takes 0.2-0.35 s and 20 MB. So the socket is bound and listening first, which is all that tools check;
the first request waits in the backlog while a thread imports aiohttp, and a port that nobody asks costs nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetcluster.cancelling import cancelled
from jetcluster.config.options import Options
from jetcluster.errors import OperatorError
from jetcluster.logs import get_logger
from jetcluster.monitor.source import WORKER_METHOD
from jetcluster.net.open_port import WILDCARDS, addresses
from jetcluster.node.node import Node

if TYPE_CHECKING:
    import ssl

    from aiohttp import web

    from jetcluster.console.door import Door
    from jetcluster.monitor.connections import Connections
    from jetcluster.monitor.machine import MachinePages

log = get_logger("monitor")

MAX_BACKLOG = 128
MAX_CONNECTIONS = 128
SHUTDOWN_SECONDS = 0.25
"""Seconds for which a request in progress may delay the exit of the process."""


class MonitorError(OperatorError, OSError):
    """The monitoring port cannot be opened; the text is ready for the `[FTL]` line."""


class Monitor:
    """A listening monitoring port. `port` is the bound one."""

    def __init__(self, node: Node, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._node = node
        self._listener = listener
        self._tls = tls
        self.scheme = "http" if tls is None else "https"
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._open: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Opens the port, again after a change of TLS; None until the first connection has come."""
        self._renewing: set[asyncio.Task[None]] = set()
        self.connections: Connections | None = None
        """None until aiohttp is imported."""
        self.most_connections = MAX_CONNECTIONS
        self._door: Door | None = None
        """None without a console, and until aiohttp is imported."""
        self.host, self.port = listener.getsockname()[:2]
        self._machine: asyncio.Future[MachinePages] = asyncio.get_running_loop().create_future()
        """Done on a worker once its pages are imported; never elsewhere."""
        if node.options.worker is not None and node.jetstream is not None:
            node.jetstream.mesh.serve(WORKER_METHOD, self._serve_worker)
        self._asked = asyncio.Event()
        """Set when somebody wants a page: then they are imported."""
        self._attaching: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._attach())

    async def _attach(self) -> None:
        await _connection(self._listener, self._asked)
        try:
            await asyncio.to_thread(import_pages)
            from aiohttp import web

            from jetcluster.monitor.connections import HEAD_SECONDS, IDLE_SECONDS, Connections, ShortLog
            from jetcluster.monitor.http import application
            from jetcluster.monitor.metrics import Metrics
            from jetcluster.monitor.pages import NodeSource

            pages = NodeSource(self._node)
            if self._node.options.console:
                self._door = self._make_door()
            connections = self.connections = Connections(
                self._node.server.crowd.has_room_at, self._node.clock, self.most_connections, self._door
            )
            place, metrics = self._node.options.worker, Metrics(self._node, pages)
            machine = None
            if place is not None:
                from jetcluster.monitor.machine import MachinePages

                machine = MachinePages(self._node, place, pages, metrics)
                self._machine.set_result(machine)
            options = self._node.options
            app = application(pages, metrics, options.http_base_path, machine, console=options.console)
            app.middlewares.append(connections.answer)
            runner = web.AppRunner(
                app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, logger=ShortLog(connections),
                keepalive_timeout=IDLE_SECONDS, lingering_time=HEAD_SECONDS,
            )  # fmt: skip
            await runner.setup()
            self._runner = runner
            assert runner.server is not None, "it was set up"
            factory = connections.factory(runner.server)

            async def open_port() -> None:
                """Accepts connections by the present TLS context; those that are open stay."""
                former, ours = self._server, self._listener.dup()
                self._server = await asyncio.get_running_loop().create_server(
                    factory, sock=ours, backlog=MAX_BACKLOG, ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else HEAD_SECONDS,
                )  # fmt: skip
                if former is not None:
                    former.close()

            self._open = open_port
            await open_port()
        except Exception:
            log.exception("monitoring does not work")

    def _make_door(self) -> Door:
        from jetcluster.console.door import Door

        options, secure = self._node.options, self._tls is not None
        return Door(self._node.server.parts, self.host, self.port, options.http_base_path, secure=secure)

    async def _serve_worker(self, peer: str, payload: bytes) -> bytes:
        """Answers another worker, which waits for the import: the kernel may give all connections to that one."""
        self._asked.set()
        return await (await asyncio.shield(self._machine)).serve(peer, payload)

    def renew_tls(self, options: Options) -> None:
        """Takes over certificate and authorities of a reload, for later connections. Raises ConfigError."""
        if self._tls is None or options.tls is None:
            return
        self._tls = _tls(options)
        if self._open is not None:
            renewing = asyncio.get_running_loop().create_task(self._open())
            self._renewing.add(renewing)
            renewing.add_done_callback(self._renewing.discard)

    async def stop(self) -> None:
        """Closes the port."""
        task, self._attaching = self._attaching, None
        if task is not None:
            await cancelled([task])
        if self._renewing:
            await asyncio.wait(self._renewing)
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self.connections is not None:
            self.connections.close()
        if self._door is not None:
            self._door.close()
        self._listener.close()


async def _connection(listener: socket.socket, came: asyncio.Event) -> None:
    """Returns when the first connection waits to be accepted, or `came` is set."""
    loop = asyncio.get_running_loop()
    loop.add_reader(listener, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(listener)


def import_pages() -> None:
    """Imports, in a thread, the modules that answer requests, and aiohttp with them."""
    import jetcluster.monitor.connections
    import jetcluster.monitor.http
    import jetcluster.monitor.metrics
    import jetcluster.monitor.pages  # noqa: F401


async def start_monitor(node: Node) -> Monitor:
    """Opens the port of `options.http_port` or `https_port` (-1: a free one). Raises MonitorError, ConfigError."""
    options = node.options
    tls = _tls(options)
    host, port = options.http_host or options.host, max(options.http_port or options.https_port, 0)
    listener = _listen(host, port, shared=options.worker is not None)
    monitor = Monitor(node, listener, tls)
    if host in WILDCARDS:
        monitor.host = host  # it listens on [::] then, for IPv4 too
    shown = f"[{host}]" if ":" in host else host
    log.info(f"Starting {monitor.scheme} monitor on {shown}:{monitor.port}")
    if options.console:
        base = options.http_base_path.strip("/")
        log.info(f"Console on {monitor.scheme}://{shown}:{monitor.port}/{base}{'/' if base else ''}ui/")
        if not node.server.authenticator.required:
            log.warning("The console asks for no login: whoever reaches the monitoring port may do what any client may")
    return monitor


def _tls(options: Options) -> ssl.SSLContext | None:
    """Returns the TLS context: only `https_verify` asks for certificates, even where clients must show one."""
    if not options.https_port:
        return None
    if options.http_port:
        ports = f"HTTP ({options.http_port}) and HTTPs ({options.https_port})"
        raise MonitorError(f"Can't start monitoring: can't specify both {ports} ports")
    if options.tls is None:
        raise MonitorError("Can't start monitoring: TLS cert and key required for HTTPS")
    from jetcluster.config.tls import server_context

    return server_context(replace(options.tls, verify=options.https_verify))


def _listen(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if len(addresses(host)) > 1 and socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=MAX_BACKLOG, reuse_port=shared, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server((host, port), family=family, backlog=MAX_BACKLOG, reuse_port=shared)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        shown = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        raise MonitorError(
            f"Can't start monitoring: can't listen to the monitor port: listen tcp {shown}: bind: {reason}"
        ) from error
    listener.setblocking(False)
    return listener
