"""Stock nats-py against the server: what an application does on its first day."""

from __future__ import annotations

import asyncio

import nats
import nats.errors
import nats.js.api
import nats.js.errors
import pytest
from nats.aio.client import Client as NATS

from testkit.harness import ProcessCluster

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("tidy")]


async def test_core(nc: NATS) -> None:
    got: list[bytes] = []
    done = asyncio.Event()

    async def take(msg: object) -> None:
        got.append(msg.data)  # type: ignore[attr-defined]
        if len(got) == 100:
            done.set()

    await nc.subscribe("a.*", cb=take)
    await nc.flush()
    for n in range(100):
        await nc.publish(f"a.{n}", b"%d" % n)
    await asyncio.wait_for(done.wait(), 5)
    assert got == [b"%d" % n for n in range(100)]
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody.home", b"")


async def test_request_reply_and_queue_group_across_nodes(tidy: ProcessCluster) -> None:
    served = [0, 0, 0]
    connections = [await nats.connect(url) for url in tidy.urls]

    def responder(at: int):  # type: ignore[no-untyped-def]
        async def answer(msg: object) -> None:
            served[at] += 1
            await msg.respond(b"ok " + msg.data)  # type: ignore[attr-defined]

        return answer

    for at, connection in enumerate(connections):
        await connection.subscribe("svc", queue="q", cb=responder(at))
        await connection.flush()
    await asyncio.sleep(0.2)
    for n in range(150):
        reply = await connections[n % 3].request("svc", b"%d" % n, timeout=5)
        assert reply.data == b"ok %d" % n
    assert sum(served) == 150
    for connection in connections:
        await connection.close()


async def test_headers_survive_the_mesh(tidy: ProcessCluster) -> None:
    a, b = await nats.connect(tidy.urls[0]), await nats.connect(tidy.urls[1])
    sub = await b.subscribe("h")
    await b.flush()
    await asyncio.sleep(0.2)
    await a.publish("h", b"body", headers={"X-One": "1", "Y": "two words"})
    msg = await sub.next_msg(timeout=5)
    assert (msg.data, msg.headers) == (b"body", {"X-One": "1", "Y": "two words"})
    await a.close()
    await b.close()


async def test_stream_life(nc: NATS) -> None:
    js = nc.jetstream()
    config = nats.js.api.StreamConfig(name="S", subjects=["s.>"], num_replicas=3, allow_direct=True)
    created = await js.add_stream(config)
    assert created.cluster is not None
    assert created.cluster.leader in ("n1", "n2", "n3")
    assert (await js.publish("s.a", b"1")).seq == 1
    assert (await js.publish("s.b", b"2", headers={"Nats-Msg-Id": "x"})).seq == 2
    again = await js.publish("s.b", b"2", headers={"Nats-Msg-Id": "x"})
    assert (again.seq, again.duplicate) == (2, True)
    with pytest.raises(nats.js.errors.APIError) as wrong:
        await js.publish("s.b", b"3", headers={"Nats-Expected-Last-Sequence": "1"})
    assert wrong.value.err_code == 10071

    assert (await js.get_msg("S", 1)).data == b"1"
    assert (await js.get_last_msg("S", "s.b")).data == b"2"
    direct = await js.get_msg("S", 2, direct=True)
    assert (direct.data, direct.subject) == (b"2", "s.b")
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.get_msg("S", 77)

    info = await js.stream_info("S")
    assert (info.state.messages, info.state.last_seq, info.config.num_replicas) == (2, 2, 3)
    assert [s.config.name for s in await js.streams_info()] == ["S"]
    assert await js.find_stream_name_by_subject("s.a") == "S"
    assert (await js.account_info()).streams == 1

    config.subjects = ["s.>", "t"]
    assert (await js.update_stream(config)).config.subjects == ["s.>", "t"]
    assert (await js.publish("t", b"3")).seq == 3
    await js.purge_stream("S", subject="s.a")
    assert (await js.stream_info("S")).state.messages == 2
    await js.delete_stream("S")
    with pytest.raises(nats.js.errors.NotFoundError):
        await js.stream_info("S")


async def test_publish_async(nc: NATS) -> None:
    js = nc.jetstream(publish_async_max_pending=1000)
    await js.add_stream(name="S", subjects=["s"], num_replicas=3)
    futures = [await js.publish_async("s", b"%d" % n) for n in range(3000)]
    acks = await asyncio.wait_for(asyncio.gather(*futures), 20)
    assert [a.seq for a in acks] == list(range(1, 3001))


async def test_limits(nc: NATS) -> None:
    js = nc.jetstream()
    await js.add_stream(name="LAST", subjects=["last.*"], max_msgs_per_subject=2, num_replicas=3)
    for n in range(5):
        await js.publish("last.x", b"%d" % n)
    await js.publish("last.y", b"y")
    assert (await js.stream_info("LAST")).state.messages == 3
    await js.add_stream(name="FULL", subjects=["full"], max_msgs=3, discard=nats.js.api.DiscardPolicy.NEW)
    for _ in range(3):
        await js.publish("full", b"x")
    with pytest.raises(nats.js.errors.APIError) as refused:
        await js.publish("full", b"x")
    assert refused.value.err_code == 10077
    await js.add_stream(name="SMALL", subjects=["small"], max_msg_size=10)
    with pytest.raises(nats.js.errors.APIError) as large:
        await js.publish("small", b"x" * 11)
    assert large.value.err_code == 10054
    await js.add_stream(name="AGE", subjects=["age"], max_age=1, num_replicas=3)
    await js.publish("age", b"x")
    for _ in range(60):
        if (await js.stream_info("AGE")).state.messages == 0:
            break
        await asyncio.sleep(0.05)
    assert (await js.stream_info("AGE")).state.messages == 0


async def test_errors_carry_their_codes(nc: NATS) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s.>"])
    with pytest.raises(nats.js.errors.BadRequestError) as overlap:
        await js.add_stream(name="T", subjects=["s.x"])
    assert overlap.value.err_code == 10065
    with pytest.raises(nats.js.errors.BadRequestError) as used:
        await js.add_stream(name="S", subjects=["other"])
    assert used.value.err_code == 10058
    with pytest.raises(nats.js.errors.APIError):
        await js.add_stream(name="R5", subjects=["r5"], num_replicas=5)
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await js.publish("unbound", b"")


async def test_client_moves_on_when_its_node_dies(cluster: ProcessCluster) -> None:
    moved = asyncio.Event()

    async def reconnected() -> None:
        moved.set()

    async def quiet(_error: Exception) -> None:
        """The lost connection: expected here."""

    nc = await nats.connect(cluster.urls[0], reconnected_cb=reconnected, error_cb=quiet, reconnect_time_wait=0.05)
    assert len(nc.discovered_servers) >= 2, "INFO connect_urls did not name the other nodes"
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"], num_replicas=3)
    await js.publish("s", b"1")
    cluster[0].kill9()
    await asyncio.wait_for(moved.wait(), 10)
    for _ in range(100):
        try:
            ack = await js.publish("s", b"2", timeout=1, headers={"Nats-Msg-Id": "two"})
            break
        except (nats.errors.Error, TimeoutError):
            await asyncio.sleep(0.1)
    assert ack.seq == 2
    await nc.close()
