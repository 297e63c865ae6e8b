from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from jetcluster.spark import task_report
from jetcluster.spark.metrics import SourceMetrics
from tests.unit.client.fake_server import Peer


class Refusing(BaseHTTPRequestHandler):
    """Takes a report, and answers with an error; what it is asked for it answers with `said`."""

    taken: list[bytes]
    said = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.said)

    def do_POST(self) -> None:
        self.taken.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_error(500)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_listener_that_refuses_or_is_gone_fails_no_task() -> None:
    Refusing.taken = []
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        url = f"http://127.0.0.1:{server.server_port}/tasks"
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        task_report.send(url, "S", 7, {"n1": 2}, 1)
        thread.join(20)
    task_report.send(url, "S", 7, {"n1": 2}, 1)
    (report,) = Refusing.taken
    found = SourceMetrics()
    found.task(report)
    assert 'task_rows_total{stream="S"} 7' in found.text(), "and it is what a listener reads"


@pytest.mark.parametrize("said", [b"", b"x", b"[]", b"7", b'{"S": 7}', b'{"S": {"answers": {}}}', b'{"S": null}'])
def test_whoever_does_not_tell_counts_fails_no_query(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusing, "said", said)
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        url = f"http://127.0.0.1:{server.server_port}/tasks"
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        assert task_report.counts(url, "r") == {}
        thread.join(20)
    assert task_report.counts(url, "r") == {}


def test_a_port_that_speaks_no_http_fails_no_task_and_no_query() -> None:
    """Such as that of a server of streams."""
    with Peer() as peer:
        url = peer.url.replace("nats", "http") + "/tasks"
        task_report.send(url, "S", 7, {"n1": 2}, 1)
        assert task_report.counts(url, "r") == {}
        assert peer.accepted == 2
