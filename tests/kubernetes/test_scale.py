"""From three nodes to five, back to three by the hook that decommissions, and to five again, under load."""

from __future__ import annotations

import asyncio
import time

from testkit.client import Client
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import items
from tests.kubernetes.load import LIMIT, load
from tests.kubernetes.release import Release, account

STREAMS = 10
"""Besides the one under load: some of their replicas come to each node."""


async def holders(release: Release) -> dict[str, set[str]]:
    """Stream: pods that have a replica, in the order that a client sees."""
    async with await Client.connect(release.url) as client:
        found = {}
        for stream in (await client.api("STREAM.NAMES"))["streams"]:
            cluster = (await client.api(f"STREAM.INFO.{stream}"))["cluster"]
            found[stream] = {cluster["leader"], *(peer["name"] for peer in cluster.get("replicas", []))}
        return found


async def spread(release: Release, number: int) -> None:
    """Streams with a message each, which five nodes share."""
    async with await Client.connect(release.url) as client:
        for n in range(STREAMS):
            name = f"S{number}-{n}"
            config = {"name": name, "subjects": [name.lower()], "num_replicas": 3, "allow_direct": True}
            await client.api(f"STREAM.CREATE.{name}", config)
            reply = (await client.request(name.lower(), b"%d" % n)).json()
            assert reply["seq"] == 1, reply


async def check_spread(release: Release, number: int) -> None:
    async with await Client.connect(release.url) as client:
        for n in range(STREAMS):
            found = await client.request(f"$JS.API.DIRECT.GET.S{number}-{n}", b'{"seq":1}')
            assert found.data == b"%d" % n, found.header


async def test_three_five_three_five(release: Release, say: Say) -> None:
    await asyncio.to_thread(release.install)
    times = []
    stay = {f"{release.full}-{n}" for n in range(3)}
    async with load(release.url, "SCALE") as ledger:
        for turn, nodes in enumerate((5, 3, 5)):
            start = time.monotonic()
            await asyncio.to_thread(release.upgrade, f"config.cluster.replicas={nodes}", within=900)
            await release.until_ready(nodes)
            times.append(f"to {nodes} in {time.monotonic() - start:.0f} s")
            if nodes == 5:
                await spread(release, turn)
                used = set().union(*(await holders(release)).values())
                assert used - stay, "no replica came to the new nodes: taking them away would test nothing"
            else:
                assert set().union(*(await holders(release)).values()) <= stay
                assert not items("jobs", release.namespace), "the hook's job stays"
                await check_spread(release, turn - 1)
    claims = [claim["metadata"]["name"] for claim in items("persistentvolumeclaims", release.namespace)]
    assert len(claims) == 5, "the claims of pods that went stay"
    for number in (3, 4):
        assert "jetstream-removed-" in release.say(f"{release.full}-{number}", "ls", "/data")
    await check_spread(release, 0)
    await check_spread(release, 2)
    say(f"{', '.join(times)}; {await account(release, 'SCALE', ledger)}")
    assert ledger.longest_gap() <= LIMIT
