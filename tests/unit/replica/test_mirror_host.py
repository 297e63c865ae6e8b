"""Mirrors and sources on three nodes in one process: what the links' host and a mirror's reads do when roles change."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.api import dispatch, endpoints
from jetcluster.api.dispatch import JetStreamApi
from jetcluster.api.request import ApiContext
from jetcluster.mirror.link import SILENCE_SECONDS
from jetcluster.replica.reads import confirm, membership
from jetcluster.replica.reads.waits import MAX_SECONDS, MAX_WAIT_SECONDS
from jetcluster.stream.apply import sourced
from jetcluster.stream.log import bodies, commands
from testkit.sim.nodes import SMALL_LOG, Cluster, Node
from testkit.sim.shared import virtual_time
from testkit.twins.time import SeededRng


def serve_api(node: Node) -> JetStreamApi:
    """The node answers `$JS.API.>`, as links ask it to."""
    if not dispatch._loaded:
        dispatch._loaded.append(endpoints.find)
    rng = SeededRng(next(node.cluster.seeds))
    context = ApiContext(node.js, node.cluster.loop, rng, node.log, node.name, node.services.runtime.budget)
    api = JetStreamApi(context, node.bus)
    api.start()
    return api


def with_api(cluster: Cluster) -> list[JetStreamApi]:
    return [serve_api(node) for node in cluster]


async def stop(apis: list[JetStreamApi]) -> None:
    for api in apis:
        await api.stop()


class ApiCluster(Cluster):
    """A cluster whose nodes answer the API."""

    async def __aenter__(self) -> ApiCluster:
        await super().__aenter__()
        self.apis = with_api(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(self.apis)
        await super().__aexit__()


async def fill(node: Node, count: int, subject: bytes = b"up") -> None:
    await node.requests(subject, [b"%d" % n for n in range(count)])


async def mirrored(cluster: Cluster) -> None:
    """UP, of one replica, with five messages, and its mirror M, which answers for it."""
    await cluster.create("UP", 1)
    await fill(cluster["A"], 5)
    await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)


def held(node: Node, stream: str) -> list[tuple[int, int, bytes]]:
    return [(m.seq, m.ts, m.payload) for m in node.replica(stream).store.queries.scan(b">", 1)]


async def copied(cluster: Cluster, last: int, stream: str = "M", seconds: float = 30.0) -> None:
    await cluster.until(
        lambda: any(node.has(stream) and node.replica(stream).store.last_seq >= last for node in cluster),
        seconds,
        f"{stream} at {last}",
    )
    await cluster.equal(stream)


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_mirror_is_equal_on_all_replicas(replicas: int) -> None:
    async with ApiCluster() as cluster:
        await cluster.create("UP")
        await fill(cluster["A"], 20)
        await cluster.create("M", replicas, ask="B", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await copied(cluster, 20)
        await fill(cluster["C"], 10)
        await copied(cluster, 30)
        for node in cluster:
            if node.has("M"):
                assert held(node, "M") == held(cluster["A"], "UP")


@virtual_time
@pytest.mark.parametrize("copy", ["mirror", "republish"])
async def test_a_read_right_behind_the_ack_finds_the_copy_on_the_same_node(copy: str) -> None:
    async with ApiCluster("A", clustered=False) as cluster:
        (node,) = cluster
        republish = {"republish": {"src": "up", "dest": "copied"}} if copy == "republish" else {}
        await cluster.create("UP", 1, **republish)
        if copy == "mirror":
            await cluster.create("M", 1, subjects=[], mirror={"name": "UP"}, allow_direct=True)
            subject = b"up"
        else:
            await cluster.create("M", 1, subjects=["copied"], allow_direct=True)
            subject = b"copied"
        await fill(node, 1)
        await copied(cluster, 1)
        await asyncio.sleep(1.0)
        for number in range(20):
            await node.publish(b"up", b"%d" % number)
            _, _, payload = await node.request(b"$JS.API.DIRECT.GET.M." + subject)
            assert payload == b"%d" % number


@virtual_time
async def test_the_new_leader_goes_on() -> None:
    async with ApiCluster(options=SMALL_LOG) as cluster:
        await cluster.create("UP")
        await cluster.create("M", subjects=[], mirror={"name": "UP"})
        await cluster.create("S", subjects=[], sources=[{"name": "UP"}])
        sent = 0
        for stream in ("M", "UP", "S", "M", "S"):
            await fill(cluster["A"], 25)
            sent += 25
            leader = await cluster.led(stream)
            before = leader.replica(stream)
            assert before.group.transfer()
            await cluster.until(lambda r=before: not r.leading, what="another leader")
            await cluster.led(stream)
            assert not before.mirrors.links.by_key
            await fill(cluster["B"], 15)
            sent += 15
        await copied(cluster, sent)
        await copied(cluster, sent, "S")
        upstream = held(cluster["A"], "UP")
        assert held(cluster["B"], "M") == upstream
        assert [payload for _, _, payload in held(cluster["C"], "S")] == [payload for _, _, payload in upstream]


@virtual_time
async def test_a_crash_of_the_mirrors_leader() -> None:
    async with Cluster() as cluster:
        apis = {node.name: serve_api(node) for node in cluster}
        await cluster.create("UP")
        await cluster.create("M", subjects=[], mirror={"name": "UP"})
        await fill(cluster["A"], 30)
        victim = (await cluster.led("M")).name
        cluster.crash(victim)
        await apis.pop(victim).stop()
        await cluster.led("M")
        leader = await cluster.led("UP")
        await fill(leader, 30)
        await copied(cluster, 60)
        apis[victim] = serve_api(cluster.restart(victim))
        await cluster.until(lambda: cluster[victim].has("M"))
        await cluster.equal("M")
        assert held(cluster[victim], "M") == held(leader, "UP")
        await stop(list(apis.values()))


@virtual_time
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_what_an_upstream_gives_away_is_neither_lost_nor_doubled(retention: str) -> None:
    """Leaders of both sides change and die: each message is here once, and none stays there."""
    async with Cluster() as cluster:
        apis = {node.name: serve_api(node) for node in cluster}
        await cluster.create("UP", retention=retention)
        await cluster.create("S", subjects=[], sources=[{"name": "UP"}])
        await cluster.until(lambda: cluster.leader("UP").replica("UP").machine.consumer_count == 1, what="a consumer")
        sent = 0
        for turn, stream in enumerate(("S", "UP", "S", "UP")):
            await fill(cluster["A"], 25)
            sent += 25
            leader = await cluster.led(stream)
            if turn < 2:
                assert leader.replica(stream).group.transfer()
                await asyncio.sleep(0.3)
                await cluster.led(stream)
            else:
                await cluster.all_read("UP")
                cluster.crash(leader.name)
                await apis.pop(leader.name).stop()
                await cluster.until(
                    lambda: any(n.has("UP") and n.replica("UP").leading for n in cluster), what="UP led"
                )
                await asyncio.sleep(1.0)
                apis[leader.name] = serve_api(cluster.restart(leader.name))
                await cluster.until(lambda: all(node.reads("UP") for node in cluster), what="it is back")
            await fill(await cluster.led("UP"), 15)
            sent += 15
        await copied(cluster, sent, "S", 60)
        for node in cluster:
            assert len(held(node, "S")) == sent
        rounds = [payload for _, _, payload in held(cluster["B"], "S")]
        assert rounds == ([b"%d" % n for n in range(25)] + [b"%d" % n for n in range(15)]) * 4
        await cluster.until(lambda: not cluster.leader("UP").replica("UP").store.messages, what="nothing is left there")
        await cluster.delete("S")
        await cluster.until(lambda: not cluster.leader("UP").replica("UP").machine.consumer_count, what="it goes too")
        await stop(list(apis.values()))


def answers(node: Node, mirror: str = "M") -> bool:
    upstream = node.replica(mirror).reads.upstream
    return upstream is not None and upstream.joined


async def tell_lag(cluster: Cluster, lag: int, mirror: str = "M") -> None:
    """Tells the mirror its lag, as a link does after it found its upstream again."""
    leader = await cluster.led(mirror)
    last = leader.replica(mirror).store.last_seq
    body = bodies.encode_sourced(sourced.MIRROR, b"", lag, last, 0)
    leader.replica(mirror).mirrors.links.end()
    await leader.replica(mirror).propose(commands.encode_sourced(cluster.loop.time_ns(), body), 2.0)


def without(cluster: Cluster, stream: str) -> list[Node]:
    """Nodes that have no replica of the stream."""
    return [node for node in cluster if not node.has(stream)]


@virtual_time
async def test_replicas_answer_for_the_upstream_while_the_mirror_is_close() -> None:
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        others = without(cluster, "UP")
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        await tell_lag(cluster, membership.MAX_LAG_ENTRIES - 1)
        await cluster.never(lambda: not all(answers(node) for node in others), 1.0, "one left")
        await tell_lag(cluster, membership.MAX_LAG_ENTRIES)
        await cluster.until(lambda: not any(answers(node) for node in others), what="all left")
        await tell_lag(cluster, 10)
        await cluster.never(lambda: any(answers(node) for node in others), 1.0, "one joined")
        await tell_lag(cluster, 9)
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer again")


async def led_with_the_upstream(cluster: Cluster) -> Node:
    """The node that has UP, of one replica; it leads M when this returns."""
    node = cluster.leader("UP")
    before = (await cluster.led("M")).replica("M")
    if before is not node.replica("M"):
        await cluster.until(lambda: before.group.transfer(node.me), what="a transfer")
        await cluster.until(lambda: node.replica("M").leading, what="the other leader")
    leader = node.replica("M")
    await cluster.until(lambda: all(link.live for link in leader.mirrors.links.by_key.values()), what="a live link")
    return node


@virtual_time
async def test_a_mirrors_leader_answers_with_what_came_before_the_request() -> None:
    """nats.js `kv - mirror cross domain`: put into the upstream, and get from the mirror once it is acknowledged."""
    async with ApiCluster() as cluster:
        await cluster.create("UP", 1)
        await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        node = await led_with_the_upstream(cluster)
        (link,) = node.replica("M").mirrors.links.by_key.values()
        for number in range(1, 11):
            ack = await node.publish(b"up", b"%d" % number)
            while link.seq < ack["seq"]:
                await asyncio.sleep(0)
            assert node.replica("M").store.last_seq < ack["seq"]  # it came, and is on its way to a majority
            assert (await node.get(b"M", number))[2] == b"%d" % number


@virtual_time
async def test_what_came_is_not_waited_for_any_longer_than_that() -> None:
    """A mirror whose log stands still is as old as it is."""
    async with ApiCluster() as cluster:
        await cluster.create("UP", 1)
        await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        node = await led_with_the_upstream(cluster)
        (link,) = node.replica("M").mirrors.links.by_key.values()
        await node.publish(b"up", b"1")
        await copied(cluster, 1)
        for other in cluster:
            if other is not node:
                cluster.isolate(other.name)
        await node.publish(b"up", b"2")
        await cluster.until(lambda: link.seq == 2, what="it comes")
        asked = cluster.loop.time()
        assert (await node.get(b"M", 1))[2] == b"1"
        assert 0.2 < cluster.loop.time() - asked < 0.3
        cluster.heal()
        await copied(cluster, 2)


@virtual_time
async def test_an_upstream_that_is_gone_is_answered_for() -> None:
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        others = without(cluster, "UP")
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        await cluster.delete("UP")
        await asyncio.sleep(2 * SILENCE_SECONDS)
        assert all(answers(node) for node in cluster)
        _, headers, payload = await cluster["B"].get(b"UP", 3)
        assert payload == b"2" and b"Nats-Stream: M\r\n" in headers
        leader = await cluster.led("M")
        shown: dict[str, Any] = leader.replica("M").mirrors.links.info()["mirror"]
        assert shown["error"]["err_code"] == 10059 and shown["active"] > 5e9
        assert json.dumps(shown)


@virtual_time
async def test_promotion_ends_all_of_it() -> None:
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        others = without(cluster, "UP")
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        await cluster.update("M", subjects=["m"])
        await cluster.until(lambda: not any(answers(node) for node in cluster), what="all left")
        leader = await cluster.led("M")
        assert leader.replica("M").mirrors.links.info() == {}
        await fill(cluster["A"], 5)
        ack = await cluster["B"].publish(b"m")
        assert ack["seq"] == 6
        await cluster.equal("M")


@virtual_time
@pytest.mark.parametrize(
    "config",
    [
        {"mirror": {"name": "UP", "filter_subject": "up"}},
        {"mirror": {"name": "UP", "subject_transforms": [{"src": "up", "dest": "x"}]}},
        {"mirror": {"name": "UP", "opt_start_seq": 3}},
        {"mirror": {"name": "UP", "opt_start_time": "1970-01-01T00:00:00.000000001Z"}},
        {"mirror": {"name": "UP"}, "subject_transform": {"src": "up", "dest": "x"}},
        {"mirror": {"name": "UP"}, "mirror_direct": False},
    ],
)
async def test_who_never_answers_for_the_upstream(config: dict[str, Any]) -> None:
    async with ApiCluster() as cluster:
        await cluster.create("UP", 1)
        await fill(cluster["A"], 5)
        await cluster.create("M", **{"subjects": [], "mirror_direct": True, **config})
        await copied(cluster, 5)
        await cluster.never(lambda: any(answers(node) for node in cluster), 2.0, "one joined")


@virtual_time
async def test_on_a_node_the_streams_own_replica_goes_before_a_mirror() -> None:
    async with ApiCluster() as cluster:
        await cluster.create("UP")
        await cluster.all_read("UP")
        await fill(cluster["A"], 5)
        await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await copied(cluster, 5)
        await cluster.never(lambda: any(answers(node) for node in cluster), 2.0, "a mirror joined")
        node = cluster.followers("UP")[0]
        node.replica("UP").set_disputed("it may be wrong")
        await cluster.until(lambda: answers(node), what="the mirror stands in")
        assert [answers(other) for other in cluster if other is not node] == [False, False]
        node.replica("UP").set_disputed("")
        await cluster.until(lambda: node.reads("UP") and not answers(node), what="it is replaced")


@virtual_time
async def test_a_mirror_shows_its_clients_what_was_acknowledged_to_them() -> None:
    """Publish and Direct Get on one connection to a node that has only the mirror."""
    async with ApiCluster("ABCD") as cluster:
        await cluster.create("UP", 1)
        await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        others = [node for node in without(cluster, "UP") if node.has("M")]
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        client = others[0]
        for number in range(1, 61):
            ack = await client.publish(b"up", b"%d" % number)
            assert (await client.get(b"UP", ack["seq"]))[2] == b"%d" % number
        reads = client.replica("M").reads.upstream
        assert reads is not None and reads.answers.answered > 30, "the mirror was asked"


READS = (
    (b"$JS.API.DIRECT.GET.UP", b'{"seq":3}', b"2"),
    (b"$JS.API.DIRECT.GET.UP", b'{"seq":6}', None),
    (b"$JS.API.DIRECT.GET.UP", b'{"last_by_subj":"up"}', b"4"),
    (b"$JS.API.DIRECT.GET.UP", b'{"seq":2,"next_by_subj":"up"}', b"1"),
    (b"$JS.API.DIRECT.GET.UP.up", b"", b"4"),
    (b"$JS.API.DIRECT.GET.UP", b'{"seq":1,"batch":10}', b"0"),
    (b"$JS.API.DIRECT.GET.UP", b'{"multi_last":["up"]}', b"4"),
)
"""Requests, and the first message that answers them; None: 404."""


@virtual_time
async def test_an_upstream_whose_only_node_is_dead_does_not_take_its_mirror_with_it() -> None:
    """Also for the clients of a node without a replica of the mirror."""
    async with ApiCluster("ABCDE") as cluster:
        await cluster.create("UP", 1)
        await fill(cluster["A"], 5)
        home = await cluster.led("UP")
        await cluster.create("M", subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await copied(cluster, 5)
        others = [node for node in without(cluster, "UP") if node.has("M")]
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        clients = without(cluster, "UP")
        assert len(clients) > len(others), "a client is on a node that has neither"
        cluster.crash(home.name)
        await others[0].request(b"$JS.API.DIRECT.GET.UP.up")  # finds that nobody leads it
        for client in clients:
            for subject, body, wanted in READS:
                start = cluster.loop.time()
                _, headers, payload = await client.request(subject, body, 10.0)
                assert payload == wanted if wanted is not None else headers.startswith(b"NATS/1.0 404"), (body, headers)
                assert cluster.loop.time() - start < 3 * confirm.RETRY_SECONDS, "at once"
        cluster.restart(home.name)
        await cluster.led("UP")
        await asyncio.sleep(3.0)
        for number in range(20):
            ack = await others[0].publish(b"up", b"new %d" % number)
            assert (await others[0].get(b"UP", ack["seq"]))[2] == b"new %d" % number
            assert (await others[0].request(b"$JS.API.DIRECT.GET.UP.up"))[2] == b"new %d" % number


@virtual_time
@pytest.mark.parametrize("far", [False, True])
async def test_who_was_told_of_what_the_mirror_lacks_waits_and_others_do_not(far: bool) -> None:
    """`far`: the reader is a client of a node without the mirror, which asks that node."""
    async with Cluster("ABCDE") as cluster:
        apis = {node.name: serve_api(node) for node in cluster}
        await cluster.create("UP", 1)
        await fill(cluster["A"], 5)
        home = await cluster.led("UP")
        await cluster.create("M", 3, subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await copied(cluster, 5)
        others = without(cluster, "UP")
        await cluster.until(lambda: all(answers(node) for node in others if node.has("M")), what="all answer")
        told = next(node for node in others if node.has("M") is not far)
        for node in cluster:
            if node.has("M"):
                node.replica("M").mirrors.links.end()  # nothing comes over the link from here on
        assert (await told.publish(b"up", b"acked"))["seq"] == 6
        await apis.pop(home.name).stop()
        cluster.crash(home.name)
        for node in others:
            start = cluster.loop.time()
            _, headers, payload = await node.request(b"$JS.API.DIRECT.GET.UP.up", b"", 10.0)
            taken = cluster.loop.time() - start
            if node is told:
                assert headers.startswith(b"NATS/1.0 503"), headers
                assert MAX_SECONDS <= taken < MAX_SECONDS + 0.1
            else:
                assert payload == b"4" and taken < 5 * confirm.RETRY_SECONDS
        await stop(list(apis.values()))


@virtual_time
@pytest.mark.parametrize("comes", [True, False])
async def test_a_mirror_that_nobody_stands_in_for_waits_for_what_its_upstream_has(comes: bool) -> None:
    """The link stands still for longer than a read waits where another member answers."""
    async with ApiCluster() as cluster:
        await cluster.create("UP", 1, allow_direct=False)
        await fill(cluster["A"], 5)
        await cluster.create("M", 1, subjects=[], mirror={"name": "UP"}, mirror_direct=True)
        await copied(cluster, 5)
        reader = cluster.leader("M")
        await cluster.until(lambda: answers(reader), what="it answers")
        links = reader.replica("M").mirrors
        links.links.end()
        assert (await cluster["A"].publish(b"up", b"late"))["seq"] == 6
        start = cluster.loop.time()
        asking = [
            asyncio.create_task(reader.request(b"$JS.API.DIRECT.GET.UP.up", b"", 10.0)),
            asyncio.create_task(reader.request(b"$JS.API.DIRECT.GET.UP", b'{"last_by_subj":"up"}', 10.0)),
        ]
        await asyncio.sleep(3 * MAX_WAIT_SECONDS + 0.1)
        assert not any(one.done() for one in asking) and answers(reader)
        if comes:
            links.begin()
        for one in asking:
            _, headers, payload = await one
            if comes:
                assert payload == b"late", headers
            else:
                assert headers.startswith(b"NATS/1.0 503"), headers
        taken = cluster.loop.time() - start
        assert taken < MAX_SECONDS - 0.3 if comes else MAX_SECONDS - 0.01 <= taken < MAX_SECONDS + 0.3


@virtual_time
async def test_a_leader_that_is_silent_holds_up_only_those_who_were_told_of_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upstream's node is cut off, and its links have not noticed."""
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        home, reader = cluster.leader("UP"), without(cluster, "UP")[0]
        await cluster.until(lambda: answers(reader), what="it answers")
        monkeypatch.setattr(home.replica("UP"), "may_read", lambda: asyncio.sleep(60.0))
        start = cluster.loop.time()
        assert (await reader.request(b"$JS.API.DIRECT.GET.UP.up", b"", 10.0))[2] == b"4"
        assert confirm.PATIENCE_SECONDS <= cluster.loop.time() - start < 2 * confirm.PATIENCE_SECONDS


@virtual_time
async def test_a_mirror_that_forgot_who_leads_its_upstream_asks_for_it() -> None:
    """A request that met the leader at a bad moment had this node forget it; the leader says nothing by itself."""
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        client = without(cluster, "UP")[0]
        await cluster.until(lambda: answers(client), what="it answers")
        client.services.network.leaders.forget(cluster.leader("UP").replica("UP").assignment.gid)
        assert (await client.request(b"$JS.API.DIRECT.GET.UP.up"))[2] == b"4"


@virtual_time
async def test_a_mirror_that_lacks_what_its_upstream_acknowledged_last_shows_nothing_older() -> None:
    """The upstream's only server goes for longer than a read waits, right after an ack of what nobody else has."""
    async with Cluster() as cluster:
        apis = {node.name: serve_api(node) for node in cluster}
        await mirrored(cluster)
        await copied(cluster, 5)
        (home,) = [node for node in cluster if node.has("UP")]
        others = without(cluster, "UP")
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        for node in cluster:
            node.replica("M").mirrors.links.end()  # nothing comes over the link from here on
        assert (await others[0].publish(b"up", b"acked"))["seq"] == 6
        await apis.pop(home.name).stop()
        cluster.crash(home.name)
        until = cluster.loop.time() + 3 * MAX_SECONDS
        while cluster.loop.time() < until:
            _, headers, payload = await others[0].request(b"$JS.API.DIRECT.GET.UP.up", b"", 10.0)
            assert headers.startswith(b"NATS/1.0 503") or payload == b"acked"
        await stop(list(apis.values()))


@virtual_time
async def test_a_mirror_of_a_stream_elsewhere_answers_for_no_other_one_of_that_name() -> None:
    async with ApiCluster() as cluster:
        external = {"api": "$JS.far.API", "deliver": ""}
        config = {"name": "UP", "external": external}
        await cluster.create("M", subjects=[], mirror=config, mirror_direct=True)
        await tell_lag(cluster, 0)
        await cluster.until(lambda: all(answers(node) for node in cluster), what="all answer")
        await cluster.create("UP", 1)
        await cluster.until(lambda: all(node.js.assignment("$G", "UP") for node in cluster), what="all know it")
        ack = await cluster["A"].publish(b"up", b"here")
        for node in cluster:
            for _ in range(5):
                _, headers, payload = await node.get(b"UP", ack["seq"])
                assert payload == b"here" and b"Nats-Stream: UP\r\n" in headers
        await cluster.never(lambda: any(answers(node) for node in cluster), 2.0, "one came back")
        await cluster.delete("UP")
        await cluster.until(lambda: all(answers(node) for node in cluster), what="all answer again")


@virtual_time
async def test_a_mirror_of_its_own_name_elsewhere_answers_a_request_that_names_it_once() -> None:
    async with Cluster() as cluster:
        config = {"name": "UP", "external": {"api": "$JS.far.API", "deliver": ""}}
        await cluster.create("UP", subjects=[], mirror=config, mirror_direct=True, allow_direct=True)
        await tell_lag(cluster, 0, "UP")
        await cluster.until(lambda: all(answers(node, "UP") for node in cluster), what="all answer")
        for node in cluster:
            got: list[bytes] = []
            node.bus.subscribe(b"_INBOX.named", lambda s, r, h, p, o, got=got: got.append(h))
            node.bus.publish(b"$JS.API.DIRECT.PEER.UP." + node.name.encode(), b'{"seq": 1}', b"_INBOX.named")
            await asyncio.sleep(1)
            assert len(got) == 1 and got[0].startswith(b"NATS/1.0 404"), got


@virtual_time
async def test_a_mirror_of_a_stream_that_was_deleted_answers_for_no_new_one() -> None:
    async with ApiCluster() as cluster:
        await mirrored(cluster)
        await copied(cluster, 5)
        others = without(cluster, "UP")
        await cluster.until(lambda: all(answers(node) for node in others), what="all answer")
        old = cluster["A"].js.assignment("$G", "UP")
        assert old is not None
        await cluster.delete("UP")
        await cluster.create("UP", 1)
        await cluster.until(
            lambda: all((found := n.js.assignment("$G", "UP")) and found.gid != old.gid for n in cluster),
            what="all know it",
        )
        assert (await cluster["A"].publish(b"up", b"anew"))["seq"] == 1
        for node in cluster:
            for _ in range(5):
                _, headers, payload = await node.get(b"UP", 1)
                assert payload == b"anew" and b"Nats-Stream: UP\r\n" in headers
