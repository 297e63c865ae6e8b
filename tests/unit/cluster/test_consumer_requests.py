"""Requests about consumers, through every node of a cluster in one process.

Consumers that nobody uses any more.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from jetcluster.cluster import consumer_requests
from jetcluster.errors import ApiError
from jetcluster.store.api import Msg
from jetcluster.stream.apply.restoring import each_run
from jetcluster.stream.log.bodies import encode_runs
from testkit.sim.nodes import ACCOUNT, Cluster
from testkit.sim.shared import virtual_time
from tests.unit.cluster.consumers import (
    SECOND,
    Puller,
    ask,
    consumer,
    filled,
    host,
    owner,
    state,
)


@virtual_time
async def test_a_consumer_can_be_pulled_from_at_once_through_every_node() -> None:
    """Also with what it costs: the creation, and for the first one the session of its owner, are commits; the rest is
    a round trip or two."""
    async with Cluster() as cluster:
        await filled(cluster, 1)
        for number in range(9):
            before = cluster.loop.time()
            await consumer(cluster["B"], f"c{number}")
            took = cluster.loop.time() - before
            assert took < 0.015, took
            for node in cluster:
                assert Puller(node, "S", f"c{number}").pull() == 1
        owners = [owner(cluster, f"c{number}").name for number in range(9)]
        assert sorted(owners) == sorted("ABC" * 3), "shared out evenly"


@virtual_time
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(
    ("config", "headers"),
    [({"max_msgs_per_subject": 1}, b""), ({"allow_rollup_hdrs": True}, b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n")],
    ids=["limit", "rollup"],
)
async def test_nobody_has_to_ack_what_was_replaced(replicas: int, config: dict[str, Any], headers: bytes) -> None:
    """A message in the middle of the stream that a newer one of its subject removed waits for no ack, and leaves room
    for the next delivery."""
    async with Cluster() as cluster:
        await cluster.create("S", replicas, subjects=["s.*"], **config)
        leader = await cluster.led("S")
        await consumer(leader, "c", max_ack_pending=2)
        for subject in (b"s.stays", b"s.x"):
            await leader.publish(subject)
        puller = Puller(leader, "S", "c")
        assert [subject for subject, *_ in await puller.fetch(2)] == [b"s.stays", b"s.x"]
        await leader.publish(b"s.x", b"new", headers)
        info = await ask(leader, "S", "consumer_info", name="c")
        assert (info["num_ack_pending"], info["num_pending"]) == (1, 1)
        assert [payload for *_, payload in await puller.fetch(1, 1.0)] == [b"new"]


@virtual_time
async def test_the_same_request_again_creates_nothing() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        config = {"durable_name": "c", "name": "c", "ack_policy": "explicit"}
        body = {"name": "c", "config": config, "action": "create", "request": "r1"}
        first = await ask(cluster["A"], "S", "consumer_create", **body)
        again = await ask(cluster["B"], "S", "consumer_create", **body)
        other = await ask(cluster["B"], "S", "consumer_create", **{**body, "request": "r2"})
        assert first["created"] and not again["created"] and not other["created"]
        with pytest.raises(ApiError) as refused:
            changed = {**config, "max_deliver": 7}
            await ask(cluster["C"], "S", "consumer_create", **{**body, "request": "r3", "config": changed})
        assert refused.value.err_code == 10148


@virtual_time
async def test_of_clients_that_bind_a_push_durable_at_once_one_gets_it() -> None:
    """nats.c's test of concurrent subscriptions: nine of ten have to fail, on every server."""
    async with Cluster() as cluster:
        await filled(cluster, 1)
        targets = [f"_INBOX.d{number}" for number in range(4)]
        for target, node in zip(targets, "ABCA", strict=True):
            cluster[node].bus.subscribe(target.encode(), lambda *_: None)
        await asyncio.sleep(0.01)
        push = {"max_waiting": 0, "max_ack_pending": 1000}
        created = [
            consumer(cluster[node], "c", deliver_subject=target, **push)
            for target, node in zip(targets, "ABCA", strict=True)
        ]
        results = await asyncio.gather(*created, return_exceptions=True)
        refused = [error.err_code for error in results if isinstance(error, ApiError)]
        assert refused == [10013] * 3, results
        (winner,) = [index for index, result in enumerate(results) if isinstance(result, dict)]
        assert state(cluster["A"]).rules.deliver_subject == targets[winner].encode()


@virtual_time
async def test_a_push_consumer_is_bound_before_its_owner_has_begun() -> None:
    """A client that looks for the durable, and finds it just made by another one, must see that it is taken."""
    async with Cluster() as cluster:
        await filled(cluster, 1)
        cluster["A"].bus.subscribe(b"_INBOX.d", lambda *_: None)
        creation = asyncio.ensure_future(
            consumer(cluster["A"], "c", deliver_subject="_INBOX.d", max_waiting=0, max_ack_pending=1000)
        )
        leader = next(node for node in cluster if node.replica("S").leading)
        await cluster.until(lambda: "c" in host(leader).table.by_name, what="the consumer")
        found = await ask(leader, "S", "consumer_info", name="c")
        assert found["push_bound"] is True
        await creation


@virtual_time
async def test_the_limit_of_consumers_holds_for_creations_at_the_same_time() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        results = await asyncio.gather(
            *(
                ask(cluster[home], "S", "consumer_create", name=f"c{n}", config={"name": f"c{n}"}, max_consumers=3)
                for n, home in enumerate("ABCABC")
            ),
            return_exceptions=True,
        )
        refused = [error for error in results if isinstance(error, ApiError)]
        assert len(refused) == 3 and {error.err_code for error in refused} == {10026}
        assert host(cluster["A"]).table.count == 3


@virtual_time
async def test_names_list_and_count() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 2)
        for name in ("b", "a", "d", "c"):
            await consumer(cluster["A"], name)
        Puller(cluster["B"], "S", "b").pull(5)
        await asyncio.sleep(0.01)
        names = await ask(cluster["C"], "S", "consumer_names", offset=1, limit=2)
        assert names == {"total": 4, "names": ["b", "c"]}
        listed = await ask(cluster["C"], "S", "consumer_list", offset=0, limit=3)
        assert listed["total"] == 4 and [one["name"] for one in listed["consumers"]] == ["a", "b", "c"]
        assert [one["num_waiting"] for one in listed["consumers"]] == [0, 1, 0]
        assert [one["num_pending"] for one in listed["consumers"]] == [2, 0, 2]
        info = await ask(cluster["B"], "S", "info", revision=0)
        assert info["state"]["consumer_count"] == 4


@virtual_time
async def test_a_page_of_long_configurations_has_fewer_and_says_so() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 2)
        for name in ("b", "a", "d", "c"):
            await consumer(cluster["A"], name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consumer_requests, "LIST_BYTES", 1)
            for offset, name in enumerate("abcd"):
                listed = await ask(cluster["C"], "S", "consumer_list", offset=offset, limit=3)
                assert [one["name"] for one in listed["consumers"]] == [name]
                assert listed["total"] == 4 and listed.get("limit", 1) == 1


@virtual_time
async def test_a_deleted_consumer_tells_who_waits_and_is_found_nowhere() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        await consumer(cluster["A"], "c")
        pullers = [Puller(node, "S", "c") for node in cluster]
        for puller in pullers:
            puller.pull()
        await asyncio.sleep(0.01)
        await ask(cluster["B"], "S", "consumer_delete", name="c")
        await asyncio.sleep(0.01)
        assert [puller.statuses for puller in pullers] == [[b"409 Consumer Deleted"]] * 3
        assert [puller.pull() for puller in pullers] == [0, 0, 0]
        for kind in ("consumer_info", "consumer_delete", "consumer_pause", "consumer_reset", "consumer_stepdown"):
            with pytest.raises(ApiError) as refused:
                await ask(cluster["C"], "S", kind, name="c")
            assert refused.value.err_code == 10014


@virtual_time
@pytest.mark.parametrize("whole_stream", [False, True])
async def test_thousands_who_wait_are_all_answered(whole_stream: bool) -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        await consumer(cluster["A"], "c", max_waiting=5000)
        puller = Puller(cluster["A"], "S", "c")
        for _ in range(4500):
            puller.pull(expires=60)
        await asyncio.sleep(0.01)
        if whole_stream:
            await cluster.delete("S")
        else:
            await ask(cluster["B"], "S", "consumer_delete", name="c")
        await asyncio.sleep(0.01)
        assert puller.statuses == [b"409 Consumer Deleted"] * 4500


@virtual_time
async def test_a_deleted_stream_tells_who_waits() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        await consumer(cluster["A"], "c")
        puller = Puller(cluster["C"], "S", "c")
        puller.pull()
        await asyncio.sleep(0.01)
        await cluster.delete("S")
        await asyncio.sleep(0.01)
        assert puller.statuses == [b"409 Consumer Deleted"]
        assert puller.pull() == 0


@virtual_time
async def test_stepdown() -> None:
    async with Cluster("ABCD") as cluster:
        await filled(cluster, 3)
        await consumer(cluster["A"], "c")
        home = owner(cluster)
        await ask(cluster["B"], "S", "consumer_stepdown", name="c", preferred="")
        assert owner(cluster) is not home
        await ask(cluster["B"], "S", "consumer_stepdown", name="c", preferred=home.name)
        assert owner(cluster) is home
        (outside,) = [node.name for node in cluster if not node.has("S")]
        for preferred in ("nobody", outside, home.name):
            with pytest.raises(ApiError) as refused:
                await ask(cluster["B"], "S", "consumer_stepdown", name="c", preferred=preferred)
            assert refused.value.err_code == 10005
        await cluster.create("ONE", 1)
        await consumer(cluster["A"], "c", stream="ONE")
        await ask(cluster["B"], "ONE", "consumer_stepdown", name="c", preferred="")


@virtual_time
async def test_a_consumer_leaves_a_server() -> None:
    async with Cluster("ABCD") as cluster:
        await filled(cluster, 3)
        await consumer(cluster["A"], "one", num_replicas=1)
        await consumer(cluster["A"], "all")
        home = owner(cluster, "one")
        assert await ask(cluster["B"], "S", "consumer_leave", name="one", peer=home.name) == {}
        away = owner(cluster, "one")
        assert away is not home
        (outside,) = [node.name for node in cluster if not node.has("S")]
        for name, peer, err_code in (
            ("one", outside, 10040), ("one", home.name, 10040), ("all", away.name, 10075), ("none", away.name, 10014),
        ):  # fmt: skip
            with pytest.raises(ApiError) as refused:
                await ask(cluster["B"], "S", "consumer_leave", name=name, peer=peer)
            assert refused.value.err_code == err_code


@virtual_time
async def test_info_tells_since_when_the_owner_owns_it() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        made = (await consumer(cluster["A"], "c"))["info"]
        since = made["cluster"]["leader_since"]
        await asyncio.sleep(1.0)
        assert since > made["created"]
        assert (await ask(cluster["B"], "S", "consumer_info", name="c"))["cluster"]["leader_since"] == since
        await ask(cluster["B"], "S", "consumer_stepdown", name="c", preferred="")
        assert (await ask(cluster["B"], "S", "consumer_info", name="c"))["cluster"]["leader_since"] > since


@virtual_time
async def test_which_consumers_exceed_limits() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        for number in range(3):
            await consumer(cluster["A"], f"c{number}", max_ack_pending=100 * number)
        for limit, names in ((0, []), (200, []), (100, ["c2"]), (50, ["c1", "c2"])):
            limits = {"max_ack_pending": limit}
            answer = await ask(cluster["B"], "S", "consumers_beyond", consumer_limits=limits)
            assert answer == {"names": names}


@virtual_time
async def test_which_consumers_would_get_their_own_letters() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        wish = {"max_deliver": 1, "dead_letter": {"subject": "dead.{subject}"}}
        await consumer(cluster["A"], "all", **wish)
        await consumer(cluster["A"], "some", filter_subject="s.a", **wish)
        await consumer(cluster["A"], "none")
        for taking, names in (
            ({"subjects": ["s.>"]}, []),
            ({"subjects": ["s.>", "dead.>"]}, ["all"]),
            ({"subjects": ["s.>"], "sources": [{"name": "O"}]}, ["all"]),
            ({"subjects": ["dead.>"], "subject_transform": {"src": "dead.>", "dest": "s.>"}}, ["all", "some"]),
        ):
            answer = await ask(cluster["B"], "S", "consumers_beyond", consumer_limits={}, taking=taking)
            assert answer.get("cyclic", []) == names and not answer["names"]


@virtual_time
async def test_a_creation_anew_is_refused_where_the_name_is_taken() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        body = {"name": "c", "config": {"name": "c", "ack_policy": "explicit"}, "action": "create", "anew": True}
        await ask(cluster["A"], "S", "consumer_create", **body, request="r1")
        again = await ask(cluster["B"], "S", "consumer_create", **body, request="r1")
        assert again["info"]["name"] == "c", "a retry of the same request"
        with pytest.raises(ApiError) as refused:
            await ask(cluster["B"], "S", "consumer_create", **body, request="r2")
        assert refused.value.err_code == 10148


@virtual_time
async def test_pause_and_reset() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 5)
        await consumer(cluster["A"], "c")
        client = Puller(cluster["B"], "S", "c")
        for message in (await client.fetch(3))[:1]:
            await client.ack(message)
        until = cluster.loop.time_ns() + 3 * SECOND
        await ask(cluster["C"], "S", "consumer_pause", name="c", pause_until=until)
        info = await ask(cluster["C"], "S", "consumer_info", name="c")
        assert info["paused"] and 0 < info["pause_remaining"] <= 3 * SECOND
        client.pull(2, expires=10.0)
        await asyncio.sleep(2.5)
        assert len(client.got) == 3
        await asyncio.sleep(1.0)
        assert len(client.got) == 5
        reset = await ask(cluster["A"], "S", "consumer_reset", name="c", seq=0)
        assert reset["reset_seq"] == 2 and reset["info"]["num_pending"] == 4
        for far in (1 << 63, (1 << 64) - 1):
            with pytest.raises(ApiError, match="no such sequence"):
                await ask(cluster["A"], "S", "consumer_reset", name="c", seq=far, request=f"r{far}")
        assert all(node.replica("S").applying.refusals == 0 for node in cluster)
        got = await client.fetch(4)
        assert [payload for _, _, payload in got] == [b"1", b"2", b"3", b"4"]


@virtual_time
async def test_an_archive_s_consumers_begin_once_all_of_them_are_there() -> None:
    """Or the first one's acks would release messages that another one, which comes later, still has to get."""
    async with Cluster() as cluster:
        node = cluster["A"]
        body = cluster.stream_body({"name": "S", "subjects": ["s"], "num_replicas": 3, "retention": "interest"})
        body["config"]["restoring"] = True
        assignment = await cluster.ready(node, await node.js.meta_request("stream_create", body))
        runs = encode_runs(each_run([Msg(seq, seq, b"s", b"", b"%d" % seq) for seq in (1, 2, 3)]))
        await ask(node, "S", "restore", runs=base64.b64encode(runs).decode())
        await ask(node, "S", "restore_end", last_seq=3, last_ts=3)
        start = {"delivered": [0, 0], "floor": [0, 0], "pending": []}
        for name in ("first", "second"):
            config = {"name": name, "durable_name": name, "ack_policy": "explicit", "max_ack_pending": 10}
            config |= {"ack_wait": 30 * SECOND, "max_waiting": 512}
            await ask(node, "S", "consumer_create", name=name, config=config, action="create", restored=start)
            await asyncio.sleep(1)
            assert not Puller(node, "S", name).pull(), "it is served before the stream is whole"
        done = await node.js.meta_request(
            "stream_restored", {"request": "r", "account": ACCOUNT, "name": "S", "gid": assignment.gid}
        )
        await cluster.ready(node, done)
        await asyncio.sleep(0.02)  # not the tick, which looks after it a few times per second
        for name, left in (("first", 3), ("second", 0)):
            puller = Puller(node, "S", name)
            for message in await puller.fetch(3):
                await puller.ack(message)
            assert cluster.leader("S").replica("S").store.messages == left


@virtual_time
async def test_an_ephemeral_that_nobody_uses_is_deleted_and_that_is_published_once() -> None:
    async with Cluster() as cluster:
        await filled(cluster, 0)
        told: list[bytes] = []
        cluster["B"].bus.subscribe(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.*", lambda subject, *_: told.append(subject))
        await asyncio.sleep(0.01)
        for number in range(5):
            await consumer(cluster["A"], f"e{number}", durable_name="", inactive_threshold=2 * SECOND)
        user = Puller(cluster["C"], "S", "e3")
        user.pull(5, expires=5.0)
        await asyncio.sleep(4.0)
        assert sorted(host(cluster["A"]).table.by_name) == ["e3"]
        await asyncio.sleep(6.0)
        assert host(cluster["A"]).table.count == 0
        assert sorted(told) == [b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.e%d" % n for n in range(5)]


@virtual_time
async def test_nobody_asks_for_the_deletion_of_a_retention_guard() -> None:
    """It would be refused, and asked for again each second."""
    async with Cluster() as cluster:
        await cluster.create("S", retention_guard={"consumer": "archive", "max_bytes": 1 << 20, "max_age": 0})
        await consumer(cluster["A"], "archive", inactive_threshold=2 * SECOND)
        await asyncio.sleep(4.0)
        machine = cluster.leader("S").replica("S").machine
        applied = machine.applied_index
        await asyncio.sleep(5.0)
        assert machine.applied_index == applied and host(cluster["A"]).table.count == 1


@virtual_time
async def test_a_short_threshold_is_kept() -> None:
    """nats.c: 50 ms, looked for 150 ms after the connection has gone."""
    async with Cluster() as cluster:
        await filled(cluster, 1)
        await consumer(cluster["A"], "e", durable_name="", inactive_threshold=SECOND // 20)
        await asyncio.sleep(0.1)
        assert host(cluster["A"]).table.count == 0
