"""One node: puts the rooms together, runs them on one event loop, and takes them down again.

Order of start: store and journal, mesh, JetStream, then the client listener, so that whoever can connect can be served.
"Server is ready" is the last line. Order of stop: clients, JetStream (leaderships go elsewhere first), mesh, store.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import signal
from typing import Any

from jetcluster.clock import SystemClock, SystemRng
from jetcluster.config.options import Options
from jetcluster.logs import Logger
from jetcluster.node.node_jetstream import NodeJetStream, StorageError
from jetcluster.server.listener import ListenError
from jetcluster.server.options import ServerOptions
from jetcluster.server.server import Server

GC_THRESHOLDS = (50_000, 20, 50)
"""Data-path objects die young by reference count; the collector's default of 700 allocations would run it thousands of
times per second."""


class Node:
    """A server process from the inside. `start` raises ListenError, StorageError or OSError."""

    def __init__(self, options: Options, log: Logger) -> None:
        self.options = options
        self.log = log
        self.clock = SystemClock()
        self.rng = SystemRng()
        self.server: Server
        self.jetstream: NodeJetStream | None = None
        self.monitor: Any = None
        self.exit_code = 0
        self.stopped = asyncio.Event()
        self._stopping = False

    async def start(self) -> None:
        options, loop = self.options, asyncio.get_running_loop()
        from jetcluster.auth.authenticator import Authenticator

        self.server = Server(server_options(options), Authenticator(options), self.clock, self.rng, loop)
        self._log_start()
        self.jetstream = NodeJetStream(self)
        await self.jetstream.start()
        await self._start_monitor()
        await self.server.start()
        self._log_listening()
        self.jetstream.client_listener_is_up()
        self._write_files()
        self._handle_signals(loop)
        self.log.info("Server is ready")

    async def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self.log.info("Initiating Shutdown...")
        await self.server.stop()
        if self.jetstream is not None:
            await self.jetstream.stop()
        if self.monitor is not None:
            await self.monitor.stop()
        if self.options.ports_file_dir:
            from jetcluster.config.runtime_files import remove_ports_file

            remove_ports_file(self.options.ports_file_dir)
        self.log.info("Server Exiting..")
        self.stopped.set()

    async def lame_duck(self) -> None:
        if self._stopping or self.server.lame_duck:
            return
        if self.jetstream is not None:
            await self.jetstream.step_aside()
        await self.server.enter_lame_duck()
        await self.stop()

    def storage_failed(self, error: BaseException) -> None:
        """The journal could not be written, for another reason than a full disk: nothing can be vouched for any more,
        and a retry after a failed fsync would lie (see raft/journal.py). The process ends; its replicas live on
        elsewhere."""
        self.log.fatal(f"Raft journal failed: {error}")
        self.exit_code = 1
        self.stopped.set()

    # ---- parts

    async def _start_monitor(self) -> None:
        if not self.options.http_port:
            return
        from jetcluster.monitor.start import start_monitor

        self.monitor = await start_monitor(self)

    def _log_start(self) -> None:
        from jetcluster import REPORTED_VERSION, __version__

        options, log = self.options, self.log
        log.info("Starting nats-server")
        log.info(f"  Version:  {REPORTED_VERSION} (jetcluster {__version__})")
        if options.cluster_name:
            log.info(f"  Cluster:  {options.cluster_name}")
        log.info(f"  Name:     {self.server.name}")
        log.info(f"  ID:       {self.server.server_id}")
        if options.config_file:
            log.info(f"Using configuration file: {options.config_file} ({options.config_digest})")
        for warning in options.warnings:
            log.warning(warning)

    def _log_listening(self) -> None:
        host = self.options.host
        shown = f"[{host}]" if ":" in host else host
        self.log.info(f"Listening for client connections on {shown}:{self.server.port}")

    def _write_files(self) -> None:
        options = self.options
        if options.pid_file:
            from jetcluster.config.runtime_files import write_pid_file

            write_pid_file(options.pid_file)
        if options.ports_file_dir:
            from jetcluster.config.runtime_files import write_ports_file

            write_ports_file(options.ports_file_dir, self.listening())

    def listening(self) -> dict[str, list[str]]:
        """URLs by kind, as the ports file has them."""
        host = "127.0.0.1" if self.options.host in ("", "0.0.0.0", "::") else self.options.host  # noqa: S104
        found = {"nats": [f"nats://{host}:{self.server.port}"]}
        if self.monitor is not None:
            found["monitoring"] = [f"http://{host}:{self.monitor.port}"]
        if self.jetstream is not None and self.jetstream.cluster_port:
            found["cluster"] = [f"nats://{host}:{self.jetstream.cluster_port}"]
        return found

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGINT, self._spawn_stop)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self._keep(self.lame_duck()))
        loop.add_signal_handler(signal.SIGUSR1, self._reopen_log)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _spawn_stop(self) -> None:
        self._keep(self.stop())

    def _terminate(self) -> None:
        if not self.server.lame_duck:  # nats-server ignores TERM while it is a lame duck (sheet 3.2)
            self._keep(self.stop())

    def _keep(self, work: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def _reopen_log(self) -> None:
        from jetcluster import logs

        logs.reopen()

    def _reload(self) -> None:
        self.log.warning("Configuration reload is not implemented yet; the running configuration stays")


def server_options(options: Options) -> ServerOptions:
    """The part of the configuration that the client-facing server reads; fields carry the same names."""
    names = {f.name for f in dataclasses.fields(ServerOptions)} - {"tls", "version", "api_level", "jetstream"}
    from_config = {name: getattr(options, name) for name in names if hasattr(options, name)}
    built = ServerOptions(**from_config)
    built.jetstream = options.jetstream.enabled
    if options.tls is not None:
        from jetcluster.config.tls import server_context

        built.tls = server_context(options.tls)
        built.tls_required = not options.allow_non_tls
        built.tls_verify = options.tls.verify
        built.tls_timeout = options.tls.timeout
        built.tls_handshake_first = options.tls.handshake_first
    return built


def run(options: Options, log: Logger) -> int:
    """Runs a node until it is told to stop; returns the exit code."""
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        return runner.run(_main(options, log))


async def _main(options: Options, log: Logger) -> int:
    node = Node(options, log)
    try:
        await node.start()
    except (ListenError, StorageError, OSError) as error:
        log.fatal(str(error))
        return 1
    gc.collect()
    gc.freeze()
    await node.stopped.wait()
    return node.exit_code
