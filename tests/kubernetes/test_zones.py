"""Zones out of the nodes' labels, read by the init container with the role that the chart makes."""

from __future__ import annotations

import asyncio
import json
import urllib.request

from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import items, kubectl
from tests.kubernetes.release import Release

LABEL = "topology.kubernetes.io/zone"


async def test_servers_have_the_zones_of_their_nodes(release: Release, say: Say) -> None:
    nodes = [node["metadata"]["name"] for node in items("nodes")]
    for node in nodes:
        kubectl("label", "node", node, f"{LABEL}=zone-of-{node}", "--overwrite")
    try:
        await asyncio.to_thread(release.install, "zones.readNode=true")
        for pod in release.pods():
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8222/varz", timeout=10) as answer:
                tags = json.load(answer)["tags"]
            assert tags == [f"zone:zone-of-{pod['spec']['nodeName']}"], pod["metadata"]["name"]
        say(f"{len(nodes)} nodes, three pods: each has the zone of its own")
    finally:
        for node in nodes:
            kubectl("label", "node", node, f"{LABEL}-")
