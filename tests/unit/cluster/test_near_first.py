"""Direct Gets are answered by the nearest member: this node, then its zone, then the rest."""

from __future__ import annotations

from collections import Counter

from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.replica.test_demands import fields
from tests.unit.replica.test_mirror_host import ApiCluster, copied, fill

GET = b"$JS.API.DIRECT.GET.S"
ZONES = {"A": "zone:eu", "B": "zone:eu", "C": "zone:us", "D": "zone:us", "E": "zone:us"}


def with_tag(*marked: str) -> dict[str, str]:
    """ZONES and, in turn, nodes and a tag that they have, too."""
    pairs = list(zip(marked[::2], marked[1::2], strict=True))
    return {name: " ".join([zone, *(tag for nodes, tag in pairs if name in nodes)]) for name, zone in ZONES.items()}


async def answered_by(node: Node, times: int = 30, get: bytes = GET, subject: bytes = b"s") -> Counter[str]:
    """Servers that answer the reads of a client of `node`."""
    found: Counter[str] = Counter()
    for _ in range(times):
        _, head, _ = await node.request(get, b'{"last_by_subj":"%b","read_info":true}' % subject, 10.0)
        found[fields(head)["Nats-Answered-By"]] += 1
    return found


async def placed(cluster: Cluster, *on: str, **config: object) -> None:
    """S, with a replica on each of these nodes."""
    await cluster.create("S", len(on), placement={"tags": ["data"]}, **config)
    await cluster.all_read("S")
    await fill(cluster["A"], 3, b"s")
    await cluster.equal("S")
    assert {node.name for node in cluster.holders("S")} == set(on)


@virtual_time
async def test_a_read_is_answered_in_its_own_zone() -> None:
    async with Cluster("ABCDE", tags=with_tag("BCD", "data")) as cluster:
        await placed(cluster, "B", "C", "D")
        assert await answered_by(cluster["B"]) == {"B": 30}, "this node comes first"
        assert await answered_by(cluster["A"]) == {"B": 30}, "then its zone"
        elsewhere = await answered_by(cluster["E"], 60)
        assert set(elsewhere) == {"C", "D"} and min(elsewhere.values()) > 10, "spread within the zone"


@virtual_time
async def test_the_rest_answers_when_the_near_one_is_gone_or_does_not_keep_up() -> None:
    async with Cluster("ABCDE", tags=with_tag("BCD", "data")) as cluster:
        await placed(cluster, "B", "C", "D")
        near = cluster["B"].replica("S")
        near.reads.leave()
        await cluster.until(lambda: not cluster["B"].reads("S"))
        assert set(await answered_by(cluster["A"], 1)) <= {"C", "D"}, "handed on by one that has just left"
        await cluster.until(lambda: cluster["B"].reads("S"), what="the near one answers again")
        await cluster.led("S")
        assert await answered_by(cluster["A"], 10) == {"B": 10}
        cluster.crash("B")
        await cluster.led("S")
        far = await answered_by(cluster["A"], 60)
        assert set(far) == {"C", "D"} and min(far.values()) > 10
        cluster.restart("B")
        await cluster.until(lambda: cluster["B"].reads("S"), what="the near one answers again")
        await cluster.until(lambda: cluster["A"].mesh.settled, what="all links")
        await cluster.led("S")
        assert await answered_by(cluster["A"], 10) == {"B": 10}


@virtual_time
async def test_a_mirror_of_the_own_zone_answers_for_its_upstream() -> None:
    async with ApiCluster("ABCDE", tags=with_tag("CD", "up", "B", "copy")) as cluster:
        await cluster.create("UP", 2, placement={"tags": ["up"]})
        await fill(cluster["A"], 5)
        await cluster.create(
            "M", 1, subjects=[], mirror={"name": "UP"}, mirror_direct=True, placement={"tags": ["copy"]}
        )
        await copied(cluster, 5)
        get = b"$JS.API.DIRECT.GET.UP"
        upstream = cluster["B"].replica("M").reads.upstream
        assert upstream is not None
        await cluster.until(lambda: upstream.joined, what="the mirror answers for its upstream")
        await cluster.led("M")
        assert await answered_by(cluster["A"], 20, get, b"up") == {"B": 20}
        assert "B" not in await answered_by(cluster["E"], 20, get, b"up")
