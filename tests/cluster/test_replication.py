"""A replicated stream while nothing fails: acks, every entry point, every replica, the checks on publish."""

from __future__ import annotations

import asyncio

import pytest

from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster, eventually
from testkit.ledger import check_exactly_once, publish_all, read_all, wait_direct

pytestmark = pytest.mark.cluster


def payloads(count: int, prefix: str = "m") -> list[bytes]:
    return [b"%s-%d" % (prefix.encode(), n) for n in range(count)]


async def test_publish_through_every_node_and_read_from_every_node(tidy: ProcessCluster) -> None:
    clients = [await node.connect() for node in tidy.nodes]
    await create_stream(clients[0], "S", ["s.>"], 3)
    ledger = await publish_all(clients[0], "s.a", payloads(300, "n1"))
    for at in (1, 2):
        more = await publish_all(clients[at], "s.a", payloads(300, f"n{at + 1}"))
        assert not more.refused
        ledger.acked |= more.acked
    assert sorted(ledger.acked.values()) == list(range(1, 901))
    for client in clients:
        await wait_direct(client, "S", 900)
        check_exactly_once(ledger, await read_all(client, "S"))
    info = await tidy.wait_current("S")
    assert info["state"]["messages"] == 900
    assert {info["cluster"]["leader"], *(p["name"] for p in info["cluster"]["replicas"])} == {"n1", "n2", "n3"}
    for client in clients:
        client.close()


@pytest.mark.ours("nats-server may pick a frozen member of the queue group: it does not prefer the local replica")
async def test_each_replica_answers_alone(cluster: ProcessCluster) -> None:
    """The proof that a node's own copy answers: freeze the two others and read everything from the third."""
    async with await cluster[0].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        ledger = await publish_all(client, "s", payloads(2000))
    await cluster.wait_current("S")
    for node in cluster.nodes:
        async with await node.connect() as client:
            await wait_direct(client, "S", 2000)
            others = [n for n in cluster.nodes if n is not node]
            for other in others:
                other.signal(19)
            try:
                check_exactly_once(ledger, await read_all(client, "S", within=5))
            finally:
                for other in others:
                    other.signal(18)
        await cluster.wait_meta()


async def test_dedupe_and_expected_sequence(tidy: ProcessCluster) -> None:
    async with await tidy[1].connect() as client:
        await create_stream(client, "S", ["s.>"], 3)
        first = (await client.request("s.a", b"1", headers={"Nats-Msg-Id": "x"})).json()
        again = (await client.request("s.a", b"1", headers={"Nats-Msg-Id": "x"})).json()
        assert first == {"stream": "S", "seq": 1}
        assert again == {"stream": "S", "seq": 1, "duplicate": True}

        ok = await client.request("s.a", b"2", headers={"Nats-Expected-Last-Sequence": "1"})
        assert ok.json() == {"stream": "S", "seq": 2}
        wrong = (await client.request("s.a", b"3", headers={"Nats-Expected-Last-Sequence": "1"})).json()
        assert (wrong["error"]["code"], wrong["error"]["err_code"]) == (400, 10071)
        per_subject = (await client.request("s.b", b"4", headers={"Nats-Expected-Last-Subject-Sequence": "7"})).json()
        assert per_subject["error"]["err_code"] == 10071
        new = await client.request("s.b", b"4", headers={"Nats-Expected-Last-Subject-Sequence": "0"})
        assert new.json() == {"stream": "S", "seq": 3}
        other = (await client.request("s.b", b"5", headers={"Nats-Expected-Stream": "T"})).json()
        assert other["error"]["err_code"] == 10060
        await wait_direct(client, "S", 3)
        stored = await read_all(client, "S")
    assert stored == {1: b"1", 2: b"2", 3: b"4"}


async def test_only_one_of_many_compare_and_set_writers_wins(tidy: ProcessCluster) -> None:
    """The same expected sequence through three nodes at once: the log order decides, for one of them."""
    clients = [await node.connect() for node in tidy.nodes]
    await create_stream(clients[0], "S", ["s"], 3)
    for round_ in range(20):
        headers = {"Nats-Expected-Last-Sequence": str(round_)}
        replies = await asyncio.gather(
            *(c.request("s", b"%d-%d" % (round_, at), headers=headers) for at, c in enumerate(clients))
        )
        won = [r.json()["seq"] for r in replies if "error" not in r.json()]
        assert won == [round_ + 1]
    for client in clients:
        client.close()


async def test_direct_get_forms_on_every_node(tidy: ProcessCluster) -> None:
    async with await tidy[0].connect() as client:
        await create_stream(client, "S", ["s.>"], 3)
        for n in range(1, 11):
            await client.request(f"s.{n % 2}", b"%d" % n)
    await tidy.wait_current("S")
    for node in tidy.nodes:
        async with await node.connect() as client:
            await wait_direct(client, "S", 10)
            get = "$JS.API.DIRECT.GET.S"
            msg = await client.request(get, b'{"seq":3}')
            assert (msg.data, msg.get("Nats-Sequence"), msg.get("Nats-Subject")) == (b"3", "3", "s.1")
            assert msg.get("Nats-Stream") == "S"
            stamp = msg.get("Nats-Time-Stamp")
            assert (await client.request(get, b'{"last_by_subj":"s.1"}')).data == b"9"
            assert (await client.request(get, b'{"last_by_subj":"s.*"}')).data == b"10"
            assert (await client.request(get, b'{"next_by_subj":"s.0","seq":3}')).data == b"4"
            assert (await client.request(get, b'{"start_time":"%b"}' % (stamp or "").encode())).data == b"3"
            assert (await client.request(f"{get}.s.0")).data == b"10"
            assert (await client.request(get, b'{"seq":99}')).status == 404
            assert (await client.request(get, b"")).status == 408
            batch = await client.gather(get, b'{"seq":1,"batch":4,"next_by_subj":"s.1"}')
            assert [m.data for m in batch[:-1]] == [b"1", b"3", b"5", b"7"]
            assert batch[-1].header.startswith(b"NATS/1.0 204 EOB\r\n")
            assert (batch[-1].get("Nats-Num-Pending"), batch[-1].get("Nats-Last-Sequence")) == ("1", "7")


async def test_a_stream_without_a_subject_match_has_no_responders(tidy: ProcessCluster) -> None:
    async with await tidy[2].connect() as client:
        await create_stream(client, "S", ["s"], 3)
        assert (await client.request("nobody", b"x")).status == 503
        assert (await client.request("$JS.API.DIRECT.GET.NOPE", b'{"seq":1}')).status == 503


@pytest.mark.parametrize(("replicas", "storage"), [(1, "file"), (1, "memory"), (3, "memory")])
async def test_other_replica_counts_and_storage(tidy: ProcessCluster, replicas: int, storage: str) -> None:
    clients = [await node.connect() for node in tidy.nodes]
    await create_stream(clients[0], "S", ["s"], replicas, storage)
    for at, client in enumerate(clients):
        ledger = await publish_all(client, "s", payloads(200, f"c{at}"))
        assert len(ledger.acked) == 200
    for client in clients:
        await wait_direct(client, "S", 600)
        assert len(await read_all(client, "S")) == 600
        client.close()


async def test_delete_and_purge_reach_every_node(tidy: ProcessCluster) -> None:
    async with await tidy[0].connect() as client, await tidy[2].connect() as other:
        await create_stream(client, "S", ["s.>"], 3)
        await publish_all(client, "s.a", payloads(50))
        await publish_all(client, "s.b", payloads(10, "b"))
        assert (await other.api("STREAM.PURGE.S", {"filter": "s.a"}))["purged"] == 50
        await tidy.wait_current("S")
        for node in tidy.nodes:
            async with await node.connect() as reader:

                async def purged(reader: Client = reader) -> bool:
                    return len(await read_all(reader, "S")) <= 10

                await eventually(purged, 10, f"{node.name} does not see the purge")
                stored = await read_all(reader, "S")
                assert sorted(stored.values()) == sorted(payloads(10, "b"))
        assert (await other.api("STREAM.DELETE.S"))["success"] is True
        assert (await client.api("STREAM.NAMES", {}))["total"] == 0
        assert (await client.request("s.a", b"x")).status == 503


@pytest.mark.ours("nats-server has no such fields")
async def test_reads_say_and_keep_how_fresh_they_are(shared: ProcessCluster) -> None:
    """Every form, through every node, with one that is frozen meanwhile."""
    async with await shared[0].connect() as client:
        await create_stream(client, "FRESH", ["fresh.*"], 3, allow_direct=True)
        for number in range(1, 4):
            ack = (await client.request("fresh.a", b"%d" % number)).json()
    assert ack["seq"] == 3
    get, clients = "$JS.API.DIRECT.GET.FRESH", [await node.connect() for node in shared.nodes]
    for one in clients:
        for suffix, body, headers in (
            ("", b'{"last_by_subj":"fresh.a","min_last_seq":3,"read_info":true}', {}),
            ("", b'{"last_by_subj":"fresh.a","consistency":"linearizable","read_info":true}', {}),
            (".fresh.a", b'{"min_last_seq":3,"read_info":true}', {}),
            (".fresh.a", b"", {"Nats-Min-Last-Sequence": "3", "Nats-Read-Info": "true"}),
            (".fresh.a", b"", {"Nats-Max-Staleness": "1s", "Nats-Read-Info": "true"}),
            ("", b'{"seq":3}', {"Nats-Read-Consistency": "session", "Nats-Read-Info": "true"}),
        ):
            answer = await one.request(get + suffix, body, 5.0, headers)
            assert answer.data == b"3", (body, headers, answer.header)
            assert answer.get("Nats-Applied-Sequence") == "3" and answer.get("Nats-Answered-By")
        plain = await one.request(get, b'{"seq":3}')
        assert plain.get("Nats-Applied-Sequence") is None, "never by default"
        led = await one.request("$JS.API.DIRECT_LEADER.GET.FRESH.fresh.a", b'{"read_info":true}')
        assert (led.data, led.get("Nats-Answered-As")) == (b"3", "leader")
        refused = await one.request(get, b'{"seq":3,"min_last_seq":9}', 5.0)
        assert (refused.status, refused.get("Nats-Applied-Sequence")) == (503, "3")
        bad = await one.request(get, b'{"seq":3,"consistency":"strong"}')
        assert bad.status == 408 and b"consistency must be" in bad.header
        found = (
            await one.request("$JS.API.STREAM.MSG.GET.FRESH", b'{"seq":3,"min_last_seq":3,"read_info":true}')
        ).json()
        assert found["message"]["seq"] == found["freshness"]["applied_seq"] == 3
        late = (await one.request("$JS.API.STREAM.MSG.GET.FRESH", b'{"seq":3,"min_last_seq":9}', 5.0)).json()
        assert late["error"]["err_code"] == 10180
    for one in clients:
        one.close()
