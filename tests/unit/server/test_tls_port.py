"""TLS at the client port, by the table of tests/unit/server/tls_cases.py; what a reload changes; who is told what."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import uvloop

from testkit.certificates import pin_of
from tests.unit.server.rig import configured
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
