"""`Node`: assembles the rooms of one server, runs them on one event loop, and stops them.

Order of start: store and journal, mesh, JetStream, then the client listener, so that a connected client is served. The
port may be open earlier (`net.early_port`); its clients wait for INFO. "Server is ready" is the last line. Order of
stop: clients, JetStream (after handing over leaderships), mesh, store.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetcluster import REPORTED_VERSION, __version__, logs, native
from jetcluster.auth.authenticator import Authenticator
from jetcluster.config import feature_flags
from jetcluster.config.options import Options
from jetcluster.health.usage import PageCounters
from jetcluster.logs import Logger
from jetcluster.node.node_jetstream import Endings, NodeJetStream
from jetcluster.node.part_options import tls_context
from jetcluster.node.platform import Platform, SystemPlatform
from jetcluster.node.warm_up import warm_up
from jetcluster.records import NamedTuple
from jetcluster.server.listener import host_port
from jetcluster.server.server import Server, enter_lame_duck

if TYPE_CHECKING:
    from jetcluster.node.operator_mode import AccountChange, NodeOperator
    from jetcluster.node.supervised import SupervisorLink
    from jetcluster.server.leaf.nodes import LeafNodes

_SIGNAL_NAMES = {
    signal.SIGINT: "interrupt",
    signal.SIGTERM: "terminated",
    signal.SIGUSR1: "user defined signal 1",
    signal.SIGUSR2: "user defined signal 2",
    signal.SIGHUP: "hangup",
}
"""Names of signals in nats-server's log."""


class Monitoring:
    """The system account and the monitoring port of a node. This class has neither; `monitor.start` has both."""

    def __init__(self) -> None:
        self.parts: dict[object, object] = {}
        """Things that the pages share, each by its class (`monitor.shared.part_of`)."""

    @property
    def notes(self) -> object:
        """The notes that the pages share (`monitor.lag.LagNotes`); None without pages."""
        return None

    async def start(self) -> None:
        """Begins once JetStream runs, before clients are served. Raises OperatorError."""

    def modules(self) -> list[str]:
        """Returns the modules that the first answers need, for the warm-up."""
        return []

    def lame_duck(self) -> None:
        """Reports that the node is going away."""

    async def ask_others(self, account: str, others: int, seconds: float) -> str:
        """Returns the account's JWT, from the first of `others` servers that has it; "" when none has."""
        return ""

    def look_at_certificates(self) -> None:
        """Has the log told which of the configuration's certificates are over."""

    def renew_tls(self, options: Options) -> None:
        """Takes over the certificate and the authorities of a reload. Raises ConfigError."""

    def address(self) -> tuple[str, str, int] | None:
        """Returns scheme, host and port; None without a port."""
        return None

    async def stop(self) -> None:
        """Stops before all other parts: nothing is answered any more."""

    async def close_port(self) -> None:
        """Stops after all other parts."""


class RefusedReload(NamedTuple):
    """A reload that changed nothing."""

    reason: str
    at_ns: int
    """Unix nanoseconds."""


class Node:
    """One server inside its process. `start` raises ListenError, StorageError or OSError."""

    def __init__(
        self,
        options: Options,
        log: Logger,
        reload: Callable[[Node, str], str] | None = None,
        platform: Platform | None = None,
        monitoring: Callable[[Node], Monitoring] = lambda node: Monitoring(),
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`reload` takes over the present configuration, given a cause; it returns why it failed, or "". `platform` is
        the operating system by default. `on_stop` is called when the stop begins."""
        self.options = options
        self.log = log
        self._reload_options = reload
        self._make_monitoring = monitoring
        self.platform = platform or SystemPlatform()
        self.clock = self.platform.clock
        self.rng = self.platform.rng
        self.server: Server
        self.operator: NodeOperator | None = None
        """None when the configuration has no operator."""
        self.jetstream: NodeJetStream | None = None
        self.leafnodes: LeafNodes | None = None
        """None when no leaf nodes are configured."""
        self.monitoring = Monitoring()
        self.supervisor: SupervisorLink | None = None
        """None in a server of one process, and before a worker is ready."""
        self.monitor_port = 0
        """Port of the monitoring; 0 before it is open, or without one."""
        self.page_counters = PageCounters(self.clock, self.platform.usage)
        self.config_load_ns = 0
        """Unix nanoseconds of the last reload; 0: none since the start."""
        self.refused_reload: RefusedReload | None = None
        """The last reload, if it was refused: the server goes on with other options than its file has."""
        self.exit_code = 0
        self.again = False
        """True when the process must restart once the node has stopped."""
        self._leaving = False
        """True from the order to become a lame duck on, before leaderships have moved."""
        self.stopped = asyncio.Event()
        self._on_stop = on_stop
        self._started = False
        self._stopping = False
        self._stop_asked = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        options, loop = self.options, asyncio.get_running_loop()
        files = self.platform.raise_limit()
        authenticator: Authenticator | None = None
        if options.operator.is_on:
            from jetcluster.node.operator_mode import NodeOperator

            self.operator = NodeOperator(options, self.clock, self.log, self._account_changed, self._ask_others)
            self.operator.start()
            authenticator = self.operator.authenticator(options)
        authenticator = authenticator or Authenticator(options, rng=self.rng)
        self.server = Server(
            # A copy: a reload changes this object in place, and the server compares.
            replace(options), authenticator, self.clock, self.rng, loop, tls_context(options.tls),
            self.platform.descriptors(), self.operator.look_up if self.operator is not None else lambda error: None,
        )  # fmt: skip
        self._handle_signals(loop)
        self._log_start()
        if files[0] != files[1]:
            self.log.info(f"Limit of open files raised from {files[0]} to {files[1]}")
        self._write_pid_file()
        endings = Endings(self.give_up, self.storage_failed, self.start_again)
        self.jetstream = NodeJetStream(options, self.server, self.platform, self.log, endings)
        await self.jetstream.start()
        self.share()
        self.monitoring = self._make_monitoring(self)
        await self.monitoring.start()
        await self.jetstream.prepare()
        await self.server.start()
        self._log_listening()
        await self._start_websocket()
        await self._start_leafnodes()
        await self.jetstream.introduce()
        self._write_ports_file()
        worker = options.worker
        self.log.info("Server is ready" if worker is None else f"Worker {worker.index} is ready")
        self._started = True
        self._keep(warm_up(self.options, self.server.clients.visited, self.monitoring.modules()))
        if self._stop_asked:
            self._keep(self.stop())

    async def stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self.log.info("Initiating Shutdown...")
        self._on_stop()
        if self.operator is not None:
            self.operator.stop()
        await self._part_stops(self.monitoring.stop())
        if self.leafnodes is not None:
            await self._part_stops(self.leafnodes.stop())
        if self.jetstream is not None:
            self.jetstream.end_deliveries()
        await self._part_stops(self.server.stop())
        if self.jetstream is not None:
            await self._part_stops(self.jetstream.stop())
        await self._part_stops(self.monitoring.close_port())
        if self.options.ports_file_dir:
            from jetcluster.config.runtime_files import remove_ports_file

            remove_ports_file(self.options.ports_file_dir)
        self.log.info("Server Exiting..")
        self.stopped.set()

    async def _part_stops(self, stop: Coroutine[Any, Any, None]) -> None:
        """Awaits `stop`. After an error the other parts are stopped all the same, and the exit code is 1."""
        try:
            await stop
        except Exception as error:  # noqa: BLE001
            self.log.error(f"Shutdown: {error!r}")  # noqa: TRY400
            self.exit_code = 1

    def start_again(self) -> None:
        """Stops as on SIGTERM, after handing over leaderships; then `process.run` returns START_AGAIN."""
        if self._started:
            self._keep(self._stop_to_start_again())
        else:
            self.again = self._stop_asked = True

    async def _stop_to_start_again(self) -> None:
        if self._stopping:
            return
        self.again = True
        if self.jetstream is not None:
            await self._part_stops(self.jetstream.step_aside())
        await self.stop()

    async def lame_duck(self) -> None:
        if self._stopping or self.server.lame_duck:
            return
        self.monitoring.lame_duck()
        if self.jetstream is not None:
            await self.jetstream.step_aside()
        await enter_lame_duck(self.server)
        await self.stop()

    def storage_failed(self, error: BaseException) -> None:
        """Ends the process after a failed write of the journal, other than for a full disk: nothing can be vouched for
        any more, and a retry after a failed fsync would lie (raft/journal/journal.py). Other replicas live on."""
        self.log.fatal(f"Raft journal failed: {error}")
        self.exit_code = 1
        self.stopped.set()

    def give_up(self, reason: str) -> None:
        """Stops this server, which must not continue, with exit code 1."""
        self.log.fatal(reason)
        self.exit_code = 1
        self.interrupt()

    # ---- parts

    def share(self) -> None:
        """Applies the imports and mappings of the accounts' present options."""
        options = self.options
        if options.shares or self.server.sharing is not None:
            self.server.share(
                options.accounts or {},
                options.mappings,
                options.system_account_name,
                operator=options.operator.is_on,
            )

    async def _start_websocket(self) -> None:
        if self.options.websocket.port:
            from jetcluster.server.ws.port import WsPort

            port = self.server.ws_port = WsPort(self.server.parts, tls_context(self.options.websocket.tls))
            await port.start()
            if self.jetstream is not None:
                self.jetstream.ws_listener_is_up(port)

    async def _start_leafnodes(self) -> None:
        if self.options.leafnodes.port or self.options.leafnodes.remotes:
            from jetcluster.server.leaf.nodes import LeafNodes

            self.leafnodes = LeafNodes(self.server.parts)
            await self.leafnodes.start()
            if self.jetstream is not None:
                self.jetstream.leaf_listener_is_up(self.leafnodes)

    def _account_changed(self, change: AccountChange) -> None:
        """Applies an account's changed options, except limits of connections, which the server reads by itself."""
        if change.shares:
            self.share()
        if self.jetstream is not None:
            if change.jetstream:
                self.jetstream.reconfigure(["accounts"])
            else:
                self.jetstream.limits_changed()
        self.server.recheck(change.account)
        if self.leafnodes is not None:
            self.leafnodes.recheck(change.account)

    async def _ask_others(self, account: str, seconds: float) -> str:
        """Returns the account's JWT from the first other server that has it; "" when none has."""
        others = len(self.jetstream.mesh.links) if self.jetstream is not None else 0
        return await self.monitoring.ask_others(account, others, seconds) if others else ""

    def change_leafnodes(self) -> None:
        """Takes over the leaf nodes' options of a reload."""
        if self.leafnodes is not None:
            self.leafnodes.reconfigure(self.options.leafnodes)
        elif self.options.leafnodes.remotes:
            self._keep(self._start_leafnodes())  # no port can need opening: the reload would have been refused

    def move_ports_file(self, left: str) -> None:
        """Writes the ports file anew after a reload; `left` is the previous folder."""
        from jetcluster.config.runtime_files import remove_ports_file

        if left:
            remove_ports_file(left)
        self._write_ports_file()

    def _log_start(self) -> None:
        options, log = self.options, self.log
        log.info("Starting nats-server")
        log.info(f"  Version:  {REPORTED_VERSION} (jetcluster {__version__}, {native.described})")
        if options.cluster_name:
            log.info(f"  Cluster:  {options.cluster_name}")
        log.info(f"  Name:     {self.server.name}")
        log.info(f"  ID:       {self.server.server_id}")
        for line in feature_flags.log_lines(options.feature_flags):
            log.info(line)
        if options.config_file:
            log.info(f"Using configuration file: {options.config_file} ({options.config_digest})")
        if self.operator is not None:
            self.operator.log_start()
        for warning in options.warnings:
            log.warning(warning)

    def _log_listening(self) -> None:
        self.log.info(f"Listening for client connections on {host_port(self.options.host, self.server.port)}")

    def _write_pid_file(self) -> None:
        """Writes the file before any port opens, because a harness reads it after. Raises PidFileError."""
        if self.options.pid_file:
            from jetcluster.config.runtime_files import write_pid_file

            write_pid_file(self.options.pid_file)

    def _write_ports_file(self) -> None:
        directory = self.options.ports_file_dir
        if not directory:
            return
        from jetcluster.config.runtime_files import PortsFileError, write_ports_file

        try:
            write_ports_file(directory, self.listening())
        except PortsFileError as error:
            self.log.error(str(error))  # noqa: TRY400 - the server continues, as nats-server does

    def listening(self) -> dict[str, list[str]]:
        """Returns the URLs by kind, as in the ports file."""
        from jetcluster.config.runtime_files import listener_url

        found = {"nats": [listener_url("nats", self.server.host, self.server.port)]}
        address = self.monitoring.address()
        if address is not None:
            found["monitoring"] = [listener_url(*address)]
        if self.jetstream is not None and self.jetstream.cluster_port:
            found["cluster"] = [listener_url("nats", self.options.cluster.host, self.jetstream.cluster_port)]
        if self.leafnodes is not None and self.leafnodes.port:
            found["leafnode"] = [listener_url("nats", self.leafnodes.host, self.leafnodes.port)]
        port = self.server.ws_port
        if port is not None:
            found["websocket"] = [listener_url(port.scheme, port.host, port.port)]
        return found

    # ---- signals

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number, act in (
            (signal.SIGINT, self.interrupt),
            (signal.SIGTERM, self._terminate),
            (signal.SIGUSR2, self._lame_duck),
            (signal.SIGUSR1, self._reopen_log),
            (signal.SIGHUP, self._reload),
        ):
            loop.add_signal_handler(number, self._trapped, _SIGNAL_NAMES[number], act)

    def _trapped(self, name: str, act: Callable[[], None]) -> None:
        self.log.info(f'Trapped "{name}" signal')
        act()

    def interrupt(self) -> None:
        """Stops the server, as SIGINT does."""
        if self._started:
            self._keep(self.stop())
        else:
            self._stop_asked, self.again = True, False  # a half-started node cannot be stopped; the start is short

    def _terminate(self) -> None:
        # Of two signals that wait the kernel has the later one handled first: an order to leave may be the next.
        asyncio.get_running_loop().call_soon(self._stop_unless_leaving)

    def _stop_unless_leaving(self) -> None:
        if not self._leaving:  # nats-server ignores TERM while it is a lame duck
            self.interrupt()

    def _lame_duck(self) -> None:
        if self._started:
            self._leaving = True
            self._keep(self.lame_duck())
        else:
            self._stop_asked, self.again = True, False

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reopen_log(self) -> None:
        self.log.info("File log re-opened" if logs.reopen() else "File log re-open ignored, not a file logger")

    def _reload(self) -> None:
        self.reload("")

    def reload(self, cause: str = "Reload requested by the system account") -> str:
        """Takes over the present configuration. Returns why that failed, or ""."""
        if not self._started or self._stopping:
            return "the server is starting or stopping"
        if self._reload_options is None:
            return "this server has no configuration to read again"
        return self._reload_options(self, cause)
