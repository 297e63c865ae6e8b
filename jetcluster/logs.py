"""Logging: structlog's processors in front of a writer thread that can never hold up the event loop.

Three decisions:

- **structlog is imported at the first line logged, without rich.** `import structlog` costs 60 ms behind asyncio,
  45 ms of it for `structlog.dev`'s and `structlog.tracebacks`' optional import of rich (pretty tracebacks, which we
  never use). Hiding rich for the time of that import (they expect its absence: `except ImportError`) leaves 14 ms.
- **A line goes to a bounded queue, and a thread writes it.** Harnesses pipe stderr and stop reading after "Server is
  ready"; a blocking write to the full pipe would freeze the server (shared/reference/drop-in.md section 2). When the
  queue is full, lines are dropped and counted, and the count is logged once the reader moves again.
- **The text format is nats-server's**, `[pid] 2026/11/20 10:01:23.167217 [INF] text`, because tools parse it. Key-value
  pairs are appended as `key=value`.

Nothing on the data path logs; guard costly debug lines with `log.is_debug`.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from jetcluster.clock import Clock, SystemClock

TRACE, DEBUG, INFO, WARNING, ERROR, FATAL = 5, 10, 20, 30, 40, 50
MAX_QUEUED_LINES = 8192
MAX_LINE_BYTES = 64 * 1024
_TAGS = {"debug": "DBG", "info": "INF", "warning": "WRN", "error": "ERR", "critical": "FTL"}
_MISSING = object()


class LogOptions(Protocol):
    """The part of `config.options.Options` that logging reads."""

    @property
    def debug(self) -> bool: ...
    @property
    def trace(self) -> bool: ...
    @property
    def logtime(self) -> bool: ...
    @property
    def logtime_utc(self) -> bool: ...
    @property
    def log_file(self) -> str: ...
    @property
    def log_format(self) -> str: ...


class LineWriter:
    """Hands lines to a thread that writes them to a file descriptor. `write` never blocks and never raises."""

    def __init__(self, fd: int, path: str = "", limit: int = MAX_QUEUED_LINES) -> None:
        self.fd = fd
        self.path = path
        """Non-empty: `fd` is this file, which `reopen` opens anew."""
        self.dropped = 0
        """Lines lost since the start because the queue was full or the descriptor failed."""
        self._reported = 0
        self._limit = limit
        self._lines: collections.deque[bytes] = collections.deque()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopping = False
        self._reopen = False
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None
        self.render_dropped = _plain_dropped

    @property
    def is_closed(self) -> bool:
        return self._stopping

    def write(self, line: str) -> None:
        if len(self._lines) >= self._limit or self._stopping:
            self.dropped += 1
            return
        self._idle.clear()
        self._lines.append(line.encode(errors="replace")[:MAX_LINE_BYTES] + b"\n")
        self._signal()

    def reopen(self) -> None:
        """Closes and opens the log file again, for log rotation (SIGUSR1). Does nothing for stderr."""
        if self.path:
            self._idle.clear()
            self._reopen = True
            self._signal()

    def close(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for the queue to be written. The thread is a daemon: a pipe that nobody reads
        cannot keep the process alive."""
        self._idle.wait(timeout)
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout)
        if self.path and (self._thread is None or not self._thread.is_alive()):
            os.close(self.fd)

    def _signal(self) -> None:
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                    self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        lines = self._lines
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._reopen:
                self._reopen = False
                self._open_again()
            while lines:
                batch = [lines.popleft() for _ in range(min(len(lines), 256))]
                self._write_all(batch)
            if self.dropped > self._reported:
                count, self._reported = self.dropped - self._reported, self.dropped
                self._write_all([self.render_dropped(count).encode() + b"\n"])
            if not lines and not self._wake.is_set():
                self._idle.set()
            if self._stopping:
                return

    def _write_all(self, batch: list[bytes]) -> None:
        data = memoryview(b"".join(batch))
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:  # somebody made the shared stderr non-blocking
                time.sleep(0.01)
            except OSError:  # reader gone, disk full: there is nowhere left to say so
                self.dropped += len(batch)
                self._reported = self.dropped
                return

    def _open_again(self) -> None:
        try:
            fd = open_log_file(self.path)
        except OSError:
            return  # keep writing to the old file rather than to none
        old, self.fd = self.fd, fd
        os.close(old)


def open_log_file(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def _plain_dropped(count: int) -> str:
    return f"{count} log lines were dropped: the log's reader was too slow"


class _Sink:
    """What structlog calls at the end of its chain: every level writes the rendered line."""

    __slots__ = ("critical", "debug", "error", "info", "warning")

    def __init__(self, writer: LineWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write


class TextRenderer:
    """structlog's last processor: an event dictionary -> a line in nats-server's format."""

    def __init__(self, pid: int, clock: Clock, logtime: bool = True, utc: bool = False) -> None:
        self._prefix = f"[{pid}] "
        self._clock = clock
        self._logtime = logtime
        self._convert = time.gmtime if utc else time.localtime
        self._second = -1
        self._stamp = ""

    def __call__(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        tag = event.pop("tag", None) or _TAGS[method]
        text = str(event.pop("event", ""))
        event.pop("logger", None)
        trace = event.pop("exception", None)
        if event:
            text += "".join(f" {key}={_value(value)}" for key, value in event.items())
        if trace:
            text += f"\n{trace}"
        return self.line(tag, text)

    def line(self, tag: str, text: str) -> str:
        if not self._logtime:
            return f"{self._prefix}[{tag}] {text}"
        second, nanos = divmod(self._clock.time_ns(), 1_000_000_000)
        if second != self._second:
            # strftime costs more than the rest of the line; once per second is enough.
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", self._convert(second))
            self._second = second
        return f"{self._prefix}{self._stamp}.{nanos // 1000:06d} [{tag}] {text}"


def _value(value: object) -> str:
    """Text as it is when it is one printable word, else quoted: a peer's name must not forge a second line."""
    text = value if isinstance(value, str) else str(value)
    if not text or '"' in text or any(c.isspace() or not c.isprintable() for c in text):
        return repr(text)
    return text


class _State:
    """The process's one logging configuration."""

    def __init__(self) -> None:
        self.generation = 0
        self.level = INFO
        self.clock: Clock = SystemClock()
        self.writer = LineWriter(2)
        self.json = False
        self.logtime = True
        self.utc = False
        self._structured: Any = None

    def structured(self) -> Any:
        """The structlog logger that all `Logger`s bind to; built at the first line."""
        if self._structured is None:
            structlog = _import_structlog()
            processors: list[Any] = [structlog.processors.format_exc_info]
            if self.json:
                processors = [
                    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                    structlog.processors.add_log_level,
                    *processors,
                    _level_name,
                    structlog.processors.JSONRenderer(default=str),
                ]
            else:
                renderer = TextRenderer(os.getpid(), self.clock, self.logtime, self.utc)
                self.writer.render_dropped = lambda count: renderer.line("WRN", _plain_dropped(count))
                processors.append(renderer)
            self._structured = structlog.wrap_logger(
                _Sink(self.writer),
                processors=processors,
                wrapper_class=structlog.make_filtering_bound_logger(max(self.level, DEBUG)),
                context_class=dict,
                cache_logger_on_first_use=True,
            )
        return self._structured

    def changed(self) -> None:
        self.generation += 1
        self._structured = None


def _level_name(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog knows neither "trace" nor "fatal"; the JSON says what the text's tag says."""
    if event.pop("tag", None) == "TRC":
        event["level"] = "trace"
    elif event["level"] == "critical":
        event["level"] = "fatal"
    return event


def _import_structlog() -> Any:
    if "structlog" not in sys.modules:
        rich = sys.modules.get("rich", _MISSING)
        if rich is _MISSING:
            modules: dict[str, Any] = sys.modules
            modules["rich"] = None  # makes `import rich` raise ImportError
        try:
            import structlog
        finally:
            if rich is _MISSING:
                del sys.modules["rich"]
        return structlog
    return sys.modules["structlog"]


_state = _State()


class Logger:
    """`log.info("text", key=value)`. `exc_info=True` or an exception appends the traceback. Usable before `configure`
    (INFO and above to stderr) and follows every later configuration."""

    __slots__ = ("_bound", "_context", "_generation", "name")

    def __init__(self, name: str, context: dict[str, object] | None = None) -> None:
        self.name = name
        self._context = context or {}
        self._bound: Any = None
        self._generation = -1

    def bind(self, **context: object) -> Logger:
        """A logger that adds `context` to each of its lines."""
        return Logger(self.name, {**self._context, **context})

    @property
    def is_debug(self) -> bool:
        return _state.level <= DEBUG

    @property
    def is_trace(self) -> bool:
        return _state.level <= TRACE

    def trace(self, event: str, **context: object) -> None:
        if _state.level <= TRACE:
            self._structured().debug(event, tag="TRC", **context)

    def debug(self, event: str, **context: object) -> None:
        # -V without -D raises TRACE but not DEBUG in nats-server; both share one threshold there and here.
        if _state.level <= DEBUG:
            self._structured().debug(event, **context)

    def info(self, event: str, **context: object) -> None:
        self._structured().info(event, **context)

    def warning(self, event: str, **context: object) -> None:
        self._structured().warning(event, **context)

    def error(self, event: str, **context: object) -> None:
        self._structured().error(event, **context)

    def exception(self, event: str, **context: object) -> None:
        """`error` with the traceback of the exception being handled."""
        self._structured().error(event, exc_info=True, **context)

    def fatal(self, event: str, **context: object) -> None:
        """`[FTL]`: the server cannot go on. The caller ends the process with a code other than 0."""
        self._structured().critical(event, **context)

    def _structured(self) -> Any:
        if self._generation != _state.generation:
            self._bound = _state.structured().bind(logger=self.name, **self._context)
            self._generation = _state.generation
        return self._bound


def get_logger(name: str) -> Logger:
    return Logger(name)


class StandardLibraryBridge(logging.Handler):
    """Takes records of `logging` (our modules that use it, asyncio, aiohttp, pysyncobj) into this log.

    `logging` itself costs nothing at start: asyncio imports it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write = _BRIDGED[max(level for level in _BRIDGED if level <= max(record.levelno, DEBUG))]
            write(Logger(record.name), record.getMessage(), exc_info=record.exc_info or None)
        except Exception:  # noqa: BLE001 - a bad format string in a log call must not end its caller
            self.handleError(record)


_BRIDGED: dict[int, Callable[..., None]] = {
    DEBUG: Logger.debug,
    INFO: Logger.info,
    WARNING: Logger.warning,
    ERROR: Logger.error,
    FATAL: Logger.fatal,
}
_bridge = StandardLibraryBridge()


def configure(options: LogOptions, clock: Clock | None = None, fd: int = 2) -> None:
    """Applies levels, format and target. Raises OSError when the log file cannot be opened. May be called again
    (reload); lines queued for the old target are written first, for at most a second."""
    new_path = options.log_file
    writer = _state.writer
    if writer.is_closed or new_path != writer.path or (not new_path and fd != writer.fd):
        target = open_log_file(new_path) if new_path else fd
        _state.writer = LineWriter(target, new_path)
        if not writer.is_closed:
            writer.close(timeout=1.0)
    _state.level = TRACE if options.trace else DEBUG if options.debug else INFO
    _state.clock = clock or SystemClock()
    _state.json = options.log_format == "json"
    _state.logtime = options.logtime
    _state.utc = options.logtime_utc
    _state.changed()
    root = logging.getLogger()
    if _bridge not in root.handlers:
        root.addHandler(_bridge)
    logging.getLogger("jetcluster").setLevel(min(_state.level, INFO))


def reopen() -> None:
    """Opens the log file again (SIGUSR1)."""
    _state.writer.reopen()


def dropped_lines() -> int:
    return _state.writer.dropped


def shutdown(timeout: float = 0.5) -> None:
    """Writes what is queued, waiting at most `timeout` seconds. Later lines go nowhere until `configure` is called."""
    _state.writer.close(timeout)
