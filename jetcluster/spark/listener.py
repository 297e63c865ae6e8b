"""`MetricsListener`: streaming queries as Prometheus text, on a port or in a file.

    listener = MetricsListener(port=9464)
    spark.streams.addListener(listener)

It lives in the driver. `listener.url` is for the source's option `metricsUrl`: tasks post their counts there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from jetcluster.spark.metrics import SourceMetrics
from jetcluster.spark.task_report import MAX_REPORT_BYTES

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

REQUEST_SECONDS = 5.0
"""The longest silence of a client of the port."""


class MetricsListener(StreamingQueryListener):
    """Takes the events of all queries of a session."""

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        file: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`port`: serve `/metrics` there, 0 for any free one. `host`: the address to listen on; with executors on
        other machines, one of the driver's that they reach. `file`: write the text there after each event, as a whole
        (for node_exporter's textfile collector). Raises OSError for a port that is taken."""
        self._metrics = SourceMetrics()
        self._file = None if file is None else Path(file)
        self._clock = clock
        self._server = None if port is None else _Server((host, port), self._metrics)
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="jetcluster metrics", daemon=True).start()

    @property
    def url(self) -> str:
        """Where tasks post, for the option `metricsUrl`; "" without a port."""
        if self._server is None:
            return ""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/tasks"

    def text(self) -> str:
        """Returns the text of `/metrics`."""
        return self._metrics.text()

    def close(self) -> None:
        """Ends the port. Remove the listener from the session first."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing: a query has numbers from its first progress on."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._metrics.progress(json.loads(event.progress.json), self._clock())
        self._write()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._metrics.idle(str(event.id), self._clock())
        self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._metrics.ended(str(event.id), failed=event.exception is not None)
        self._write()

    def _write(self) -> None:
        """Raises OSError, which Spark logs: the query goes on."""
        if self._file is not None:
            whole = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            whole.write_text(self._metrics.text())
            whole.replace(self._file)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], metrics: SourceMetrics) -> None:
        super().__init__(address, _Handler)
        self.metrics = metrics


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            self._answer(200, self.server.metrics.text())
        elif path == "/tasks" and query.startswith("reader="):
            self._answer(200, json.dumps(self.server.metrics.reader(query.removeprefix("reader="))))
        else:
            self._answer(404, "there is /metrics\n")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/tasks" or not length.isascii() or not length.isdigit() or int(length) > MAX_REPORT_BYTES:
            self._answer(400, f"reports of tasks go to /tasks, {MAX_REPORT_BYTES} bytes at most\n")
            return
        try:
            self.server.metrics.task(self.rfile.read(int(length)))
        except ValueError as error:
            self._answer(400, f"{error}\n")
        else:
            self._answer(204, "")

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: requests are no news."""

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
