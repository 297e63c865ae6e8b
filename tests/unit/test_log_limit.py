"""Strangers do not fill the log, however many connections of theirs are refused (log_limit.py)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from jetcluster import logs
from jetcluster.config.options import Options
from jetcluster.log_limit import FROM_STRANGERS, MAX_LINES, WINDOW_SECONDS, LineLimit
from testkit.certificates import make_certificate
from testkit.twins.time import ManualTime
from tests.unit.node.rig import running

REFUSED = "cid %d: refused: %s"


def passes(limit: LineLimit, text: str, *values: object, marked: bool = True) -> str | None:
    """The line as it is written; None when it is left out."""
    record = logging.LogRecord("jetcluster.server", logging.INFO, "x.py", 1, text, values, None)
    if marked:
        record.__dict__.update(FROM_STRANGERS)
    return record.getMessage() if limit.filter(record) else None


def test_so_many_lines_of_each_text_pass_and_the_next_one_tells_of_the_others() -> None:
    clock = ManualTime()
    limit = LineLimit(clock)
    found = [passes(limit, REFUSED, number, "100 %s") for number in range(MAX_LINES + 7)]
    assert found[:MAX_LINES] == [f"cid {number}: refused: 100 %s" for number in range(MAX_LINES)]
    assert found[MAX_LINES:] == [None] * 7
    assert passes(limit, "another text") == "another text", "each text has its own"
    assert passes(limit, REFUSED, 1, "x", marked=False) == "cid 1: refused: x", "what is no stranger's is not counted"
    clock.advance(WINDOW_SECONDS)
    assert passes(limit, REFUSED, 99, "100 %s") == "cid 99: refused: 100 %s (and 7 more such lines, left out)"
    assert passes(limit, REFUSED, 100, "y") == "cid 100: refused: y"


@pytest.mark.usefixtures("restored_logs")
def test_the_log_of_a_server_has_the_limit(tmp_path: Path) -> None:
    logs.configure(Options(log_file=str(tmp_path / "x.log")), clock=ManualTime())
    for number in range(500):
        logging.getLogger("jetcluster.server").info(REFUSED, number, "no", extra=FROM_STRANGERS)
        logging.getLogger("jetcluster.server").info("closed %d", number)
    logs.shutdown()
    lines = (tmp_path / "x.log").read_text().splitlines()
    assert sum("refused" in line for line in lines) == MAX_LINES
    assert sum("closed" in line for line in lines) == 500


async def told(port: int, data: bytes) -> None:
    """Sends `data` to a port and reads until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        async with asyncio.timeout(10):
            while await reader.read(4096):
                pass
    writer.close()


async def test_connections_that_are_refused_are_marked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="jetcluster.server")
    cert, key = make_certificate(tmp_path)
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 2 }}'
    text = (
        "authorization { user: a, password: b }\n"
        'websocket { listen: "127.0.0.1:-1", no_tls: true }\n'
        f'leafnodes {{ listen: "127.0.0.1:-1"\n {tls} }}\n'
    )
    async with running(tmp_path, text) as node:
        assert node.server.ws_port is not None and node.leafnodes is not None
        await told(node.server.port, b'CONNECT {"user":"a","pass":"x"}\r\nPING\r\n')
        await told(node.server.ws_port.port, b"nonsense\r\n\r\n")
        await told(node.leafnodes.port, b"nonsense\r\n\r\n")
    records = [
        record for record in caplog.records if "error:" in record.getMessage() or "refused" in record.getMessage()
    ]
    assert sorted(str(record.msg) for record in records) == [
        "%s - websocket handshake error: %s",
        "cid %d, %s: authentication refused: %s",
        "leafnode cid %d, %s: TLS handshake error: %s",
    ]
    assert all(record.__dict__.get("from_strangers") for record in records)
