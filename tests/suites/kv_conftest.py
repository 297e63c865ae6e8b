"""The fixtures that nats-key-value's tests expect: one server per test, on a port of its own.

`tests/suites/run.py` copies it beside them as conftest.py. The server (SUITE_SERVER) tells its port in the log.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.client import Client, connect
from nats.jetstream import JetStream, new

STOP_SECONDS = 5.0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    command = [os.environ["SUITE_SERVER"], "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    port = ""
    for line in process.stderr:
        if listening := re.search(r"Listening for client connections on \S*:(\d+)", line):
            port = listening[1]
        if "Server is ready" in line:
            break
    else:
        pytest.fail(f"{command} ended with {process.wait()}")
    yield f"nats://127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    finally:
        process.kill()
        process.stderr.close()


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    connection = await connect(url)
    yield connection
    await connection.close()


@pytest.fixture
async def jetstream(client: Client) -> JetStream:
    return new(client)
