"""The process of a node: its event loop, garbage collector, exit code, and the end of a stop that hangs.

A write that does not return blocks its thread for ever, and so the last flush or the journal's close; nothing on the
event loop can end that. Not waiting loses nothing: what was acknowledged is in the journal.

A reload of the configuration (SIGHUP, `--signal reload`) takes over all of the new file, or none of it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from dataclasses import fields

from jetcluster import logs
from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import Options
from jetcluster.errors import OperatorError
from jetcluster.logs import Logger
from jetcluster.net.early_port import EARLY, MAX_OPEN_SECONDS
from jetcluster.node.node import Monitoring, Node, RefusedReload
from jetcluster.node.node_jetstream import StorageError
from jetcluster.node.part_options import tls_context
from jetcluster.node.platform import SystemPlatform
from jetcluster.server.listener import ListenError

_LOGGING = frozenset(
    [
        "debug",
        "trace",
        "logtime",
        "logtime_utc",
        "log_file",
        "log_format",
        "log_size_limit",
        "log_max_num",
        "syslog",
        "remote_syslog",
    ]
)


def reload(node: Node, read_options: Callable[[], Options], cause: str) -> str:
    """Takes over the configuration that `read_options` reads, which raises ConfigError.

    On an error the old one stays, and the log and the result have the reason; else the result is "". `cause` is logged.
    """
    log = node.log
    if cause:
        log.info(cause)
    try:
        lines, new = _take(node, read_options)
    except ConfigError as error:
        log.error(f"Failed to reload server configuration: {str(error).rstrip()}")  # noqa: TRY400 - an operator's error
        reason = str(error).rstrip()
        node.refused_reload = RefusedReload(reason, node.clock.time_ns())
        return reason
    node.config_load_ns, node.refused_reload = node.clock.time_ns(), None
    for warning in new.warnings:
        log.warning(warning)
    for line in lines:
        log.info(f"Reloaded: {line}")
    log.info(f"Reloaded server configuration ({node.options.config_digest})")
    node.monitoring.look_at_certificates()
    return ""


def _take(node: Node, read_options: Callable[[], Options]) -> tuple[list[str], Options]:
    """Takes over the new options; returns lines for the log, and the options. Raises ConfigError before any change."""
    from jetcluster.config.changes import changed_fields, described

    options = node.options
    if not options.config_file:
        raise ConfigError("can only reload config when a file is provided using -c or --config")
    new = read_options()
    known = node.operator.prepare(new) if node.operator is not None else None
    changed = changed_fields(options, new)
    lines = described(changed, options, new)
    if node.jetstream is not None:
        node.jetstream.check_tags(new.server_tags)
    left_ports_dir = options.ports_file_dir if "ports_file_dir" in changed else ""
    tls = tls_context(new.tls)
    # The steps that may fail for a reason outside the file come first.
    try:
        if "pid_file" in changed and new.pid_file:
            from jetcluster.config.runtime_files import write_pid_file

            write_pid_file(new.pid_file)
        if _LOGGING & set(changed):
            logs.configure(new)
        if node.jetstream is not None and node.jetstream.keys is not None:
            node.jetstream.keys.change(new.jetstream)
    except (OSError, ValueError, OperatorError) as error:
        raise ConfigError(str(error)) from error
    node.monitoring.renew_tls(new)
    if node.leafnodes is not None:
        node.leafnodes.renew_certificates()
    ws_port, ws_tls = node.server.ws_port, new.websocket.tls
    if ws_port is not None and ws_tls is not None and (context := tls_context(ws_tls)) is not None:
        ws_port.renew(context, ws_tls.timeout)
    if node.jetstream is not None:
        node.jetstream.renew_tls(new.cluster)
    # In place: the rooms of the node hold this object.
    for field in fields(Options):
        setattr(options, field.name, getattr(new, field.name))
    previous = node.server.authenticator
    if node.operator is not None and known is not None:
        node.operator.take_over(known)
        authenticator: Authenticator = node.operator.authenticator(options)
    else:
        authenticator = Authenticator(new, previous)
    node.share()
    node.server.reconfigure(new, authenticator, tls)
    if node.jetstream is not None:
        node.jetstream.reconfigure(changed)
    if "leafnodes" in changed:
        node.change_leafnodes()
    if "ports_file_dir" in changed:
        node.move_ports_file(left_ports_dir)
    return lines, new


GC_THRESHOLDS = (25_000, 8, 250)
"""Data-path objects die young by reference count; the collector's default of 700 allocations would run it thousands of
times per second. The loop stands still while it runs, about 0.1 us per object that survived since the last time: one
run of the second generation visits 200,000 of them (a million took 60 to 130 ms)."""
START_ALLOCATIONS = 500_000
"""Threshold of the youngest generation during a start: its objects stay, and looking through them takes 20 ms."""
START_AGAIN = -1
"""Returned instead of an exit code: the process must restart with the same arguments."""
STOP_SECONDS = 120.0
"""Longest time from the order to stop to the end of the process; the last flush takes less on a slow disk."""


def run(
    options: Options, log: Logger, read_options: Callable[[], Options], monitoring: Callable[[Node], Monitoring]
) -> int:
    """Runs a node until it must stop; returns the exit code, or START_AGAIN. `read_options`: see `reloading`."""
    gc.set_threshold(START_ALLOCATIONS, *GC_THRESHOLDS[1:])
    gc.enable()
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    watch = StopWatch(log)
    platform = SystemPlatform(1 if options.worker is None else options.worker.count)
    node = Node(options, log, reloading(read_options), platform, monitoring, on_stop=watch.start)
    try:
        with runner:
            return runner.run(serve(node, _freeze))
    finally:
        watch.cancel()


def reloading(read_options: Callable[[], Options]) -> Callable[[Node, str], str]:
    """Returns the `reload` of a `Node` whose options `read_options` reads; that raises ConfigError."""

    def reload_node(node: Node, cause: str) -> str:

        problem = reload(node, read_options, cause)
        if cause and not problem and node.supervisor is not None:
            node.supervisor.ask_reload()  # all workers, so that they go on with one configuration
        return problem

    return reload_node


async def serve(node: Node, started: Callable[[], None] = lambda: None) -> int:
    """Starts the node, calls `started`, and returns the exit code once it has stopped."""
    late = asyncio.get_running_loop().call_later(MAX_OPEN_SECONDS, EARLY.close)
    try:
        await node.start()
    except (ListenError, StorageError, OSError) as error:
        node.log.fatal(str(error))
        return 1
    finally:
        late.cancel()
    started()
    if node.options.worker is not None:
        from jetcluster.node.supervised import SupervisorLink

        node.supervisor = SupervisorLink(node.options.worker.link, node.interrupt)
        await node.supervisor.start(node.listening())
    await node.stopped.wait()
    return START_AGAIN if node.again else node.exit_code


def _freeze() -> None:
    """Exempts the objects of the start, which stay, from garbage collection. It does not collect first: garbage of a
    start is 1 MB, and looking for it would hold up the first requests."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


class StopWatch:
    """A time limit on the stop of the process."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Called when the stop begins."""
        self._timer = threading.Timer(STOP_SECONDS, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Called when the stop is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self._log.error(f"Shutdown: not done after {STOP_SECONDS:g} s, the process ends as it is")
        logs.shutdown()  # waits half a second at most: its disk may be the same
        os._exit(1)
