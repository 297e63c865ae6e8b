"""A hub and an edge that mirrors one of its streams over a leaf link with TLS; the link is cut and mended."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from testkit.certificates import Authority
from testkit.client import Client
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import make_secret, until
from tests.kubernetes.load import load
from tests.kubernetes.plane.folders import CHART
from tests.kubernetes.release import Release

PORT = 7422


@pytest.fixture
def hub(volumes: Path) -> Iterator[Release]:
    made = Release(volumes, "hub")
    made.make_namespace()
    yield made
    made.remove()


@contextmanager
def cut() -> Iterator[None]:
    """No packet goes to a leaf port, as when a line is broken: neither end is told."""
    rule = ("FORWARD", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
    subprocess.run(["iptables", "-I", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-D", *rule], check=True)


async def mirrored(edge: Release) -> int:
    """The last sequence that the edge has, from every pod alike; 0 while it has none."""
    async with await Client.connect(edge.url) as client:
        answer = json.loads((await client.request("$JS.API.STREAM.INFO.ORDERS", b"")).data)
        return int(answer.get("state", {}).get("last_seq", 0))


async def catch_up(edge: Release, last: int, within: float) -> float:
    return await until(lambda: asyncio.run(mirrored(edge)) >= last, within, f"the edge has {last} messages")


async def test_an_edge_mirrors(release: Release, hub: Release, say: Say, tmp_path: Path) -> None:
    edge, name = release, f"{hub.full}.{hub.namespace}.svc"
    authority = Authority(tmp_path)
    certificate, key = authority.issue("hub", (name,))
    make_secret("leafs", {"tls.crt": certificate, "tls.key": key}, hub.namespace, "kubernetes.io/tls")
    make_secret("hub-ca", {"ca.crt": authority.file}, edge.namespace)
    make_secret("hub-user", {"hub.creds": authority.file}, edge.namespace)  # is mounted, and not used below
    await asyncio.to_thread(
        hub.install, "config.jetstream.merge.domain=hub", "config.leafnodes.enabled=true",
        "config.leafnodes.tls.enabled=true", "config.leafnodes.tls.secretName=leafs",
        "config.leafnodes.merge.authorization.user=edge", "config.leafnodes.merge.authorization.password=s3cret",
    )  # fmt: skip
    values = yaml.safe_load((CHART / "values-edge.yaml").read_text())
    (remote,) = values["config"]["merge"]["leafnodes"]["remotes"]
    remote["urls"] = [f"tls://edge:s3cret@{name}:{PORT}"]
    del remote["credentials"]  # those of an operator's JWT; this hub has a password
    file = tmp_path / "edge.yaml"
    file.write_text(yaml.safe_dump(values))
    async with load(hub.url, "ORDERS") as ledger:
        await asyncio.to_thread(edge.install, file=file)
        await catch_up(edge, len(ledger.acked), 120)
        with cut():
            before = len(ledger.acked)
            await asyncio.sleep(20)
            behind = len(ledger.acked) - await mirrored(edge)
            assert behind > (len(ledger.acked) - before) / 2, "the link was not cut"
            async with await Client.connect(edge.url) as client:  # as at the hub, and the hub is not asked
                found = await client.request("$JS.API.DIRECT.GET.ORDERS", b'{"seq":1}')
                assert found.data in ledger.acked
        took = await catch_up(edge, max(ledger.acked.values()), 120)
    last = max(ledger.acked.values())
    await catch_up(edge, last, 60)
    say(f"cut for 20 s: {behind} messages behind, current {took:.0f} s after; {len(ledger.acked)} acked, all there")
