"""TLS of clients, routes and the hook from secrets; two nodes are taken away over it."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import nats
import pytest

from testkit.certificates import Authority
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import apply, helm, make_secret
from tests.kubernetes.load import load
from tests.kubernetes.release import Release


async def test_tls_from_secrets(release: Release, say: Say, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    service = f"{release.full}.{release.namespace}.svc"
    pods = f"*.{release.full}-headless.{release.namespace}.svc"
    for name, hosts in (("clients", (service, pods)), ("routes", (pods,))):
        certificate, key = authority.issue(name, hosts)
        files = {"tls.crt": certificate, "tls.key": key}
        make_secret(name, files, release.namespace, "kubernetes.io/tls")
    apply(
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca", "namespace": release.namespace},
            "data": {"ca.crt": authority.file.read_text()},
        }
    )  # fmt: skip
    await asyncio.to_thread(
        release.install, "config.cluster.replicas=5", "config.nats.tls.enabled=true",
        "config.nats.tls.secretName=clients", "config.cluster.tls.enabled=true",
        "config.cluster.tls.secretName=routes", "tlsCA.enabled=true", "tlsCA.configMapName=ca",
    )  # fmt: skip
    done = helm("test", release.name, "-n", release.namespace, "--logs")
    assert done.code == 0, done.out
    url = f"tls://{release.service()}:4222"
    with pytest.raises(ssl.SSLCertVerificationError):
        await nats.connect(url, tls=ssl.create_default_context(), tls_hostname=service, max_reconnect_attempts=0,
                           allow_reconnect=False)  # fmt: skip
    trusted = ssl.create_default_context(cafile=authority.file)
    async with load(url, "TLS", tls=trusted, tls_hostname=service) as ledger:
        start = time.monotonic()
        await asyncio.to_thread(release.upgrade, "config.cluster.replicas=3", within=900)
        await release.until_ready(3)
        took = time.monotonic() - start
    say(f"five nodes to three over TLS in {took:.0f} s; {len(ledger.acked)} acked; {ledger.gaps()}")
    client = await nats.connect(url, tls=trusted, tls_hostname=service)
    state = (await client.jetstream().stream_info("TLS")).state
    await client.close()
    assert state.messages == len(ledger.acked), "acked messages are lost, or stored twice"
