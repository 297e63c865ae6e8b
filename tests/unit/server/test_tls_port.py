"""TLS at the client port, by the table of tests/unit/server/tls_cases.py; what a reload changes; who is sent what."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest
import uvloop

from jetcluster.config.tls import server_context
from jetcluster.config.tls_options import TlsOptions
from jetcluster.net.tls_listener import TlsListener
from testkit.certificates import Authority, pin_of
from tests.unit.server.serving import configured
from tests.unit.server.tls_cases import CASES, IN, NO_TLS, VERIFY, Case, Certificates, by_config, outcome
from tests.unit.server.wire import Wire, close_all, errors

pytestmark = pytest.mark.usefixtures("closed_wires")


async def test_who_comes_in_and_as_whom(certificates: Certificates, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for text, cases in by_config(certificates).items():
        (tmp_path / "server.conf").write_text(text)
        async with configured(tmp_path / "server.conf") as (server, _):
            for case in cases:
                before = len(server.clients.closed)
                found[case.name] = await outcome(server.port, case, certificates)
                if case.outcome == NO_TLS:
                    reasons = [closed.reason for closed in list(server.clients.closed)[before:]]
                    assert reasons == ["TLS Handshake Failure"], case.name
                await close_all()
                while server.clients:
                    await asyncio.sleep(0.002)
    assert found == {case.name: case.outcome for case in CASES}


async def test_an_optional_certificate_may_be_missing_but_not_wrong(certificates: Certificates, tmp_path: Path) -> None:
    shown = {"": IN, "plain": IN, "other": NO_TLS, "expired": NO_TLS}
    cases = [Case(f"optional {name}", tls="verify: optional", certificate=name) for name in shown]
    (tmp_path / "server.conf").write_text(certificates.config(cases[0]))
    async with configured(tmp_path / "server.conf") as (server, _):
        assert [await outcome(server.port, case, certificates) for case in cases] == list(shown.values())


def test_ways_to_begin_on_uvloop(certificates: Certificates, tmp_path: Path) -> None:
    """The loop of a real server watches sockets in its own way."""
    cases = [case for case in CASES if case.first or case.plain or "handshake_first" in case.tls or "allow" in case.top]

    async def body() -> dict[str, str]:
        found: dict[str, str] = {}
        for case in cases:
            (tmp_path / "server.conf").write_text(certificates.config(case))
            async with configured(tmp_path / "server.conf") as (server, _):
                found[case.name] = await outcome(server.port, case, certificates)
            await close_all()
        (tmp_path / "server.conf").write_text("max_payload: 1000")
        async with configured(tmp_path / "server.conf") as (server, reload):  # the open port is handed over
            assert (await come(server.port, certificates, plain=True))[0] == IN
            (tmp_path / "server.conf").write_text(certificates.config(Case("", "")))
            await reload()
            assert (await come(server.port, certificates))[0] == IN
            assert (await come(server.port, certificates, plain=True))[0] == NO_TLS
        await close_all()
        return found

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(body()) == {case.name: case.outcome for case in cases}
    assert len(cases) > 10


async def come(port: int, certificates: Certificates, **more: object) -> tuple[str, Wire | None]:
    case = Case("", **more)  # type: ignore[arg-type]
    try:
        wire = await Wire.open(port, tls=None if case.plain else certificates.context(case), first=case.first)
        await wire.log_in()
    except OSError:
        return NO_TLS, None
    return (NO_TLS if wire.over else IN), wire


@pytest.mark.parametrize(
    ("tls", "top", "first", "said"),
    [
        ("", "", False, ["tls_required"]),
        (VERIFY, "", False, ["tls_required", "tls_verify"]),
        ("", "allow_non_tls: true", False, ["tls_available"]),
        (VERIFY, "allow_non_tls: true", False, ["tls_verify", "tls_available"]),
        ("handshake_first: auto", "allow_non_tls: true", False, ["tls_available"]),
        ("handshake_first: auto", "allow_non_tls: true", True, ["tls_required", "tls_available"]),
    ],
)
async def test_info_says_whether_tls_is_required(
    tls: str, top: str, first: bool, said: list[str], certificates: Certificates, tmp_path: Path
) -> None:
    (tmp_path / "server.conf").write_text(certificates.config(Case("", tls, top)))
    async with configured(tmp_path / "server.conf") as (server, _):
        case = Case("", tls, top, certificate="plain")
        wire = await Wire.open(server.port, tls=certificates.context(case), first=first)
        assert sorted(key for key in wire.info if key.startswith("tls_")) == sorted(said)
        assert all(wire.info[key] is True for key in said)


async def test_a_reload_changes_everything_for_those_who_come_next(certificates: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "server.conf"

    def write(tls: str, top: str = "") -> None:
        file.write_text(certificates.config(Case("", tls, top)))

    file.write_text("max_payload: 1000")
    async with configured(file) as (server, reload):
        port = server.port
        assert (await come(port, certificates, plain=True))[0] == IN
        write("")  # TLS on
        await reload()
        assert server.port == port
        assert (await come(port, certificates, plain=True))[0] == NO_TLS
        old, early = await come(port, certificates)
        assert (old, early is not None) == (IN, True)
        write("", "allow_non_tls: true")
        await reload()
        assert (await come(port, certificates, plain=True))[0] == IN
        write("handshake_first: true")
        await reload()
        assert (await come(port, certificates, first=True))[0] == IN
        write(VERIFY)
        await reload()
        assert (await come(port, certificates))[0] == NO_TLS
        mine, wire = await come(port, certificates, certificate="plain")
        assert mine == IN
        # Pins: who does not have one of them, or no certificate at all, goes at once.
        write(f"{VERIFY}, pinned_certs: [<dn>]")
        await reload()
        assert early is not None
        assert wire is not None
        assert await early.to_the_end() == []
        assert errors(await wire.to_the_end()) == []
        assert (await come(port, certificates, certificate="plain"))[0] == NO_TLS
        assert (await come(port, certificates, certificate="dn"))[0] == IN
        file.write_text("max_payload: 1000")  # and off again
        await reload()
        assert (await come(port, certificates, plain=True))[0] == IN


async def test_a_renewed_certificate_is_shown_from_the_reload_on(certificates: Certificates, tmp_path: Path) -> None:
    file, cert, key = tmp_path / "server.conf", tmp_path / "cert", tmp_path / "key"

    def renew(name: str) -> str:
        pair = certificates.authority.issue(name)
        cert.write_bytes(pair[0].read_bytes())
        key.write_bytes(pair[1].read_bytes())
        return pin_of(pair[0])

    first = renew("first")
    file.write_text(f'tls {{ cert_file: "{cert}", key_file: "{key}", handshake_first: true }}')
    context = certificates.context(Case(""))

    async def shown(port: int) -> str:
        wire = await Wire.open(port, tls=context, first=True)
        der = wire.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        (tmp_path / "shown.pem").write_text(ssl.DER_cert_to_PEM_cert(der))
        return pin_of(tmp_path / "shown.pem")

    async with configured(file) as (server, reload):
        assert await shown(server.port) == first
        second = renew("second")
        assert await shown(server.port) == first
        await reload()
        assert await shown(server.port) == second


async def test_who_is_silent_costs_little_and_not_for_long(certificates: Certificates, tmp_path: Path) -> None:
    """Connections in their handshake count as connections; after `timeout` they are gone."""
    (tmp_path / "server.conf").write_text(certificates.config(Case("", "", "max_connections: 3")))
    async with configured(tmp_path / "server.conf") as (server, _):
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        for reader, _ in silent:
            assert (await reader.readline()).startswith(b"INFO ")
        full = await Wire.open(server.port)
        assert errors(await full.to_the_end()) == ["maximum connections exceeded"]
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
        assert server.clients.handshakes == 0
        assert (await come(server.port, certificates))[0] == IN
        assert [one.reason for one in server.clients.closed] == ["TLS Handshake Failure"] * 3


async def test_handshakes_per_second_are_limited(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text(certificates.config(Case("", "connection_rate_limit: 2")))
    async with configured(tmp_path / "server.conf") as (server, _):
        found = [await come(server.port, certificates) for _ in range(4)]
        assert [outcome for outcome, _ in found].count(IN) == 2
        assert len(server.clients) == 2
        late = await Wire.open(server.port)
        late.send("CONNECT {}")
        assert errors(await late.to_the_end()) in ([], ["Connection throttling is active. Please try again later."])


# A client whose certificate is refused gets a TLS alert, not by the end of its connection.


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


# Handshakes that stop half-way, never end, or begin again: each costs a bounded time and memory, and nobody waits.


TIMEOUT = 1.0
"""Seconds that the table's configurations give a handshake."""
PATIENCE = 4.0


def hello(context: ssl.SSLContext) -> tuple[bytes, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A ClientHello, and what goes on with it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read(), session, incoming, outgoing


def record(body: bytes) -> bytes:
    """A TLS record of a handshake."""
    return b"\x16\x03\x01" + struct.pack(">H", len(body)) + body


async def test_handshakes_that_stop_half_way(certificates: Certificates, tmp_path: Path) -> None:
    case = Case("", VERIFY, certificate="plain", first=True)
    (tmp_path / "server.conf").write_text(certificates.config(Case("", f"{VERIFY}, handshake_first: true")))
    context = certificates.context(case)
    first, *_ = hello(context)
    endless = b"\x01" + (1 << 23).to_bytes(3, "big") + bytes(16_000)  # a ClientHello of 8 MB
    starts = {
        "nothing": b"", "one byte": first[:1], "half a ClientHello": first[: len(first) // 2], "a ClientHello": first,
        "a record's head alone": first[:5], "empty records": record(b"") * 3,
        "the beginning of a long one": record(endless[:8000]), "twice the same": first + first,
        "no TLS": b"CONNECT {}\r\nPING\r\n", "an alert": b"\x15\x03\x03\x00\x02\x01\x00",
        "SSL 2": b"\x80\x2e\x01\x00\x02",
    }  # fmt: skip
    async with configured(tmp_path / "server.conf") as (server, _):
        began = time.monotonic()
        stuck = []
        for start in starts.values():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(start)
            stuck.append((reader, writer))
        # Who does it as it should be done comes in meanwhile.
        assert await outcome(server.port, case, certificates) == "in"
        for (reader, writer), name in zip(stuck, starts, strict=True):
            try:
                async with asyncio.timeout(TIMEOUT + PATIENCE):
                    while await reader.read(65_536):
                        pass
            except TimeoutError:
                pytest.fail(f"{name}: the connection is still there")
            except ConnectionError:
                pass
            writer.close()
        assert time.monotonic() - began < TIMEOUT + PATIENCE
        assert server.clients.handshakes == 0
        assert [one.reason for one in server.clients.closed].count("TLS Handshake Failure") == len(starts)


async def test_a_handshake_without_end_is_not_kept(certificates: Certificates, tmp_path: Path) -> None:
    """Data in place of a ClientHello is refused when it is too long, and not collected until the time is up."""
    (tmp_path / "server.conf").write_text(certificates.config(Case("", "handshake_first: true, timeout: 60")))
    async with configured(tmp_path / "server.conf") as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            async with asyncio.timeout(15):
                writer.write(record(b"\x01" + (1 << 23).to_bytes(3, "big") + bytes(16_000)))  # a ClientHello of 8 MB
                for _ in range(15):
                    writer.write(record(bytes(16_000)))
                while await reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        assert [one.reason for one in server.clients.closed] == ["TLS Handshake Failure"]
        writer.close()
        assert await outcome(server.port, Case("", first=True), certificates) == "in"


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl command, and Python cannot renegotiate"
)
@pytest.mark.parametrize(("said", "goes_on"), [("PING\r\n", True), ("R\nPING\r\n", False)], ids=["plain", "again"])
async def test_nobody_negotiates_again(certificates: Certificates, tmp_path: Path, said: str, goes_on: bool) -> None:
    """TLS 1.2 lets a client ask for another handshake on the same connection, each of which costs this end more."""
    (tmp_path / "server.conf").write_text(certificates.config(Case("", "handshake_first: true")))
    async with configured(tmp_path / "server.conf") as (server, _):
        client = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2", "-legacy_renegotiation",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        try:
            async with asyncio.timeout(30):
                told = b""
                while b"INFO {" not in told:
                    told += await client.stdout.read(65_536)
                client.stdin.write(b'CONNECT {"verbose":false}\r\n')
                await client.stdin.drain()
                await asyncio.sleep(0.2)  # what it reads at once is one message, and `R` must begin one
                for line in said.splitlines(keepends=True):
                    with contextlib.suppress(ConnectionError):  # it has ended, as it should
                        client.stdin.write(line.encode())
                        await client.stdin.drain()
                    await asyncio.sleep(0.2)
                while b"PONG" not in told and (more := await client.stdout.read(65_536)):
                    told += more
        finally:
            if client.returncode is None:
                client.kill()
            await client.wait()
        assert (b"PONG" in told) is goes_on
        assert (b"RENEGOTIATING" in told) is not goes_on
        assert (b"no renegotiation" in told) is not goes_on
