"""Leaf links between real processes: ours and nats-server at either end, and a cluster as the hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg

from testkit.harness import ProcessCluster, eventually, find_server, free_ports

from .leaf_pair import OURS, THEIRS, LeafPair, linked, server

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.thorough]

PAIRS = [(OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)]
PAUSE = 0.15
"""Seconds that interest needs to get across a link on this machine, generously."""


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-hub-{pair[1]}-leaf")
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeafPair]:
    if find_server(THEIRS) is None and THEIRS in request.param:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    async with LeafPair(*request.param, tmp_path) as found:
        yield found


async def listen(client: NATS, subject: str, queue: str = "") -> list[Msg]:
    got: list[Msg] = []

    async def take(msg: Msg) -> None:
        got.append(msg)

    await client.subscribe(subject, queue=queue, cb=take)
    await client.flush()
    return got


async def arrives(got: list[Any], count: int, within: float = 5.0) -> None:
    await eventually(lambda: len(got) >= count, within, f"{count} messages have not come")


async def test_messages_both_ways(pair: LeafPair) -> None:
    for source, target in ((pair.at_hub, pair.at_leaf), (pair.at_leaf, pair.at_hub)):
        got = await listen(target, "news.>")
        also = await listen(target, "news.*")
        own = await listen(source, "news.own.only.here")
        await asyncio.sleep(PAUSE)
        big = bytes(range(256)) * 4000
        await source.publish("news.plain", b"one")
        await source.publish("news.headers", b"two", headers={"A": "b", "C": "d"})
        await source.publish("news.big", big, headers={"A": "b"})
        await source.publish("news.empty", b"")
        await source.publish("other", b"nobody wants this")
        await source.flush()
        await arrives(got, 4)
        await arrives(also, 4)
        await asyncio.sleep(PAUSE)
        for seen in (got, also):
            assert [(m.subject, m.data) for m in seen] == [
                ("news.plain", b"one"),
                ("news.headers", b"two"),
                ("news.big", big),
                ("news.empty", b""),
            ]
            assert seen[1].headers == {"A": "b", "C": "d"}
        assert own == []
        for subscription in list(target._subs.values()):
            if subscription.subject.startswith("news"):
                await subscription.unsubscribe()
        await target.flush()
        await asyncio.sleep(PAUSE)


async def test_requests_and_no_responders(pair: LeafPair) -> None:
    for asking, serving, subject in ((pair.at_hub, pair.at_leaf, "svc.a"), (pair.at_leaf, pair.at_hub, "svc.b")):

        async def answer(msg: Msg) -> None:
            await msg.respond(b"to " + msg.data)

        subscription = await serving.subscribe(subject, cb=answer)
        await serving.flush()
        await asyncio.sleep(PAUSE)
        for n in range(20):
            assert (await asking.request(subject, b"%d" % n, timeout=2)).data == b"to %d" % n
        await subscription.unsubscribe()
        await serving.flush()
        await asyncio.sleep(PAUSE)
        with pytest.raises(nats.errors.NoRespondersError):
            await asking.request(subject, b"", timeout=2)


async def test_queue_groups_take_each_message_once(pair: LeafPair) -> None:
    far = await listen(pair.at_leaf, "work.*", "q")
    plain = await listen(pair.at_leaf, "work.>")
    await asyncio.sleep(PAUSE)
    for n in range(50):
        await pair.at_hub.publish(f"work.{n}", b"")
    await arrives(far, 50)
    near = await listen(pair.at_hub, "work.*", "q")
    for n in range(50):
        await pair.at_hub.publish(f"work.{n}", b"")
    await arrives(near, 50)
    await arrives(plain, 100)
    await asyncio.sleep(PAUSE)
    # A member on this side of the link is preferred, and nothing is taken twice.
    assert (len(far), len(near), len(plain)) == (50, 50, 100)


async def test_a_link_that_is_cut_comes_back(pair: LeafPair) -> None:
    got = await listen(pair.at_leaf, "again.>")
    await asyncio.sleep(PAUSE)
    await pair.at_hub.publish("again.1", b"")
    await arrives(got, 1)
    await pair.relay.cut()
    await linked(pair.hub, 0)
    await linked(pair.leaf, 0)
    with pytest.raises(nats.errors.NoRespondersError):
        await pair.at_hub.request("again.2", b"", timeout=2)
    more = await listen(pair.at_leaf, "while.away")
    await pair.relay.open()
    await linked(pair.hub)
    await linked(pair.leaf)
    await asyncio.sleep(PAUSE)
    await pair.at_hub.publish("again.3", b"")
    await pair.at_hub.publish("while.away", b"")
    await arrives(got, 2)
    await arrives(more, 1)
    assert [m.subject for m in got] == ["again.1", "again.3"]


async def test_streams_of_the_other_domain(pair: LeafPair) -> None:
    for client, domain, own in ((pair.at_leaf, "hub", "edge"), (pair.at_hub, "edge", "hub")):
        js = client.jetstream(domain=domain)
        await js.add_stream(name="S", subjects=[f"to.{domain}.>"])
        await asyncio.sleep(PAUSE)
        for n in range(200):
            await js.publish(f"to.{domain}.{n}", b"%d" % n)
        consumer = await js.pull_subscribe(f"to.{domain}.>", "C")
        seen: list[bytes] = []
        while len(seen) < 200:
            for msg in await consumer.fetch(70, timeout=3):
                seen.append(msg.data)
                await msg.ack_sync()
                assert msg.subject == f"to.{domain}.{msg.data.decode()}"
        assert seen == [b"%d" % n for n in range(200)]
        info = await js.consumer_info("S", "C")
        assert (info.num_ack_pending, info.num_pending) == (0, 0)
        pushed = await js.subscribe(f"to.{domain}.>", ordered_consumer=True)
        for n in range(200):
            msg = await pushed.next_msg(timeout=3)
            assert (msg.subject, msg.data) == (f"to.{domain}.{n}", b"%d" % n)
        # The API without a domain's name stays on its own side.
        with pytest.raises(nats.js.errors.NotFoundError):
            await client.jetstream().stream_info("S")
        with pytest.raises(nats.js.errors.NotFoundError):
            await client.jetstream(domain=own).stream_info("S")
        await js.delete_stream("S")


async def test_key_value_bucket_of_the_other_domain(pair: LeafPair) -> None:
    local = await pair.at_hub.jetstream().create_key_value(bucket="B")
    far = await pair.at_leaf.jetstream(domain="hub").key_value("B")
    await local.put("k", b"1")
    assert (await far.get("k")).value == b"1"


async def test_what_monitoring_says(pair: LeafPair) -> None:
    await listen(pair.at_leaf, "wanted.here")
    await asyncio.sleep(PAUSE)
    hub = (await pair.hub.monitor("leafz?subs=1"))["leafs"][0]
    leaf = (await pair.leaf.monitor("leafz"))["leafs"][0]
    assert (hub["name"], hub["account"], hub["is_spoke"]) == ("leaf", "$G", False)
    assert (leaf["name"], leaf["account"], leaf["is_spoke"]) == ("hub", "$G", True)
    assert "wanted.here" in hub["subscriptions_list"]
    assert (await pair.hub.monitor("varz"))["leafnodes"] == 1


# ---- a cluster as the hub


class Hub(ProcessCluster):
    """Three nodes of ours with JetStream domain `hub`; each has a port for leaves."""

    def __init__(self) -> None:
        super().__init__(config="jetstream { domain: hub }\n", monitor=True)
        self.leaf_ports = free_ports(3)
        for node, port in zip(self.nodes, self.leaf_ports, strict=True):
            with (node.root / "server.conf").open("a") as file:
                file.write(f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n')


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub() as cluster:
        yield cluster


@pytest.mark.parametrize("kind", [OURS, THEIRS])
async def test_a_cluster_is_one_hub(hub: Hub, kind: str, tmp_path: Path) -> None:
    remote = f'leafnodes {{ remotes [ {{ url: "nats://127.0.0.1:{hub.leaf_ports[0]}" }} ] }}\n'
    leaf = server(kind, tmp_path, "leaf", remote, domain="edge")
    await leaf.start()
    clients = [await nats.connect(node.url) for node in hub.nodes]
    edge = await nats.connect(leaf.url)
    try:
        await linked(leaf)
        got = [await listen(client, "up.>") for client in clients]
        down = await listen(edge, "down.>")
        await asyncio.sleep(2 * PAUSE)
        for n in range(30):
            await edge.publish(f"up.{n}", b"x" * 1000, headers={"N": str(n)})
            await clients[n % 3].publish(f"down.{n}", b"")
        await arrives(down, 30)
        for seen in got:
            await arrives(seen, 30)
        await asyncio.sleep(PAUSE)
        assert sorted(m.subject for m in down) == sorted(f"down.{n}" for n in range(30))
        assert [[m.subject for m in seen] for seen in got] == [[f"up.{n}" for n in range(30)]] * 3
        # A queue group that spans the hub's nodes: one member takes each.
        members = [await listen(client, "job", "q") for client in clients]
        await asyncio.sleep(2 * PAUSE)
        for _ in range(60):
            await edge.publish("job", b"")
        await edge.flush()
        await eventually(lambda: sum(map(len, members)) >= 60, 5, "60 jobs have not come")
        await asyncio.sleep(PAUSE)
        assert sum(map(len, members)) == 60

        async def answer(msg: Msg) -> None:
            await msg.respond(b"edge")

        await edge.subscribe("edge.svc", queue="q", cb=answer)
        await edge.flush()
        await asyncio.sleep(2 * PAUSE)
        for client in clients:
            assert (await client.request("edge.svc", b"", timeout=2)).data == b"edge"
        js = edge.jetstream(domain="hub")
        await js.add_stream(name="R3", subjects=["r3.>"], num_replicas=3)
        await asyncio.sleep(2 * PAUSE)
        for n in range(50):
            await js.publish(f"r3.{n}", b"")
        consumer = await js.pull_subscribe("r3.>", "C")
        taken: list[str] = []
        while len(taken) < 50:
            for msg in await consumer.fetch(20, timeout=3):
                taken.append(msg.subject)
                await msg.ack_sync()
        assert taken == [f"r3.{n}" for n in range(50)]
        pushed = await js.subscribe("r3.>", ordered_consumer=True)
        assert [(await pushed.next_msg(timeout=3)).subject for _ in range(50)] == taken
        # The leaf was sent the URLs of the other nodes: it goes to one of them when its own is away.
        hub.nodes[0].kill9()

        async def moved() -> bool:
            links = [(await node.monitor("leafz")).get("leafs") or [] for node in hub.nodes[1:]]
            return sum(map(len, links)) == 1

        await eventually(moved, 20, "the leaf has not gone to another node", leaf)
    finally:
        for client in [*clients, edge]:
            await client.close()
        leaf.kill9()


async def test_two_clusters_meet_without_repeats(hub: Hub) -> None:
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in hub.leaf_ports)
    config = f"jetstream {{ domain: edge }}\nleafnodes {{ remotes [ {{ urls: [{urls}] }} ] }}\n"
    async with ProcessCluster(config=config, name="EDGE", monitor=True) as edge:
        for node in edge.nodes:
            await linked(node)
        above = [await nats.connect(node.url) for node in hub.nodes]
        below = [await nats.connect(node.url) for node in edge.nodes]
        try:
            got = [await listen(client, "both.>") for client in [*above, *below]]
            queue = [await listen(client, "both.*", "q") for client in above]
            await asyncio.sleep(3 * PAUSE)
            for client in [*above, *below]:
                for n in range(10):
                    await client.publish(f"both.{n}", b"")
                await client.flush()
            for seen in got:
                await arrives(seen, 60)
            await asyncio.sleep(3 * PAUSE)
            assert [len(seen) for seen in got] == [60] * 6
            assert sum(map(len, queue)) == 60
        finally:
            for client in [*above, *below]:
                await client.close()


# ---- who may, and what must not be


@pytest.mark.parametrize("kind", [OURS, THEIRS])
async def test_a_circle_of_links_is_refused(kind: str, tmp_path: Path) -> None:
    ports = free_ports(3)
    nodes = [
        server(
            OURS if at else kind,
            tmp_path,
            f"c{at}",
            f'leafnodes {{ listen: "127.0.0.1:{ports[at]}", '
            f'remotes [ {{ url: "nats://127.0.0.1:{ports[(at + 1) % 3]}" }} ] }}\n',
        )
        for at in range(3)
    ]
    try:
        for node in nodes:
            await node.start()
        await eventually(lambda: any("Loop detected" in node.log() for node in nodes), 15, "the loop is not noticed")
        await asyncio.sleep(1)
        # Each server that noticed has ended a link, which stays down for 30 s: at least one of three, with two ends.
        links = [len((await node.monitor("leafz")).get("leafs") or []) for node in nodes]
        assert sum(links) <= 4, links
        client = await nats.connect(nodes[0].url)
        got = await listen(client, "round")
        await client.publish("round", b"")
        await client.flush()
        await asyncio.sleep(2 * PAUSE)
        await client.close()
        assert len(got) == 1
    finally:
        for node in nodes:
            node.kill9()


@pytest.mark.parametrize(("hub_kind", "leaf_kind"), PAIRS)
async def test_accounts_and_passwords(hub_kind: str, leaf_kind: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    accounts = "accounts { A { users [ {user: a, password: a} ] }, B { users [ {user: b, password: b} ] } }\n"
    authorization = "authorization { users [ {user: link, password: right, account: A} ] }"
    above = server(
        hub_kind, tmp_path, "hub", f'{accounts}leafnodes {{ listen: "127.0.0.1:{port}", {authorization} }}\n'
    )
    good, bad = (
        server(
            leaf_kind,
            tmp_path,
            name,
            f'{accounts}leafnodes {{ remotes [ {{ url: "nats://link:{password}@127.0.0.1:{port}", account: B, '
            "deny_exports: [secret.up], deny_imports: [secret.down] } ] }\n",
        )
        for name, password in (("good", "right"), ("bad", "wrong"))
    )
    clients: list[NATS] = []
    try:
        for node in (above, good, bad):
            await node.start()
        await linked(good)
        in_a = await nats.connect(above.url, user="a", password="a")
        in_b = await nats.connect(above.url, user="b", password="b")
        below_b = await nats.connect(good.url, user="b", password="b")
        below_a = await nats.connect(good.url, user="a", password="a")
        clients = [in_a, in_b, below_a, below_b]
        seen = [await listen(client, ">") for client in clients]
        await asyncio.sleep(2 * PAUSE)
        for subject in ("open.up", "secret.up"):
            await below_b.publish(subject, b"")
        for subject in ("open.down", "secret.down"):
            await in_a.publish(subject, b"")
        await asyncio.sleep(4 * PAUSE)
        names = [{m.subject for m in got if not m.subject.startswith("$")} for got in seen]
        assert names == [
            {"open.up", "open.down", "secret.down"},
            set(),
            set(),
            {"open.up", "secret.up", "open.down"},
        ]
        await linked(bad, 0)
        assert len((await above.monitor("leafz"))["leafs"]) == 1
        assert "Authorization Violation" in bad.log()
    finally:
        for client in clients:
            await client.close()
        for node in (above, good, bad):
            node.kill9()


async def test_a_mirror_follows_a_stream_of_the_other_domain(pair: LeafPair) -> None:
    above = pair.at_hub.jetstream()
    await above.add_stream(name="ORIGIN", subjects=["orders.>"])
    for n in range(300):
        await above.publish(f"orders.{n}", b"%d" % n)
    mirror = {"name": "ORIGIN", "external": {"api": "$JS.hub.API", "deliver": "from.hub"}}
    body = json.dumps({"name": "COPY", "storage": "file", "mirror": mirror}).encode()
    made = json.loads((await pair.at_leaf.request("$JS.API.STREAM.CREATE.COPY", body, timeout=5)).data)
    assert "error" not in made, made
    below = pair.at_leaf.jetstream()

    async def has(count: int) -> bool:
        return (await below.stream_info("COPY")).state.messages == count

    await eventually(lambda: has(300), 15, "the mirror has not 300 messages")
    await pair.relay.cut()
    for n in range(300, 400):
        await above.publish(f"orders.{n}", b"%d" % n)
    assert (await below.get_msg("COPY", 300)).data == b"299"
    await pair.relay.open()
    await eventually(lambda: has(400), 60, "the mirror has not gone on")
    for n in (1, 300, 301, 400):
        msg = await below.get_msg("COPY", n)
        assert (msg.subject, msg.data) == (f"orders.{n - 1}", b"%d" % (n - 1))
