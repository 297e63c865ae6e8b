"""A client whose certificate is refused is told so by a TLS alert, not by the end of its connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
import uvloop

from jetcluster.config.tls import server_context
from jetcluster.config.tls_options import TlsOptions
from jetcluster.net.tls_listener import TlsListener
from testkit.certificates import Authority

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def alert(port: int, context: ssl.SSLContext) -> str:
    """The alert, or the answer, that a client gets which sends something at once; it blocks, so it runs in a thread."""
    with socket.create_connection(("127.0.0.1", port), 5) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(b"CONNECT {}\r\n" * 100)
                return repr(secure.recv(100))
        except ssl.SSLError as error:
            return error.reason or ""


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("certificate", ["none", "foreign"])
def test_the_reason_is_sent(loop: str, version: ssl.TLSVersion, certificate: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ours, foreign = Authority(tmp_path / "a"), Authority(tmp_path / "b", "stranger")
    cert_file, key_file = ours.issue("server")
    options = TlsOptions(cert_file=str(cert_file), key_file=str(key_file), ca_file=str(ours.file), verify=True)
    context = ssl.create_default_context(cafile=str(ours.file))
    context.minimum_version = context.maximum_version = version
    if certificate == "foreign":
        context.load_cert_chain(*foreign.issue("client"))
    refused: list[Exception] = []

    async def run() -> str:
        listener = TlsListener(server_context(options), 5.0, asyncio.Protocol, lambda _, error: refused.append(error))
        _, port = await listener.start("127.0.0.1", 0)
        try:
            return await asyncio.to_thread(alert, port, context)
        finally:
            listener.close()
            await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        said = runner.run(run())
    if certificate == "foreign":
        assert said == "TLSV1_ALERT_UNKNOWN_CA"
    else:
        expected = {"1.2": "SSLV3_ALERT_HANDSHAKE_FAILURE", "1.3": "TLSV13_ALERT_CERTIFICATE_REQUIRED"}
        assert said == expected["1.3" if version is ssl.TLSVersion.TLSv1_3 else "1.2"]
    assert len(refused) == 1
