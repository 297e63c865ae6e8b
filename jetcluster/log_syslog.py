"""`SyslogWriter`: log output to syslog (`-s`, `-r URL`) by the standard library's handler, in the log's thread.

A message that cannot be sent is lost and counted, and the writer connects again; the server goes on.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from logging.handlers import SysLogHandler
from urllib.parse import urlsplit

from jetcluster.log_writer import LineWriter

LOCAL_SOCKETS = ("/dev/log", "/var/run/syslog", "/var/run/log")
DEFAULT_PORT = 514
RETRY_SECONDS = 1.0
_SEVERITIES = {"TRC": "notice", "DBG": "debug", "INF": "notice", "WRN": "warning", "ERR": "err", "FTL": "crit"}
"""nats-server's mapping."""


class SyslogWriter(LineWriter):
    """A writer of lines that begin with a level and a blank ("INF text"); syslog adds time and process."""

    def __init__(self, url: str = "") -> None:
        """`url`: `udp://host:port`, `tcp://host:port`, `unix:///path`; "" is this machine's syslog. Raises OSError if
        nothing answers there, ValueError for another URL."""
        super().__init__(-1)
        self.url = url
        self.render = syslog_line
        self._handler: _Handler | None = _connected(url)
        self._failed_at = 0.0

    def _write_all(self, batch: list[bytes]) -> None:
        for line in batch:
            handler = self._handler or self._again()
            level, _, text = line.decode(errors="replace").rstrip("\n").partition(" ")
            if handler is None or not handler.send(_SEVERITIES[level], text):
                self._handler = None
                self._failed_at = time.monotonic()
                self._lost(1)

    def _again(self) -> _Handler | None:
        if self._handler is None and time.monotonic() - self._failed_at >= RETRY_SECONDS:
            try:
                self._handler = _connected(self.url)
            except OSError:
                self._failed_at = time.monotonic()
        return self._handler

    def _close_target(self) -> None:
        if self._handler is not None:
            self._handler.close()


def syslog_line(level: str, text: str) -> str:
    return f"{level} {text}"


class _Handler(SysLogHandler):
    append_nul = False
    failed = False

    def send(self, severity: str, text: str) -> bool:
        """Send a line; False when that failed, and then the handler is closed."""
        record = logging.LogRecord("", logging.INFO, "", 0, text, None, None)
        record.levelname = severity
        self.emit(record)
        if self.failed:
            self.close()
        return not self.failed

    def mapPriority(self, levelName: str) -> str:
        return levelName

    def handleError(self, _record: logging.LogRecord) -> None:
        self.failed = True


def _connected(url: str) -> _Handler:
    parts = urlsplit(url)
    if not url:
        path = next((path for path in LOCAL_SOCKETS if _answers(path)), None)
        if path is None:
            raise OSError("Unix syslog delivery error")
        handler = _Handler(path, SysLogHandler.LOG_DAEMON)
    elif parts.scheme == "unix":
        if not _answers(parts.path):
            raise OSError(f"dial unix {parts.path}: nobody answers")
        handler = _Handler(parts.path, SysLogHandler.LOG_KERN)
    elif parts.scheme in ("udp", "tcp") and parts.hostname:
        kind = socket.SOCK_STREAM if parts.scheme == "tcp" else socket.SOCK_DGRAM
        handler = _Handler((parts.hostname, parts.port or DEFAULT_PORT), SysLogHandler.LOG_KERN, kind)
    else:
        raise ValueError(f'error invalid network type: "{parts.scheme}"')
    handler.ident = f"nats-server[{os.getpid()}]: "
    return handler


def _answers(path: str) -> bool:
    """Return True if a socket answers at `path`: the library's handler would fail only at the first message."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(path)
            except OSError:
                continue
            return True
    return False
