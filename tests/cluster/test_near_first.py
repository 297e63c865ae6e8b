"""Direct Gets of clients without a replica on their node: the zone's answers, and the rest when that is gone."""

from __future__ import annotations

from collections import Counter

import pytest

from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import publish_all, wait_direct

pytestmark = pytest.mark.cluster

TAGS = ("zone:eu", "zone:eu,data", "zone:us,data", "zone:us,data", "zone:us")
"""The tags of the servers n1 to n5, in this order."""


async def answered_by(client: Client, times: int = 40) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(times):
        answer = await client.request("$JS.API.DIRECT.GET.S", b'{"last_by_subj":"s","read_info":true}', 5.0)
        assert answer.data == b"m2", answer.header
        found[answer.get("Nats-Answered-By") or ""] += 1
    return found


@pytest.mark.ours("nats-server asks any replica")
@pytest.mark.parametrize("server", ["jetcluster"])
async def test_the_zone_answers_first(server: str) -> None:
    cluster = ProcessCluster(5, server)
    for node, tags in zip(cluster.nodes, TAGS, strict=True):
        node.args += ["--tags", tags]
    async with cluster, await cluster[0].connect() as client, await cluster[4].connect() as other:
        await create_stream(client, "S", ["s"], 3, placement={"tags": ["data"]})
        await publish_all(client, "s", [b"m0", b"m1", b"m2"])
        await cluster.wait_current("S")
        for node in cluster.nodes[1:4]:
            async with await node.connect() as local:
                await wait_direct(local, "S", 3)

        async def all_joined() -> bool:
            return set(await answered_by(other)) == {"n3", "n4"}

        await eventually(all_joined, 20, "both of the other zone answer there")
        assert await answered_by(client) == {"n2": 40}
        cluster[1].kill9()

        async def by_the_rest() -> bool:
            try:
                return set(await answered_by(client)) == {"n3", "n4"}
            except TimeoutError:  # on its way to the one that died
                return False

        await eventually(by_the_rest, 20, "the other zone answers for the one that died")
        cluster[1].spawn()

        async def near_again() -> bool:
            return await answered_by(client) == {"n2": 40}

        await eventually(near_again, 30, "the near one answers again")
