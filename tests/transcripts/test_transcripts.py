"""The golden transcripts, against our server and, as the check of the transcripts, against the real nats-server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock
from jetcluster.config.options import Options
from jetcluster.server.server import Server
from testkit.harness import find_server
from testkit.twins.time import SeededRng

from .conversation import Transcript, load, play

HERE = Path(__file__).parent
TRANSCRIPTS = [load(path) for path in sorted(HERE.glob("*.txt"))]
NATS_SERVER = (find_server("nats-server") or [None])[0]
_INTS = ("max_payload", "max_control_line", "max_connections", "max_subscriptions", "max_sub_tokens")
_SECONDS = ("auth_timeout", "ping_interval")


@asynccontextmanager
async def _ours(transcript: Transcript) -> AsyncIterator[int]:
    options = Options(host="127.0.0.1", port=-1)
    for key, value in transcript.options.items():
        if key in _INTS:
            setattr(options, key, int(value))
        elif key == "ping_interval":
            options.ping_interval = float(value)
        elif key == "auth_timeout":
            options.authorization.timeout = float(value)
        elif key == "no_header_support":
            options.no_header_support = value == "true"
        else:
            assert key in ("user", "password"), key
            setattr(options.authorization, key, value)
    server = Server(options, Authenticator(options), SystemClock(), SeededRng(1), asyncio.get_running_loop())
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


@asynccontextmanager
async def _real(transcript: Transcript, folder: Path) -> AsyncIterator[int]:
    assert NATS_SERVER is not None
    lines = ['listen: "127.0.0.1:-1"', f'ports_file_dir: "{folder}"']
    authorization = {k: v for k, v in transcript.options.items() if k in ("user", "password", "auth_timeout")}
    for key, value in transcript.options.items():
        if key not in authorization:
            lines.append(f'{key}: "{value}s"' if key in _SECONDS else f"{key}: {value}")
    if authorization:
        body = ", ".join(f"{k.removeprefix('auth_')}: {v}" for k, v in authorization.items())
        lines.append(f"authorization {{ {body} }}")
    config = folder / "server.conf"
    config.write_text("\n".join(lines))
    process = subprocess.Popen([NATS_SERVER, "-c", str(config)], stderr=subprocess.PIPE)
    try:
        ports = folder / f"nats-server_{process.pid}.ports"
        for _ in range(200):
            if ports.exists() and ports.read_text().endswith("}"):
                break
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            await asyncio.sleep(0.02)
        yield int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: t.name)
async def test_our_server(transcript: Transcript) -> None:
    async with _ours(transcript) as port:
        await play(transcript, "127.0.0.1", port)


@pytest.mark.interop
@pytest.mark.skipif(NATS_SERVER is None, reason="no nats-server on this machine: run `make tools` (needs Go)")
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: t.name)
async def test_real_server(transcript: Transcript, tmp_path: Path) -> None:
    async with _real(transcript, tmp_path) as port:
        await play(transcript, "127.0.0.1", port)


async def test_a_transcript_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("> PING\n< PANG\n")
    transcript = load(path)
    async with _ours(transcript) as port:
        with pytest.raises(AssertionError, match="wrong:2"):
            await play(transcript, "127.0.0.1", port)
