"""`History`: 24 hours of the main figures of this server, for the charts of the console without Prometheus.

Every ten seconds `Sampler` takes the figures, rates from the differences of counters, and a thread writes them
(`health.history_file`). Kept only where a console may ask: `console: true`, with JetStream and so with a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.budget import BusyError, Steps
from jetcluster.health.history_file import PERIOD_SECONDS, POINTS, HistoryFile, Point
from jetcluster.latency import BOUNDS, Latency
from jetcluster.logs import get_logger
from jetcluster.monitor.jsz import jetstream_stats
from jetcluster.monitor.shared import Shared
from jetcluster.monitor.source import Json, QueryError
from jetcluster.monitor.varz import traffic
from jetcluster.monitor.view import engine_of
from jetcluster.node.node import Node
from jetcluster.store.api import DamagedError

if TYPE_CHECKING:
    from jetcluster.clock import TimerHandle
    from jetcluster.cluster.jetstream import JetStream

COLUMNS: Final = (
    "in_msgs", "out_msgs", "in_bytes", "out_bytes", "connections", "subscriptions", "cpu", "memory", "storage",
    "stored_memory", "disk_free", "api_requests", "api_errors", "fsync_mean", "fsync_max", "commit_mean", "streams",
    "streams_led", "replicas_behind", "lag_max", "slow_consumers",
)  # fmt: skip
"""Per second: messages and bytes from and to clients, API requests and errors, slow consumers. Bytes: memory, storage,
disk_free. `cpu` in percent of one core. Seconds: fsync and commit, of the period. `replicas_behind` and `lag_max`
(entries) are those of the streams led here."""
FILE_NAME: Final = "history.ring"
MAX_POINTS: Final = 2000
DEFAULT_SECONDS: Final = 3600
DEFAULT_POINTS: Final = 360
DECODED_PER_STEP: Final = 128
WARN_SECONDS: Final = 600.0
READ_SECONDS: Final = 3.0
"""A disk that does not return the file by then hangs."""
NOT_KEPT: Final = "no history is kept here: that needs console: true, and JetStream"

log = get_logger("monitor")


class _Times:
    """Mean and maximum of what came to a histogram since the last look."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._seconds = 0.0

    def since(self, latency: Latency) -> tuple[float, float]:
        """Returns (mean, upper bound of the slowest one's bucket) in seconds, NaN for none."""
        counts, seconds = list(latency.counts), latency.seconds
        before = self._counts or [0] * len(counts)
        new = [now - then for now, then in zip(counts, before, strict=True)]
        spent = seconds - self._seconds
        self._counts, self._seconds = counts, seconds
        total = sum(new)
        if total <= 0:
            return math.nan, math.nan
        slowest = max(place for place, count in enumerate(new) if count)
        return spent / total, BOUNDS[min(slowest, len(BOUNDS) - 1)]


class Sampler:
    """Takes the figures of a node. The first point of a start has no rates: nothing to compare with."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._before: dict[str, float] = {}
        self._at = 0.0
        self._fsync, self._commit = _Times(), _Times()

    def take(self) -> Steps[dict[str, float]]:
        """Makes the figures by column, in steps: a node may lead thousands of streams."""
        node, engine = self._node, engine_of(self._node)
        found = {**self._rates(engine), "connections": node.server.clients.connected}
        found |= {"subscriptions": node.server.accounts.subscriptions, "cpu": node.page_counters.cpu.percent()}
        found["memory"] = node.page_counters.usage.memory_bytes()
        if engine is not None:
            raft = engine.network.raft
            used = jetstream_stats(node)
            found |= {"storage": used["storage"], "stored_memory": used["memory"], "disk_free": raft.journal.free}
            found["fsync_mean"], found["fsync_max"] = self._fsync.since(raft.journal.sync_latency)
            found["commit_mean"] = self._commit.since(raft.commit_latency)[0]
            found |= yield from _lags(engine)
        return found

    def _rates(self, engine: JetStream | None) -> dict[str, float]:
        node, now = self._node, self._node.clock.monotonic()
        totals = traffic(node)
        counters: dict[str, float] = {
            name: totals[f"{way}_client_{unit}"]
            for way in ("in", "out")
            for unit in ("msgs", "bytes")
            for name in (f"{way}_{unit}",)
        }
        counters["slow_consumers"] = totals["slow_consumers"]
        if engine is not None:
            api = jetstream_stats(node)["api"]
            counters |= {"api_requests": api["total"], "api_errors": api["errors"]}
        before, elapsed = self._before, now - self._at
        self._before, self._at = counters, now
        if not before or elapsed <= 0:
            return {}
        return {name: max(value - before.get(name, value), 0) / elapsed for name, value in counters.items()}


def _lags(engine: JetStream) -> Steps[dict[str, float]]:
    streams = led = behind = most = 0
    for replica in list(engine.replicas.values()):
        streams += 1
        if replica.leading:
            led += 1
            try:
                lags = [info.lag for info in replica.infos.others()]
            except DamagedError:
                lags = []
            behind += sum(lag > 0 for lag in lags)
            most = max(most, *lags, 0)
        if not streams % DECODED_PER_STEP:
            yield
    return {"streams": streams, "streams_led": led, "replicas_behind": behind, "lag_max": most}


Threads = Callable[[Callable[[], object]], Awaitable[object]]
"""Runs blocking work beside the loop and returns or raises what it does."""


async def beside(work: Callable[[], object]) -> object:
    """Runs `work` in a thread of its own, for which the end of the process does not wait: the disk may hang."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[object] = loop.create_future()

    def tell(found: object, error: Exception | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is None:
            done.set_result(found)
        else:
            done.set_exception(error)

    def run() -> None:
        found, failure = None, None
        try:
            found = work()
        except Exception as error:  # noqa: BLE001 - it is raised where somebody waits
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, found, failure)

    threading.Thread(target=run, name="history", daemon=True).start()
    return await done


def is_kept(node: Node) -> bool:
    """True where a history is kept: with a console that may ask, and a store to keep it in."""
    return node.options.console and node.jetstream is not None and bool(node.jetstream.store_dir)


class History:
    """The history of one node: takes points from `start` to `stop`, and answers queries."""

    def __init__(self, node: Node, threads: Threads = beside) -> None:
        assert node.jetstream is not None and node.jetstream.store_dir
        path = Path(node.jetstream.store_dir) / FILE_NAME
        self._node, self._threads = node, threads
        self._file = HistoryFile(path, COLUMNS, node.platform.files)
        self._path = path
        self._sampler = Sampler(node)
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = False
        self._warned = -math.inf
        self._read: Shared[object] = Shared(node.clock, 0.0, self._read_file)

    async def _read_file(self) -> object:
        return await self._threads(self._file.read)

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _arm(self) -> None:
        """Waits for the end of the period, so that each has one point."""
        wait = PERIOD_SECONDS - self._node.clock.time_ns() / 1e9 % PERIOD_SECONDS
        self._timer = self._node.server.timers.call_later(wait, self._tick)

    def _tick(self) -> None:
        if self._task is None or self._task.done():  # else the disk hangs, and the point is a gap
            self._task = asyncio.get_running_loop().create_task(self._note())
        self._arm()

    async def _note(self) -> None:
        try:
            found = await self._node.server.budget.run(("monitor", "history"), self._sampler.take())
            values = tuple(float(found.get(name, math.nan)) for name in COLUMNS)
            point = Point(self._node.clock.time_ns() // 10**9, values)
            await self._threads(lambda: self._write(point))
        except BusyError:
            return  # a gap
        except OSError as error:
            now = self._node.clock.monotonic()
            if now - self._warned >= WARN_SECONDS:
                self._warned = now
                log.warning("the history for the console cannot be written", file=str(self._path), error=str(error))

    def _write(self, point: Point) -> None:
        if not self._ready:
            reason = self._file.prepare()
            if reason:
                log.warning("a history that does not fit is set aside", file=str(self._path), reason=reason)
            self._ready = True
        try:
            self._file.write(point)
        except OSError:
            self._ready = False  # somebody may have taken the file away
            raise

    async def answer(self, asker: str, seconds: int, points: int, columns: list[str]) -> Json:
        """Returns at most about `points` points of the last `seconds`: `times` (Unix seconds, the end of each), and of
        each column the mean and the maximum, None for a gap. Raises QueryError, BusyError."""
        for name in columns:
            if name not in COLUMNS:
                raise QueryError(f"there is no column {name[:40]}; there are {', '.join(COLUMNS)}")
        seconds = min(max(seconds, PERIOD_SECONDS), POINTS * PERIOD_SECONDS)
        step = max(math.ceil(seconds / min(max(points, 1), MAX_POINTS) / PERIOD_SECONDS), 1) * PERIOD_SECONDS
        now = self._node.clock.time_ns() // 10**9
        until = now // step * step
        try:
            async with asyncio.timeout(READ_SECONDS):
                encoded = await self._read.get()  # at most one thread waits for the disk, however many ask
        except FileNotFoundError:
            encoded = b""  # no point is written yet
        except TimeoutError as error:
            raise QueryError("the history cannot be read: the disk does not answer") from error
        except OSError as error:
            raise QueryError(f"the history cannot be read: {error.strerror}") from error
        assert isinstance(encoded, bytes)
        steps = self._decimated(
            encoded, until - math.ceil(seconds / step) * step, until, step, columns or list(COLUMNS)
        )
        return await self._node.server.budget.run(("monitor", asker), steps)

    def _decimated(self, encoded: bytes, since: int, until: int, step: int, columns: list[str]) -> Steps[Json]:
        places = [COLUMNS.index(name) for name in columns]
        means: list[list[float | None]] = [[] for _ in columns]
        most: list[list[float | None]] = [[] for _ in columns]
        group: list[Point] = []
        for number, point in enumerate(self._file.points(encoded, since, until), 1):
            if point is not None:
                group.append(point)
            if not number * PERIOD_SECONDS % step:
                for column, place in enumerate(places):
                    values = [one.values[place] for one in group if not math.isnan(one.values[place])]
                    means[column].append(_short(sum(values) / len(values)) if values else None)
                    most[column].append(_short(max(values)) if values else None)
                group.clear()
            if not number % DECODED_PER_STEP:
                yield
        found = {name: {"mean": means[at], "max": most[at]} for at, name in enumerate(columns)}
        times = list(range(since + step, until + 1, step))
        return {"seconds": until - since, "step": step, "points": len(times), "times": times, "columns": found}


def _short(value: float) -> float:
    """Returns a value with six digits, which charts cannot tell from all of them."""
    return float(f"{value:.6g}")
