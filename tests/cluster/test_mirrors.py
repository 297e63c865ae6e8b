"""Mirrors on the wire: also for `--server nats-server`, but where it says so."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jetcluster.mirror.upstream import Start, Upstream
from testkit.client import Client, ClientError, create_stream
from testkit.consumer_client import Inbox, ack_fields
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import check_exactly_once, publish_all, read_all, wait_newest
from tests.cluster.link_client import (
    fresh,
    info,
    leaders_killed_under_load,
    publish,
    reached,
    settled,
    stored,
    upstream,
)

pytestmark = [pytest.mark.cluster, pytest.mark.long]


async def mirror(client: Client, name: str, upstream: str, replicas: int = 1, **config: Any) -> dict[str, Any]:
    link = {"name": upstream, **config.pop("link", {})}
    body = {"name": name, "mirror": link, "num_replicas": replicas, "allow_direct": True, **config}
    return await client.api(f"STREAM.CREATE.{name}", body)


async def refused(client: Client, suffix: str, body: Any = None) -> int:
    reply = (await client.request(f"$JS.API.{suffix}", json.dumps(body).encode() if body is not None else b"")).json()
    return int(reply["error"]["err_code"])


@pytest.mark.parametrize("replicas", [1, 3])
async def test_sequences_times_and_gaps_are_the_upstreams(shared: ProcessCluster, replicas: int) -> None:
    up, name = fresh("UP"), fresh("M")
    async with await shared[0].connect() as client, await shared[1].connect() as other:
        await create_stream(client, up, [f"{up}.>"], replicas)
        await settled(shared, client)
        await publish(client, f"{up}.a", *(b"%d" % n for n in range(1, 51)))
        for seq in (1, 2, 17, 30, 31, 50):
            await client.api(f"STREAM.MSG.DELETE.{up}", {"seq": seq})
        created = await mirror(other, name, up, replicas)
        assert created["config"]["mirror"] == {"name": up}
        assert created["config"]["mirror_direct"] is True
        assert "subjects" not in created["config"]
        await reached(client, name, 49)
        await publish(client, f"{up}.b", *(b"%d" % n for n in range(51, 61)))
        await reached(client, name, 60)
        assert await stored(client, name) == await stored(client, up)
        found = await info(other, name)
        state, theirs = found["state"], (await info(client, up))["state"]
        for key in ("messages", "last_seq", "first_ts", "last_ts", "num_subjects", "num_deleted"):
            assert state.get(key) == theirs.get(key), key
        assert found["mirror"]["lag"] == 0
        assert 0 <= found["mirror"]["active"] < 5e9
        assert "error" not in found["mirror"]


@pytest.mark.parametrize("start", [Start(0), Start(3), Start(0, time="2020-01-01T00:00:00Z")])
async def test_any_server_understands_what_a_link_asks_for(shared: ProcessCluster, start: Start) -> None:
    async with upstream(shared, ".*") as (client, up, _):
        await publish(client, f"{up}.a", b"1", b"2", b"3", b"4")
        for link in ({}, {"filter_subject": f"{up}.a"}, {"subject_transforms": [{"src": f"{up}.a", "dest": "x"}]}):
            inbox = Inbox(client)
            link_up = Upstream({"name": up, **link}, "S", mirror=False)
            body = link_up.create_request("JS_SRC_x-" + fresh("y"), inbox.subject.encode(), start, "$G")
            subject = link_up.create_subject(json.loads(body)["config"]["name"]).decode()
            created = (await client.request(subject, body)).json()
            assert "error" not in created, created
            first = start.after + 1
            found = await inbox.take(5 - first)
            assert [ack_fields(m)[1] for m in found if not m.status] == list(range(first, 5))
            await inbox.take(1)  # a heartbeat
            inbox.close()
            deleted = (await client.request(link_up.delete_subject(created["name"]).decode(), b"")).json()
            if shared.server == "jetcluster":  # nats-server's goes when nobody listens any more
                assert deleted.get("success"), deleted


async def test_mirrors_of_other_servers_ask_with_one_name(shared: ProcessCluster) -> None:
    """nats-server's own links: the same name for every attempt, and the consumers are others all the same."""
    async with upstream(shared) as (client, up, _):
        await publish(client, up, b"1")
        names = []
        for _ in range(2):
            inbox = Inbox(client)
            config = {
                "name": "JS_MIRROR_abc", "ack_policy": "none", "ack_wait": 79_200_000_000_000, "max_deliver": 1,
                "flow_control": True, "deliver_subject": inbox.subject, "idle_heartbeat": 10**9,
                "inactive_threshold": 10**10, "direct": True, "sourcing": True,
            }  # fmt: skip
            body = json.dumps({"stream_name": up, "config": config, "action": ""}).encode()
            subject = f"$JS.API.CONSUMER.CREATE.{up}"
            created = (await client.request(subject, body, headers={"Nats-Required-Api-Level": "4"})).json()
            names.append(created["name"])
            (message,) = await inbox.take(1)
            assert (message.data, ack_fields(message)[:3]) == (b"1", (1, 1, 1))
            assert created["name"].startswith("JS_MIRROR_abc-")
        assert len(set(names)) == 2
        assert (await client.api(f"CONSUMER.NAMES.{up}", {}))["total"] == 0
        assert (await info(client, up))["state"]["consumer_count"] == 0


async def test_the_upstream_comes_later(shared: ProcessCluster) -> None:
    up, name = fresh("UP"), fresh("M")
    async with await shared[0].connect() as client:
        await mirror(client, name, up)

        async def says_so() -> bool:
            return (await info(client, name))["mirror"].get("error", {}).get("err_code") == 10059

        if shared.server == "jetcluster":  # a cluster of nats-server is silent about what does not exist
            await eventually(says_so, 10, "no error")
        await create_stream(client, up, [up], 3)
        await settled(shared, client)
        await publish(client, up, b"1", b"2")
        await reached(client, name, 2, within=40)
        assert "error" not in (await info(client, name))["mirror"]


async def test_purges_upstream_are_gaps_and_those_here_are_local(shared: ProcessCluster) -> None:
    async with upstream(shared, ".*") as (client, up, name):
        await publish(client, f"{up}.a", *(b"%d" % n for n in range(20)))
        await client.api(f"STREAM.PURGE.{up}", {"keep": 5})
        await mirror(client, name, up)
        await reached(client, name, 20)
        assert [m.seq for m in await stored(client, name)] == [16, 17, 18, 19, 20]
        await client.api(f"STREAM.PURGE.{up}")
        await publish(client, f"{up}.a", b"new")
        await reached(client, name, 21)
        assert [m.seq for m in await stored(client, name)] == [16, 17, 18, 19, 20, 21]
        assert (await client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 17}))["success"]
        assert (await client.api(f"STREAM.PURGE.{name}", {"seq": 19}))["purged"] == 2
        assert [m.seq for m in await stored(client, name)] == [19, 20, 21]
        assert (await client.api(f"STREAM.PURGE.{name}"))["purged"] == 3
        await publish(client, f"{up}.b", b"after")
        await reached(client, name, 22)
        assert [(m.seq, m.data) for m in await stored(client, name)] == [(22, b"after")]
        assert [m.seq for m in await stored(client, up)] in ([21, 22], [22])  # by upstream or mirror


@pytest.mark.parametrize(
    ("link", "seqs", "subjects"),
    [
        ({"filter_subject": "{up}.a"}, [1, 3, 5], ["{up}.a"]),
        ({"opt_start_seq": 4}, [4, 5, 6], ["{up}.a", "{up}.b"]),
        ({"subject_transforms": [{"src": "{up}.b", "dest": "new.$1"}]}, None, None),
        ({"subject_transforms": [{"src": "{up}.*", "dest": "new.{{wildcard(1)}}"}]}, [1, 2, 3, 4, 5, 6],
         ["new.a", "new.b"]),
        ({"subject_transforms": [{"src": "{up}.a", "dest": "one"}, {"src": "{up}.b", "dest": "two"}]},
         [1, 2, 3, 4, 5, 6], ["one", "two"]),
    ],
)  # fmt: skip
async def test_filters_transforms_and_starts(
    shared: ProcessCluster, link: dict[str, Any], seqs: list[int] | None, subjects: list[str] | None
) -> None:
    async with upstream(shared, ".*") as (client, up, name):
        own = json.loads(json.dumps(link).replace("{up}", up))
        for n in range(6):
            await publish(client, f"{up}.{'ab'[n % 2]}", b"%d" % n)
        if seqs is None:
            body = {"name": name, "mirror": {"name": up, **own}}
            assert await refused(client, f"STREAM.CREATE.{name}", body) == 10154
            return
        await mirror(client, name, up, link=own)
        await reached(client, name, seqs[-1])
        found = await stored(client, name)
        assert [m.seq for m in found] == seqs
        assert sorted({m.subject for m in found}) == [s.replace("{up}", up) for s in subjects or []]
        assert {(m.seq, m.time) for m in found} <= {(m.seq, m.time) for m in await stored(client, up)}
        shown = (await info(client, name))["mirror"]
        for key, value in own.items():
            assert shown.get(key, value) == value
        # It does not have what the upstream has: it must not answer for it.
        answers = {
            (await client.request(f"$JS.API.DIRECT.GET.{up}", b'{"seq":1}')).get("Nats-Stream") for _ in range(30)
        }
        if shared.server == "jetcluster":
            assert answers == {up}


async def test_no_publishes_until_it_is_promoted(shared: ProcessCluster) -> None:
    async with upstream(shared, replicas=3) as (client, up, name):
        await mirror(client, name, up, 3)
        await publish(client, up, b"1", b"2")
        await reached(client, name, 2)
        assert (await client.request(name, b"own")).status == 503
        config = (await info(client, name))["config"]
        changed = {**config, "mirror": {"name": "ELSE"}}
        assert await refused(client, f"STREAM.UPDATE.{name}", changed) == 10055
        del config["mirror"]
        config |= {"subjects": [name], "mirror_direct": False}
        promoted = await client.api(f"STREAM.UPDATE.{name}", config)
        assert "mirror" not in promoted and "mirror" not in promoted["config"]
        await settled(shared, client)
        await publish(client, up, b"3")
        assert await publish(client, name, b"own", b"own2") == [3, 4]
        assert [m.data for m in await stored(client, name)] == [b"1", b"2", b"own", b"own2"]

        async def left() -> bool:
            """Each replica leaves the upstream's group when it applies the update."""
            get = f"$JS.API.DIRECT.GET.{up}"
            return {(await client.request(get, b'{"seq":1}')).get("Nats-Stream") for _ in range(30)} == {up}

        await eventually(left, 10, "it still answers for the upstream", every=0.1)


async def test_its_duplicate_window_is_kept_and_refuses_nothing(single: ProcessCluster) -> None:
    """In a cluster nats-server drops it."""
    async with await single[0].connect() as client:
        await create_stream(client, "WINDOWUP", ["windowup"], 1, duplicate_window=100_000_000)
        window = {"duplicate_window": 30 * 1_000_000_000}
        config = {"name": "WINDOW", "num_replicas": 1, "mirror": {"name": "WINDOWUP"}}
        made = await client.api("STREAM.CREATE.WINDOW", {**config, **window})
        assert made["config"]["duplicate_window"] == window["duplicate_window"]
        for number in range(2):  # the same id, outside of the upstream's window and inside of the mirror's
            answer = await client.request("windowup", b"%d" % number, 5.0, {"Nats-Msg-Id": "same"})
            assert b'"duplicate"' not in answer.data
            await asyncio.sleep(0.3)

        async def came() -> bool:
            return bool((await client.api("STREAM.INFO.WINDOW"))["state"]["messages"] == 2)

        await eventually(came, 10, "both messages in the mirror")
        assert "duplicate_window" not in (await client.api("STREAM.UPDATE.WINDOW", config))["config"]
        again = await client.api("STREAM.UPDATE.WINDOW", {**config, **window})
        assert again["config"]["duplicate_window"] == window["duplicate_window"]
        for wrong in (-5, 5):
            with pytest.raises(ClientError, match="10052"):
                await client.api("STREAM.UPDATE.WINDOW", {**config, "duplicate_window": wrong})
        await client.api("STREAM.DELETE.WINDOW")
        await client.api("STREAM.DELETE.WINDOWUP")


async def test_it_answers_for_the_upstream_and_goes_on_without_it(shared: ProcessCluster) -> None:
    ours = shared.server == "jetcluster"
    async with upstream(shared, ".*") as (client, up, name):
        await publish(client, f"{up}.a", *(b"%d" % n for n in range(30)))
        await mirror(client, name, up, 3)
        await reached(client, name, 30)

        async def who() -> set[str | None]:
            clients = [await node.connect() for node in shared.nodes]
            found = set()
            for one in clients:
                for _ in range(20):
                    found.add((await one.request(f"$JS.API.DIRECT.GET.{up}", b'{"seq":3}')).get("Nats-Stream"))
                one.close()
            return found

        async def both() -> bool:
            return await who() == {up, name}

        await eventually(both, 20, "the mirror does not join", every=0.2)
        alternates = (await info(client, up))["alternates"]
        assert {entry["name"] for entry in alternates} == {up, name}
        assert {entry["cluster"] for entry in alternates} == {"C"}
        assert "alternates" not in await info(client, name)
        await client.api(f"STREAM.DELETE.{up}")

        async def alone() -> bool:
            return await who() == {name}

        await eventually(alone, 20, "not only the mirror answers", every=0.2)
        assert [m.data for m in await stored(client, up)] == [b"%d" % n for n in range(30)]
        found = await info(client, name)
        assert found["state"]["messages"] == 30
        if ours:

            async def told() -> bool:
                return (await info(client, name))["mirror"].get("error", {}).get("err_code") == 10059

            await eventually(told, 15, "no error of an upstream that is gone", every=0.2)


@pytest.mark.ours("nats-server waits in silence until the new stream has passed the old one's last sequence")
async def test_an_upstream_created_anew_is_not_mixed_in(shared: ProcessCluster) -> None:
    up, name = fresh("UP"), fresh("M")
    async with await shared[0].connect() as client:
        await create_stream(client, up, [up], 1)
        await publish(client, up, *(b"old%d" % n for n in range(5)))
        await mirror(client, name, up)
        await reached(client, name, 5)
        await client.api(f"STREAM.DELETE.{up}")
        await create_stream(client, up, [up], 1)
        await publish(client, up, *(b"new%d" % n for n in range(20)))

        async def told() -> bool:
            error = (await info(client, name))["mirror"].get("error", {})
            return error.get("err_code") == 10029 and "created again" in error["description"]

        await eventually(told, 20, "no error is reported", every=0.2)
        assert [m.data for m in await stored(client, name)] == [b"old%d" % n for n in range(5)]


async def test_limits_of_a_full_mirror(shared: ProcessCluster) -> None:
    async with upstream(shared) as (client, up, name):
        old = fresh("M")
        await mirror(client, old, up, max_msgs=3)
        await publish(client, up, *(b"%d" % n for n in range(10)))
        await reached(client, old, 10)
        assert [m.seq for m in await stored(client, old)] == [8, 9, 10]
        if shared.server != "jetcluster":
            return
        await mirror(client, name, up, max_msgs=4, discard="new")

        async def full() -> bool:
            found = await info(client, name)
            return found["mirror"].get("error", {}).get("err_code") == 10077 and found["state"]["messages"] == 4

        await eventually(full, 10, "not full")
        assert [m.seq for m in await stored(client, name)] == [1, 2, 3, 4]
        config = {**(await info(client, name))["config"], "max_msgs": 100}
        await client.api(f"STREAM.UPDATE.{name}", config)
        await reached(client, name, 10, within=30)
        assert [m.seq for m in await stored(client, name)] == list(range(1, 11))


async def test_a_large_mirror_of_what_is_there(shared: ProcessCluster) -> None:
    async with upstream(shared, ".*", replicas=3) as (client, up, name):
        ledger = await publish_all(client, f"{up}.x", [b"%06d" % n for n in range(20_000)], window=2000)
        assert len(ledger.acked) == 20_000
        await mirror(client, name, up, 3)
        await reached(client, name, 20_000, within=60)
        await wait_newest(client, name)
        check_exactly_once(ledger, await read_all(client, name, last=20_000))


@pytest.mark.parametrize("victim", ["upstream", "mirror"])
async def test_leaders_are_killed_under_load(cluster: ProcessCluster, victim: str) -> None:
    """Every message is in the mirror once, under its own sequence, though leaders die on the way."""
    async with await cluster[0].connect() as client:
        await create_stream(client, "UP", ["up"], 3)
        await settled(cluster, client)
        await mirror(client, "M", "UP", 3)
    ledger = await leaders_killed_under_load(cluster, "UP" if victim == "upstream" else "M")
    last = (await cluster.wait_current("UP"))["state"]["last_seq"]
    async with await cluster[0].connect() as client:
        await reached(client, "M", last, within=60)
        await wait_newest(client, "M")
        await wait_newest(client, "UP")
        copied = await read_all(client, "M", last=last)
        check_exactly_once(ledger, copied)
        assert copied == await read_all(client, "UP", last=last)


async def test_all_nodes_start_again(cluster: ProcessCluster) -> None:
    async with await cluster[0].connect() as client:
        await create_stream(client, "UP", ["up"], 3)
        await settled(cluster, client)
        await mirror(client, "M", "UP", 1)
        await publish(client, "up", *(b"a%d" % n for n in range(100)))
        await reached(client, "M", 100)
    cluster.kill9_all()
    await cluster.start()
    await cluster.stream_leader("UP", within=30)
    await cluster.stream_leader("M", within=30)
    async with await cluster[0].connect() as client:

        async def published() -> bool:
            try:
                await publish(client, "up", b"later")
            except (ClientError, TimeoutError, KeyError, ValueError):
                return False
            return True

        await eventually(published, 30, "no publish", every=0.2)
        last = (await info(client, "UP"))["state"]["last_seq"]
        await reached(client, "M", last, within=40)
        assert [(m.seq, m.data) for m in await stored(client, "M")] == [
            (m.seq, m.data) for m in await stored(client, "UP")
        ]


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.ours("nats-server makes no such promise")
async def test_own_writes_are_read_beside_a_mirror(shared: ProcessCluster, replicas: int) -> None:
    """One connection publishes and reads what was acknowledged to it; a mirror answers for the stream, too."""
    async with upstream(shared, ".>", replicas=replicas, allow_direct=True) as (client, up, name):
        await mirror(client, name, up, 3)
        await publish(client, f"{up}.a", b"first")
        await reached(client, name, 1)
    await asyncio.sleep(1)
    sources = set()
    for node in shared.nodes:
        async with await node.connect() as client:
            for number in range(150):
                ack = (await client.request(f"{up}.b", b"%d" % number)).json()
                answer = await client.request(f"$JS.API.DIRECT.GET.{up}", b'{"seq":%d}' % ack["seq"])
                assert answer.data == b"%d" % number, (node.name, number, answer.status)
                sources.add(b"Nats-Stream: %b\r\n" % name.encode() in answer.header)
    assert (True in sources) is (replicas == 1), "where there is a replica on each node no mirror is needed"


@pytest.mark.parametrize("copy", ["mirror", "republish"])
async def test_a_read_right_behind_the_ack_finds_the_copy(single: ProcessCluster, server: str, copy: str) -> None:
    """A mirror beside its upstream, and a stream that takes what another one republishes, on the same server."""
    async with await single[0].connect() as client:
        if copy == "mirror":
            await create_stream(client, "UP", ["up"], 1)
            await client.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "UP"}, "allow_direct": True})
        else:
            await create_stream(client, "UP", ["up"], 1, republish={"src": "up", "dest": "copied"})
            await create_stream(client, "M", ["copied"], 1, allow_direct=True)
        subject = f"$JS.API.DIRECT.GET.M.{'up' if copy == 'mirror' else 'copied'}"

        async def there() -> bool:
            await client.request("up", b"first")
            return (await client.request(subject)).data == b"first"

        await eventually(there, 10, "the first copy")
        await asyncio.sleep(0.5)
        stale = 0
        for number in range(100):
            await client.request("up", b"%d" % number)
            stale += (await client.request(subject)).data != b"%d" % number
        assert stale <= (1 if server == "jetcluster" else 25), f"{stale} of 100"


def shown(message: Any) -> tuple[int, bytes]:
    return message.status, message.data


@pytest.mark.ours("nats-server keeps no such promise of own writes")
async def test_an_upstream_that_dies_beside_its_mirror_takes_nothing_with_it(cluster: ProcessCluster) -> None:
    """Reads of every form go on at once, but for a connection that was told of what the mirror never got."""
    async with await cluster[0].connect() as client:
        await create_stream(client, "UP", ["up.*"], 1, allow_direct=True)
        await settled(cluster, client)
        await publish(client, "up.a", *(b"%d" % n for n in range(1, 21)))
        home = await cluster.stream_leader("UP")
        others = [node for node in cluster.nodes if node is not home]
        body = {"name": "M", "mirror": {"name": "UP"}, "num_replicas": 3, "mirror_direct": True}
        await client.api("STREAM.CREATE.M", body)
        await reached(client, "M", 20)
    readers = [await node.connect() for node in others]
    told = await others[0].connect()

    async def joined() -> bool:
        for reader, node in zip(readers, others, strict=True):
            answer = await reader.request("$JS.API.DIRECT.GET.UP", b'{"seq":3,"read_info":true}')
            if answer.get("Nats-Stream") != "M" or answer.get("Nats-Answered-By") != node.name:
                return False
            if answer.get("Nats-Staleness") == "unknown":
                return False
        return True

    await eventually(joined, 20, "the mirror does not answer for its upstream", every=0.2)
    # Only `told` hears of one more, which the mirror may get or not.
    await publish(told, "up.b", b"own")
    home.kill9()
    for reader in readers:
        await reader.request("$JS.API.DIRECT.GET.UP.up.a", b"", 5.0)  # notices that nobody leads the upstream
    times: list[float] = []
    loop = asyncio.get_running_loop()
    for reader in readers:
        for request in (
            b'{"last_by_subj":"up.a"}',
            b'{"seq":20,"next_by_subj":"up.a"}',
            b'{"seq":20,"batch":5,"next_by_subj":"up.a"}',
            b'{"multi_last":["up.a"]}',
        ):  # fmt: skip
            start = loop.time()
            answer = await reader.request("$JS.API.DIRECT.GET.UP", request, 5.0)
            times.append(loop.time() - start)
            assert (answer.get("Nats-Sequence"), answer.data) == ("20", b"20"), (request, shown(answer))
        start = loop.time()
        answer = await reader.request("$JS.API.DIRECT.GET.UP.up.a", b"", 5.0)
        times.append(loop.time() - start)
        assert answer.data == b"20"
    assert sorted(times)[len(times) // 2] < 0.5, times
    own = await told.request("$JS.API.DIRECT.GET.UP.up.b", b"", 5.0)
    assert own.data == b"own" or own.status == 503, shown(own)  # whether the mirror got it in time
    aged = b'{"last_by_subj":"up.a","read_info":true,"max_staleness":%d}'
    for reader in readers:
        answer = await reader.request("$JS.API.DIRECT.GET.UP", aged % (3600 * 10**9), 5.0)
        assert (answer.data, answer.get("Nats-Answered-As")) == (b"20", "mirror"), answer.header
        assert answer.get("Nats-Staleness") != "unknown"
        answer = await reader.request("$JS.API.DIRECT.GET.UP", aged % 10**6, 5.0)
        assert answer.status == 503 and answer.get("Nats-Staleness") != "unknown", answer.header
    for one in (*readers, told):
        one.close()


@pytest.mark.ours("nats-server has no sessions")
async def test_a_token_holds_on_any_connection_at_a_mirror(shared: ProcessCluster) -> None:
    """One client writes; others on every node read its write by the token, from the mirror or under its own name."""
    async with upstream(shared, ".*", replicas=1, allow_direct=True, read_consistency="session") as (client, up, name):
        found = (await info(client, up))["config"]
        assert found["read_consistency"] == "session"
        await publish(client, f"{up}.a", b"first")
        await mirror(client, name, up, 3)
        await reached(client, name, 1)
        readers = [await node.connect() for node in shared.nodes]
        served = set()
        for number in range(40):
            ack = (await client.request(f"{up}.a", b"%d" % number)).json()
            token = {"Nats-Min-Last-Sequence": str(ack["seq"]), "Nats-Read-Info": "true"}
            for reader in readers:
                for stream in (up, name):
                    answer = await reader.request(f"$JS.API.DIRECT.GET.{stream}.{up}.a", b"", 5.0, token)
                    assert answer.data == b"%d" % number, (stream, shown(answer))
                    served.add((answer.get("Nats-Answered-By"), answer.get("Nats-Answered-As")))
        assert len(served) > 2, served
        config = {**found, "read_consistency": "strong"}
        assert (await client.api(f"STREAM.UPDATE.{up}", config))["config"]["read_consistency"] == "strong"
        assert await refused(client, f"STREAM.UPDATE.{up}", {**found, "read_consistency": "best"}) in (10025, 10052)
        for reader in readers:
            assert (await reader.request(f"$JS.API.DIRECT.GET.{up}.{up}.a", b"", 5.0)).data == b"39"
            reader.close()
