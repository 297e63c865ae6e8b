"""Logging: a renderer, or structlog's processors for JSON, before a writer thread, so that logging never blocks the
event loop.

Three decisions:

- **structlog is imported for JSON alone, at the first line logged, and without rich.** `import structlog` costs 60 ms
  after asyncio, 45 ms of it for the optional import of rich in `structlog.dev` and `structlog.tracebacks` (pretty
  tracebacks, never used here). Hiding rich during that import (they expect its absence: `except ImportError`) leaves
  14 ms and 1.5 MB, a twelfth of a start, which the text format spares: it needs one processor, its own.
- **A line goes to a bounded queue, and a thread writes it.** Harnesses pipe stderr and stop reading after "Server is
  ready"; a blocking write to the full pipe would freeze the server. When the queue is full, lines are dropped and
  counted, and the count is logged once the reader continues.
- **The text format is nats-server's**, `[pid] 2026/11/20 10:01:23.167217 [INF] text`, because tools parse it. Key-value
  pairs are appended as `key=value`.

Nothing on the data path logs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Protocol

from jetcluster.clock import Clock, SystemClock
from jetcluster.log_limit import LineLimit
from jetcluster.log_writer import FileWriter, LineWriter

TRACE, DEBUG, INFO, WARNING, ERROR, FATAL = 5, 10, 20, 30, 40, 50
_LEVEL_NAMES = {"INF": "info", "WRN": "warning", "ERR": "error"}
_TAGS = {"debug": "DBG", "info": "INF", "warning": "WRN", "error": "ERR", "critical": "FTL"}
_MISSING = object()


class Log(Protocol):
    """The part of a structlog logger that is used here: an event and key=value pairs."""

    def debug(self, event: str, **values: Any) -> Any: ...
    def info(self, event: str, **values: Any) -> Any: ...
    def warning(self, event: str, **values: Any) -> Any: ...
    def error(self, event: str, **values: Any) -> Any: ...


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
    def log_size_limit(self) -> int: ...
    @property
    def log_max_num(self) -> int: ...
    @property
    def syslog(self) -> bool: ...
    @property
    def remote_syslog(self) -> str: ...
    @property
    def log_format(self) -> str: ...


class _TextLog:
    """A logger of the text format, with the methods of structlog's that `Logger` calls."""

    __slots__ = ("_context", "_render", "_write")

    def __init__(self, render: TextRenderer, write: Callable[[str], None], context: Mapping[str, object]) -> None:
        self._render = render
        self._write = write
        self._context = context

    def bind(self, **context: object) -> _TextLog:
        return _TextLog(self._render, self._write, {**self._context, **context})

    def debug(self, event: str, **values: object) -> None:
        self._log("debug", event, values)

    def info(self, event: str, **values: object) -> None:
        self._log("info", event, values)

    def warning(self, event: str, **values: object) -> None:
        self._log("warning", event, values)

    def error(self, event: str, **values: object) -> None:
        self._log("error", event, values)

    def critical(self, event: str, **values: object) -> None:
        self._log("critical", event, values)

    def _log(self, method: str, event: str, values: dict[str, Any]) -> None:
        fields = {**self._context, **values, "event": event}
        cause = fields.pop("exc_info", None)
        if cause and (trace := _traceback(cause)):
            fields["exception"] = trace
        self._write(self._render(None, method, fields))


def _traceback(cause: Any) -> str:
    """Returns the traceback of an exception, of a triple about it, or, for True, of the one that is being handled."""
    import traceback

    if not isinstance(cause, BaseException):
        cause = (cause if isinstance(cause, tuple) else sys.exc_info())[1]
    return "".join(traceback.format_exception(cause)).rstrip("\n") if cause is not None else ""


class _Sink:
    """The end of structlog's chain: every level writes the rendered line."""

    __slots__ = ("critical", "debug", "error", "info", "warning")

    def __init__(self, writer: LineWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write


class TextRenderer:
    """structlog's last processor, which turns an event dictionary into a line in nats-server's format."""

    def __init__(self, pid: int, clock: Clock, logtime: bool = True, utc: bool = False) -> None:
        self._prefix = f"[{pid}] "
        self._clock = clock
        self._logtime = logtime
        self._convert = time.gmtime if utc else time.localtime
        self._second = -1
        self._stamp = ""

    def __call__(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        tag = event.pop("tag", None) or _TAGS[method]
        text = _one_line(str(event.pop("event", "")))
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


class SyslogRenderer(TextRenderer):
    """A renderer of level and text only: syslog adds time and process."""

    def line(self, tag: str, text: str) -> str:
        return f"{tag} {text}"


def _one_line(text: str) -> str:
    """Return the text on one line, unprintable characters escaped: a client's chosen name must not forge a second line,
    nor move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _value(value: object) -> str:
    """Return one printable word as it is, else quote it: a peer's name must not forge a second line."""
    text = value if isinstance(value, str) else str(value)
    if not text or '"' in text or any(c.isspace() or not c.isprintable() for c in text):
        return repr(text)
    return text


class _State:
    """The process's logging configuration."""

    def __init__(self) -> None:
        self.generation = 0
        self.debug = False
        self.trace = False
        self.clock: Clock = SystemClock()
        self.writer = LineWriter(2)
        self.target: tuple[str, str | None, int] = ("", None, 2)
        """The target of `writer`: log file, syslog URL ("": this machine's), descriptor."""
        self.json = False
        self.logtime = True
        self.utc = False
        self.is_syslog = False
        self._structured: Any = None
        self.renderer: TextRenderer
        self.changed()

    def structured(self) -> Any:
        """Return the logger that all `Logger`s bind to; built at the first line."""
        if self._structured is None:
            text = _TextLog(self.renderer, self.writer.write, {})
            self._structured = self._json_log() if self.json else text
        return self._structured

    def _json_log(self) -> Any:
        structlog = _import_structlog()
        return structlog.wrap_logger(
            _Sink(self.writer),
            processors=[
                structlog.processors.format_exc_info,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                structlog.processors.add_log_level,
                _level_name,
                structlog.processors.JSONRenderer(default=str),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(DEBUG),
            context_class=dict,
            cache_logger_on_first_use=True,
        )

    def changed(self) -> None:
        self.generation += 1
        self._structured = None
        if self.is_syslog:
            self.renderer = SyslogRenderer(os.getpid(), self.clock)
        else:
            self.renderer = TextRenderer(os.getpid(), self.clock, self.logtime, self.utc)
        self.writer.render = self._json_line if self.json else self.renderer.line

    def _json_line(self, level: str, text: str) -> str:
        stamp = datetime.fromtimestamp(self.clock.time_ns() / 1e9, UTC).isoformat().replace("+00:00", "Z")
        return json.dumps({"event": text, "time": stamp, "level": _LEVEL_NAMES[level]})


def _level_name(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Set the levels "trace" and "fatal", which structlog lacks, as the text format's tags show them."""
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
    """A logger: `log.info("text", key=value)`; `exc_info=True` or an exception appends the traceback. It works before
    `configure` (INFO and above to stderr) and follows every later configuration."""

    __slots__ = ("_bound", "_context", "_generation", "name")

    def __init__(self, name: str, context: dict[str, object] | None = None) -> None:
        self.name = name
        self._context = context or {}
        self._bound: Any = None
        self._generation = -1

    def bind(self, **context: object) -> Logger:
        """Return a logger that adds `context` to each of its lines."""
        return Logger(self.name, {**self._context, **context})

    def trace(self, event: str, **context: object) -> None:
        """Log for `-V`. Trace is not below debug: `-V` alone shows no debug lines, as in nats-server."""
        if _state.trace:
            self._structured().debug(event, tag="TRC", **context)

    def debug(self, event: str, **context: object) -> None:
        if _state.debug:
            self._structured().debug(event, **context)

    def info(self, event: str, **context: object) -> None:
        self._structured().info(event, **context)

    def warning(self, event: str, **context: object) -> None:
        self._structured().warning(event, **context)

    def error(self, event: str, **context: object) -> None:
        self._structured().error(event, **context)

    def exception(self, event: str, **context: object) -> None:
        """Log an error with the traceback of the current exception."""
        self._structured().error(event, exc_info=True, **context)

    def fatal(self, event: str, **context: object) -> None:
        """Log `[FTL]`: the server cannot continue, and the caller ends the process with a code other than 0."""
        self._structured().critical(event, **context)

    def _structured(self) -> Any:
        if self._generation != _state.generation:
            self._bound = _state.structured().bind(logger=self.name, **self._context)
            self._generation = _state.generation
        return self._bound


def get_logger(name: str) -> Logger:
    return Logger(name)


class StandardLibraryBridge(logging.Handler):
    """Writes records of `logging` (asyncio, aiohttp, pysyncobj, some modules here) to this log."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            write = _BRIDGED[max(level for level in _BRIDGED if level <= max(record.levelno, TRACE))]
            write(Logger(record.name), record.getMessage(), exc_info=record.exc_info or None)
        except Exception:  # noqa: BLE001 - a bad format string in a log call must not end its caller
            self.handleError(record)


_BRIDGED: dict[int, Callable[..., None]] = {
    TRACE: Logger.trace,
    DEBUG: Logger.debug,
    INFO: Logger.info,
    WARNING: Logger.warning,
    ERROR: Logger.error,
    FATAL: Logger.fatal,
}
_bridge = StandardLibraryBridge()
_limit = LineLimit(SystemClock())
_bridge.addFilter(_limit)


def configure(options: LogOptions, clock: Clock | None = None, fd: int = 2) -> None:
    """Apply levels, format and target. Raises OSError when the log file cannot be opened or syslog does not answer, and
    ValueError for an unknown kind of syslog URL. May be called again (reload); lines queued for the old target are
    written first, within a second."""
    writer = _state.writer
    is_syslog = not options.log_file and (options.syslog or bool(options.remote_syslog))
    target = (options.log_file, options.remote_syslog if is_syslog else None, fd)
    if writer.is_closed or target != _state.target:
        _state.writer = _open(options, is_syslog, fd)
        _state.target = target
        if not writer.is_closed:
            writer.close(timeout=1.0)
    if isinstance(_state.writer, FileWriter):
        _state.writer.size_limit = options.log_size_limit
        _state.writer.max_files = options.log_max_num
    _state.debug = options.debug
    _state.trace = options.trace
    _state.clock = _limit.clock = clock or SystemClock()
    _state.is_syslog = is_syslog
    _state.json = options.log_format == "json" and not is_syslog
    _state.logtime = options.logtime
    _state.utc = options.logtime_utc
    _state.changed()
    root = logging.getLogger()
    if _bridge not in root.handlers:
        root.addHandler(_bridge)
    logging.getLogger("jetcluster").setLevel(TRACE if options.trace else DEBUG if options.debug else INFO)


def _open(options: LogOptions, is_syslog: bool, fd: int) -> LineWriter:
    if options.log_file:
        return FileWriter(options.log_file)
    if is_syslog:
        from jetcluster.log_syslog import SyslogWriter

        return SyslogWriter(options.remote_syslog)
    return LineWriter(fd)


def why_not_opened(options: LogOptions, error: OSError | ValueError) -> str:
    """Return the reason why `configure` failed, in nats-server's words."""
    if isinstance(error, ValueError):
        return str(error)
    reason = error.strerror.lower() if error.strerror else str(error)
    if options.log_file:
        return f"error opening file: open {options.log_file}: {reason}"
    return f'error connecting to syslog: "{reason}"'


def reopen() -> bool:
    """Open the log file again (SIGUSR1); False when the log goes elsewhere."""
    return _state.writer.reopen()


def dropped_lines() -> int:
    return _state.writer.dropped


def shutdown(timeout: float = 0.5) -> None:
    """Write queued lines, for at most `timeout` seconds. Later lines are lost until `configure` is called."""
    _state.writer.close(timeout)
