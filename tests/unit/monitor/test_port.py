"""The listener and the HTTP side, over a socket."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

import jetcluster
from jetcluster.clock import SystemClock
from jetcluster.config.options import WorkerOptions
from jetcluster.config.tls_options import TlsOptions
from jetcluster.model.machines import tags_of
from jetcluster.monitor.port import Monitor, MonitorError, start_monitor
from jetcluster.monitor.source import WORKER_METHOD
from jetcluster.server.server import Server
from testkit.certificates import Authority, make_certificate
from tests.unit.monitor import fake_node


@pytest.fixture
async def monitor(server: Server) -> AsyncIterator[Monitor]:
    node = fake_node.node(server, SystemClock())
    node.monitor = await start_monitor(node)
    node.monitor_port = node.monitor.port
    yield node.monitor
    await node.monitor.stop()


async def get(monitor: Monitor, path: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{monitor.port}{path}") as response:
        return response.status, await response.text(), dict(response.headers)


async def test_a_worker_that_no_connection_came_to_answers_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are imported with the first request, and the kernel may give all connections to another worker."""
    served: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}
    mesh = SimpleNamespace(
        serve=served.__setitem__,
        me=SimpleNamespace(tags=tags_of("m", 0)),
        peers={"other": SimpleNamespace(tags=tags_of("m", 1))},
    )
    node = fake_node.node(server, SystemClock())
    monkeypatch.setattr(node.options, "worker", WorkerOptions(0, 2, "m", (), "", {}))
    monkeypatch.setattr(node, "jetstream", SimpleNamespace(mesh=mesh))
    node.monitor = await start_monitor(node)
    async with asyncio.timeout(20):
        answer = await served[WORKER_METHOD]("other", json.dumps(["stacksz", {}]).encode())
    assert b"test_port.py" in answer
    await node.monitor.stop()


async def test_pages(monitor: Monitor) -> None:
    # The first request comes before aiohttp is attached: it waits in the backlog and is answered.
    status, body, headers = await get(monitor, "/varz")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert json.loads(body)["http_port"] == monitor.port
    assert body.startswith('{\n  "server_id": ')
    for path in (
        "/connz?subs=1", "/routez", "/subsz", "/subscriptionsz", "/jsz?streams=1", "/leafz", "/gatewayz", "/accountz",
        "/accstatz",
    ):  # fmt: skip
        status, body, _ = await get(monitor, path)
        assert (status, json.loads(body)["server_id"][0]) == (200, "N"), path
    assert (await get(monitor, "/healthz"))[:2] == (200, '{"status":"ok"}')
    status, body, _ = await get(monitor, "/connz?sort=foo")
    assert (status, body) == (400, "invalid sorting option: foo")
    status, body, headers = await get(monitor, "/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'gnatsd_varz_connections{server_id="n1"} 0\n' in body
    assert (await get(monitor, "/metrics?prefix=a-b"))[0] == 400
    assert (await get(monitor, "/raftz"))[:2] == (200, "{}")
    assert "memstats" in (await get(monitor, "/debug/vars"))[1]
    async with aiohttp.ClientSession() as session, session.head(f"http://127.0.0.1:{monitor.port}/varz") as response:
        assert (response.status, await response.text()) == (200, "")
    async with aiohttp.ClientSession() as session, session.post(f"http://127.0.0.1:{monitor.port}/healthz") as response:
        assert (response.status, await response.text()) == (200, '{"status":"ok"}')
    status, body, headers = await get(monitor, "/stacksz")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert "thread MainThread:" in body and "in stacksz" in body and "(test_pages)" in body
    assert (await get(monitor, "/ipqueuesz"))[:2] == (200, "{}")
    assert (await get(monitor, "/ipqueuesz?all=x"))[0] == 400
    assert (await get(monitor, "/nope"))[:2] == (404, "404 page not found\n")
    status, body, headers = await get(monitor, "/")
    assert status == 200
    assert 'href="/jsz"' in body
    assert headers["Content-Type"].startswith("text/html")


async def test_base_path(server: Server) -> None:
    node = fake_node.node(server, SystemClock())
    node.options.http_base_path = "/nats"
    monitor = await start_monitor(node)
    assert (await get(monitor, "/nats/healthz"))[0] == 200
    assert (await get(monitor, "/healthz"))[0] == 404
    assert 'href="/nats/varz"' in (await get(monitor, "/nats/"))[1]
    await monitor.stop()


async def test_a_page_that_fails_says_so(monitor: Monitor, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.clients, "totals", lambda: 1 / 0)
    assert (await get(monitor, "/varz"))[:2] == (500, "internal error, see the log")
    assert (await get(monitor, "/connz"))[0] == 200


async def test_port_in_use(monitor: Monitor, server: Server) -> None:
    node = fake_node.node(server, SystemClock())
    node.options.http_port = monitor.port
    with pytest.raises(MonitorError) as caught:
        await start_monitor(node)
    assert str(caught.value) == (
        "Can't start monitoring: can't listen to the monitor port: "
        f"listen tcp 127.0.0.1:{monitor.port}: bind: address already in use"
    )


async def test_https(server: Server, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    node = fake_node.node(server, SystemClock())
    node.options.http_port, node.options.https_port = 0, -1
    node.options.tls = TlsOptions(cert_file=str(certificate), key_file=str(key), ca_file=str(certificate), verify=True)
    node.monitor = await start_monitor(node)
    trust = ssl.create_default_context(cafile=str(certificate))
    trust.check_hostname = False
    node.monitor_port = node.monitor.port
    url = f"https://127.0.0.1:{node.monitor.port}/varz"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trust) as response:
        varz = await response.json()
    assert (varz["https_port"], varz["http_port"], node.monitor.scheme) == (node.monitor.port, 0, "https")
    first = (await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", node.monitor.port))).strip()
    assert first == certificate.read_text().strip()
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    certificate, key = make_certificate(renewed)
    node.options.tls = TlsOptions(cert_file=str(certificate), key_file=str(key))
    node.monitor.renew_tls(node.options)
    await asyncio.sleep(0)
    second = (await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", node.monitor.port))).strip()
    assert second == certificate.read_text().strip() != first
    await node.monitor.stop()


async def test_a_reload_changes_whose_certificates_https_takes(server: Server, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old, new = (Authority(folder, folder.name) for folder in folders)
    certificate, key = old.issue("server")
    node = fake_node.node(server, SystemClock())
    node.options.http_port, node.options.https_port, node.options.https_verify = 0, -1, True
    node.options.tls = TlsOptions(str(certificate), str(key), str(old.file))
    node.monitor = await start_monitor(node)
    node.monitor_port = node.monitor.port
    url = f"https://localhost:{node.monitor.port}/healthz"

    async def let_in() -> list[bool]:
        found = []
        for authority in (old, new):
            trust = ssl.create_default_context(cafile=str(old.file))
            trust.load_cert_chain(*authority.issue("client"))
            async with aiohttp.ClientSession() as session:
                try:
                    async with session.get(url, ssl=trust) as response:
                        found.append(response.status == 200)
                except (aiohttp.ClientError, ConnectionError):
                    found.append(False)
        return found

    assert await let_in() == [True, False]
    node.options.tls = TlsOptions(str(certificate), str(key), str(new.file))
    node.monitor.renew_tls(node.options)
    await asyncio.sleep(0.01)
    assert await let_in() == [False, True]
    await node.monitor.stop()
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(node.monitor, "/varz")


async def test_https_needs_a_certificate_and_a_port_of_its_own(server: Server) -> None:
    node = fake_node.node(server, SystemClock())
    node.options.http_port, node.options.https_port = 0, 8443
    with pytest.raises(MonitorError, match="Can't start monitoring: TLS cert and key required for HTTPS"):
        await start_monitor(node)
    node.options.http_port = 8222
    with pytest.raises(MonitorError, match=r"can't specify both HTTP \(8222\) and HTTPs \(8443\) ports"):
        await start_monitor(node)


async def test_stop_right_after_start(server: Server) -> None:
    monitor = await start_monitor(fake_node.node(server, SystemClock()))
    await monitor.stop()
    with pytest.raises(aiohttp.ClientConnectorError):
        await get(monitor, "/varz")


def test_the_start_does_not_import_aiohttp() -> None:
    code = "import sys, jetcluster.monitor.port as s; print('aiohttp' in sys.modules)"
    root = Path(jetcluster.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, cwd=root)
    assert done.stdout == "False\n", done.stderr
