"""The process around a node: its event loop, its collector of garbage, its exit code, and the end of a stop that hangs.

A write that does not return keeps the thread that waits for it, and with it the last flush or the journal's close, for
ever; nothing on the event loop can end that. Nothing is lost by not waiting: what was acknowledged is in the journal.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable

from jetcluster import logs
from jetcluster.config.options import Options
from jetcluster.logs import Logger
from jetcluster.net.early_port import EARLY, SECONDS
from jetcluster.node.node import Monitoring, Node
from jetcluster.node.node_jetstream import StorageError
from jetcluster.server.listener import ListenError

GC_THRESHOLDS = (25_000, 8, 250)
"""Data-path objects die young by reference count; the collector's default of 700 allocations would run it thousands of
times per second. The loop stands while it runs, about 0.1 us for each object that has come to stay since the last time:
one of the second generation looks at 200,000 of them (a million took 60 to 130 ms)."""
START_AGAIN = -1
"""Instead of an exit code: the same process is to begin anew with the same arguments."""
STOP_SECONDS = 120.0
"""From the order to stop to the end of the process. Longer than the last flush takes on a slow disk."""


def run(
    options: Options, log: Logger, read_options: Callable[[], Options], monitoring: Callable[[Node], Monitoring]
) -> int:
    """Runs a node until it must stop, and returns the exit code, or START_AGAIN. `read_options`: see `reloading`."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    watch = StopWatch(log)
    node = Node(options, log, reloading(read_options), monitoring=monitoring)
    node.on_stop = watch.start
    try:
        with runner:
            return runner.run(serve(node, _freeze))
    finally:
        watch.cancel()


def reloading(read_options: Callable[[], Options]) -> Callable[[Node, str], str]:
    """The `reload` of a `Node` whose options `read_options` reads again; it raises ConfigError."""

    def reload_node(node: Node, cause: str) -> str:
        from jetcluster.node.reload import reload

        return reload(node, read_options, cause)

    return reload_node


async def serve(node: Node, started: Callable[[], None] = lambda: None) -> int:
    """Starts the node, calls `started`, and returns the exit code once it has stopped."""
    late = asyncio.get_running_loop().call_later(SECONDS, EARLY.close)
    try:
        await node.start()
    except (ListenError, StorageError, OSError) as error:
        node.log.fatal(str(error))
        return 1
    finally:
        late.cancel()
    started()
    await node.stopped.wait()
    return START_AGAIN if node.again else node.exit_code


def _freeze() -> None:
    """Keeps the collector from looking again at the objects of the start, which stay."""
    gc.collect()
    gc.freeze()


class StopWatch:
    """Ends the process when its stop takes too long."""

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
        logs.shutdown()  # waits for half a second at most: its disk may be the same one
        os._exit(1)
