"""The specification's object API on `$OBJ.<bucket>`, with a raw client on real nodes (docs/objects.md).

nats-server has no such thing: these tests run against jetcluster only.
"""

from __future__ import annotations

import asyncio
import json
import random
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest

from testkit.client import Client, ClientError, Msg, create_stream
from testkit.harness import Node, ProcessCluster, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.monitored, pytest.mark.thorough]

CHUNK = 64 * 1024


@pytest.fixture(autouse=True)
def only_ours(server: str) -> None:
    if server != "jetcluster":
        pytest.skip("nats-server has no server-side object API")


@pytest.fixture
async def client(tidy: ProcessCluster) -> AsyncIterator[Client]:
    async with await tidy[0].connect() as client:
        yield client


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def pieces(data: bytes, size: int = CHUNK) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def digest(data: bytes) -> str:
    return "sha-256=" + urlsafe_b64encode(sha256(data).digest()).decode()


async def ask(client: Client, subject: str, body: object = None, **options: Any) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    msg = await client.request(subject, data, 10.0, **options)
    assert not msg.status, msg.header
    return msg.json()


def meta(bucket: str, name: str, nonce: str, data: bytes, chunks: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "nonce": nonce, "bucket": bucket, "chunks": chunks, "size": len(data), **more}


async def put(client: Client, bucket: str, name: str, nonce: str, data: bytes, **more: Any) -> dict[str, Any]:
    """All chunks at once; the answer to the last one."""
    parts = pieces(data)
    begun = await ask(client, f"$OBJ.{bucket}.info.{name}", meta(bucket, name, nonce, data, len(parts), **more))
    assert begun["stream"] == f"OBJ_{bucket}", begun
    futures = [client.request_soon(f"$OBJ.{bucket}.chunks.{nonce}", part) for part in parts]
    async with asyncio.timeout(30):
        answers = [(await future).json() for future in futures]
    for answer in answers[:-1]:
        assert set(answer) == {"stream", "seq"}, answer
    return answers[-1]


async def get(client: Client, bucket: str, name: str) -> tuple[dict[str, str | None], bytes]:
    """Header fields of the reply, content. TimeoutError when chunks are missing."""
    got: list[Msg] = []
    whole = asyncio.Event()
    replies: list[Msg] = []

    def complete() -> None:
        if replies and len(got) >= int(replies[0].get("Nats-Object-Chunks") or 0):
            whole.set()

    def take(msg: Msg) -> None:
        assert replies, "a chunk came before the reply"
        got.append(msg)
        complete()

    def head(msg: Msg) -> None:
        replies.append(msg)
        complete()

    inbox, reply = f"deliver.{random.randrange(1 << 60):x}", f"_INBOX.get.{random.randrange(1 << 60):x}"
    sids = [client.subscribe(inbox, take), client.subscribe(reply, head)]
    client.publish(f"$OBJ.{bucket}", json.dumps({"name": name, "deliver_subject": inbox}).encode(), reply.encode())
    try:
        async with asyncio.timeout(20):
            await whole.wait()
    except TimeoutError:
        raise TimeoutError(f"{len(got)} chunks, {replies and (replies[0].header, replies[0].data)}") from None
    finally:
        for sid in sids:
            client.unsubscribe(sid)
    assert all(not msg.header for msg in got)
    fields = {key: replies[0].get(f"Nats-Object-{key}") for key in ("Size", "Chunks", "Digest")}
    return fields, b"".join(msg.data for msg in got)


def without_time(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in ("mtime", "stream", "seq")}


@pytest.mark.parametrize("replicas", [1, 3], ids=["R1", "R3"])
async def test_objects_live_their_life(tidy: ProcessCluster, client: Client, replicas: int) -> None:
    """Through another node than the one that watches and reads; everything a bucket can be asked for."""
    await create_stream(client, "OBJ_b", ["$OBJ.b.>"], replicas)
    seen: list[dict[str, Any]] = []
    data = content(300_000)
    async with await tidy[1].connect() as other:
        other.subscribe("$OBJ.b.info.>", lambda msg: seen.append(msg.json()))
        await other.flush()
        await asyncio.sleep(0.2)
        info = await put(client, "b", "cat", "n1", data, description="a cat", headers={"k": ["v"]})
        expected = {
            "name": "cat", "description": "a cat", "nonce": "n1", "bucket": "b", "chunks": 5, "size": 300_000,
            "digest": digest(data), "deleted": False, "headers": {"k": ["v"]},
        }  # fmt: skip
        assert without_time(info) == expected
        assert info["stream"] == "OBJ_b"
        assert await get(other, "b", "cat") == (
            {"Size": "300000", "Chunks": "5", "Digest": digest(data)}, data
        )  # fmt: skip
        assert without_time(await ask(other, "$OBJ.b", {"name": "cat"})) == expected

        newer = content(100_000, 2)
        assert (await put(other, "b", "cat", "n2", newer))["digest"] == digest(newer)
        assert (await get(client, "b", "cat"))[1] == newer
        listed = await ask(client, "$OBJ.b")
        assert (listed["bucket"], listed["total"], [o["nonce"] for o in listed["objects"]]) == ("b", 1, ["n2"])
        # record, older info and older chunks are gone
        assert (await client.api("STREAM.INFO.OBJ_b"))["state"]["messages"] == 3

        assert await ask(other, "$OBJ.b", {"name": "cat", "action": "delete"}) == {"success": True}
        assert await ask(client, "$OBJ.b", {"name": "cat", "action": "delete"}) == {"success": True}
        assert await ask(client, "$OBJ.b.delete.cat") == {"success": True}
        gone = await ask(client, "$OBJ.b", {"name": "cat"})
        assert (gone["deleted"], gone["size"], gone["chunks"]) == (True, 0, 0)
        assert (await ask(client, "$OBJ.b", b"{}"))["objects"] == []
        assert (await client.api("STREAM.INFO.OBJ_b"))["state"]["messages"] == 1
        await eventually(lambda: len(seen) >= 3, 5, "three infos seen")
        await asyncio.sleep(0.2)
        assert [(i["nonce"], i["deleted"]) for i in seen] == [("n1", False), ("n2", False), ("n2", True)]
        assert without_time(seen[0]) == expected


async def test_what_is_refused(client: Client) -> None:
    await create_stream(client, "OBJ_b", ["$OBJ.b.>"], 3)
    data = content(1000)

    async def code(subject: str, body: object = None) -> tuple[int, int]:
        error = (await ask(client, subject, body))["error"]
        assert set(error) == {"code", "err_code", "description"}
        return error["code"], error["err_code"]

    assert await code("$OBJ.none", {"name": "x"}) == (404, 10059)
    assert await code("$OBJ.b", {"name": "x"}) == (404, 11001)
    assert await code("$OBJ.b", {"name": "x", "deliver_subject": "d"}) == (404, 11001)
    assert await code("$OBJ.b", {"name": "x", "action": "delete"}) == (404, 11001)
    assert await code("$OBJ.b", {"name": "x", "deliver_subject": "a.*"}) == (400, 11007)
    assert await code("$OBJ.b", b"[") == (400, 11005)
    assert await code("$OBJ.b.info.x", b"no json") == (400, 11005)
    assert await code("$OBJ.b.info.x", {"name": "x", "nonce": "n", "chunks": 1}) == (400, 11005)
    assert await code("$OBJ.b.info.y", meta("b", "x", "n", data, 1)) == (400, 11005)
    assert await code("$OBJ.b.upload.n", b"{}") == (400, 11005)
    assert await code("$OBJ.b.chunks.n", data) == (404, 11002)
    assert (await client.api("STREAM.INFO.OBJ_b"))["state"]["last_seq"] == 0, "nothing of that is stored"

    async def upload(nonce: str, chunks: int, parts: list[bytes], **more: Any) -> list[dict[str, Any]]:
        whole = {**meta("b", "x", nonce, data, chunks), **more}
        await ask(client, "$OBJ.b.info.x", whole)
        return [await ask(client, f"$OBJ.b.chunks.{nonce}", part) for part in parts]

    for nonce, chunks, parts, more, expected in [
        ("small", 2, [data[:500], data[:499]], {}, 11003),
        ("large", 2, [data[:500], data[:501]], {}, 11003),
        ("early", 3, [data, b"x"], {}, 11003),
        ("wrong", 1, [data], {"digest": digest(b"")}, 11004),
    ]:
        answers = await upload(nonce, chunks, parts, **more)
        assert answers[-1]["error"]["err_code"] == expected, (nonce, answers)
        assert await code(f"$OBJ.b.chunks.{nonce}", b"y") == (400, 11008)
    await eventually_empty(client)
    good = await upload("good", 1, [data], digest=digest(data))
    assert good[-1]["nonce"] == "good"
    assert await code("$OBJ.b.info.x", meta("b", "x", "good", b"other", 1)) == (400, 11005)
    assert (await ask(client, "$OBJ.b.chunks.good", data))["nonce"] == "good", "the last chunk sent once more"
    assert await code("$OBJ.b.chunks.good", b"z") == (404, 11002)


async def eventually_empty(client: Client) -> None:
    for _ in range(100):
        if (await client.api("STREAM.INFO.OBJ_b"))["state"]["messages"] == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("aborted uploads leave something behind")


async def stream_leader(cluster: ProcessCluster, client: Client, stream: str) -> Node:
    for _ in range(200):
        try:
            name = (await client.api(f"STREAM.INFO.{stream}"))["cluster"].get("leader")
        except (ClientError, TimeoutError):
            name = None
        if name:
            return next(node for node in cluster.nodes if node.name == name)
        await asyncio.sleep(0.05)
    raise AssertionError(f"no leader of {stream}")


async def insist(client: Client, subject: str, data: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Publishes until somebody answers: a leader that was killed answers nothing."""
    for _ in range(100):
        try:
            msg = await client.request(subject, data, 1.0, headers)
        except TimeoutError:
            continue
        if not msg.status:
            return msg.json()
        await asyncio.sleep(0.05)
    raise AssertionError(f"nobody takes {subject}")


async def test_uploads_survive_the_leader(cluster: ProcessCluster) -> None:
    """SIGKILL between two chunks: the next chunk goes on where the last ack was, with whoever leads now. Twice, and
    once right after the last chunk, whose answer may be lost."""
    first = await cluster[0].connect()
    await create_stream(first, "OBJ_b", ["$OBJ.b.>"], 3)
    for round in range(3):
        leader = await stream_leader(cluster, first, "OBJ_b")
        first.close()
        survivor = next(node for node in cluster.nodes if node is not leader)
        client = await survivor.connect()
        data = content(40 * 20_000, round)
        parts = pieces(data, 20_000)
        nonce = f"n{round}"
        subject = f"$OBJ.b.chunks.{nonce}"
        await insist(client, "$OBJ.b.info.o", json.dumps(meta("b", "o", nonce, data, len(parts))).encode())
        kill_after = 39 if round == 2 else 17
        for number, part in enumerate(parts):
            if number == kill_after:
                if round == 2:
                    client.publish(subject, part, b"nobody", {"Nats-Msg-Id": f"{nonce}.{number}"})
                    await client.flush()
                leader.kill9()
            answer = await insist(client, subject, part, {"Nats-Msg-Id": f"{nonce}.{number}"})
            assert "error" not in answer, (number, answer)
        assert (answer.get("nonce"), answer.get("digest")) == (nonce, digest(data))
        assert await get(client, "b", "o") == (
            {"Size": str(len(data)), "Chunks": "40", "Digest": digest(data)}, data
        )  # fmt: skip
        assert (await client.api("STREAM.INFO.OBJ_b"))["state"]["messages"] == 41
        await leader.start()
        first = client
    first.close()


async def test_uploads_under_way_are_counted(tidy: ProcessCluster, client: Client) -> None:
    await create_stream(client, "OBJ_b", ["$OBJ.b.>"], 3)
    for number in range(3):
        await ask(client, f"$OBJ.b.info.o{number}", meta("b", f"o{number}", f"n{number}", b"12", 2))

    async def counted() -> int:
        return sum([(await node.monitor("jsz"))["object_uploads"] for node in tidy.nodes])

    assert await counted() == 3
    for part in (b"1", b"2"):
        await ask(client, "$OBJ.b.chunks.n1", part)
    assert await counted() == 2


async def test_watching_with_a_consumer(client: Client) -> None:
    """A push consumer on the infos also shows objects that came, or were deleted, before it was created."""
    await create_stream(client, "OBJ_b", ["$OBJ.b.>"], 3)
    await put(client, "b", "cat", "n1", b"x")
    await put(client, "b", "cat", "n2", b"y")
    await put(client, "b", "dog", "n3", b"z")
    seen: list[dict[str, Any]] = []
    client.subscribe("watch", lambda msg: seen.append(msg.json()))
    config = {"deliver_subject": "watch", "filter_subject": "$OBJ.b.info.>", "ack_policy": "none",
              "deliver_policy": "last_per_subject"}  # fmt: skip
    await client.api("CONSUMER.CREATE.OBJ_b", {"stream_name": "OBJ_b", "config": config})
    assert await ask(client, "$OBJ.b", {"name": "cat", "action": "delete"}) == {"success": True}
    await eventually(lambda: len(seen) >= 3, 5, "three infos seen")
    assert [(info["nonce"], info["deleted"]) for info in seen] == [("n2", False), ("n3", False), ("n2", True)]


async def test_real_clients_objects_are_bridged(client: Client) -> None:
    """A bucket of the real layout can be read; one with both layouts is one bucket."""
    data = content(1000)
    name = urlsafe_b64encode(b"a cat").decode()
    real = {
        "name": "a cat", "bucket": "r", "nuid": "U1", "size": 1000, "chunks": 2, "options": {"max_chunk_size": 500},
        "digest": "SHA-256=" + digest(data)[8:],
    }  # fmt: skip
    both = ["$O.w.C.>", "$O.w.M.>", "$OBJ.w.>"]
    for bucket, subjects in (("r", ["$O.r.C.>", "$O.r.M.>"]), ("w", both)):
        await create_stream(client, f"OBJ_{bucket}", subjects, 3, allow_rollup_hdrs=True)
        for part in (data[:500], data[500:]):
            await ask(client, f"$O.{bucket}.C.U1", part)
        await ask(client, f"$O.{bucket}.M.{name}", {**real, "bucket": bucket}, headers={"Nats-Rollup": "sub"})
        info = await ask(client, f"$OBJ.{bucket}", {"name": "a cat"})
        assert (info["nonce"], info["digest"], info["chunks"]) == ("U1", digest(data), 2)
        assert (await get(client, bucket, "a cat"))[1] == data
        assert [o["name"] for o in (await ask(client, f"$OBJ.{bucket}"))["objects"]] == ["a cat"]
    for subject, body in (
        ("$OBJ.r.info.x", meta("r", "x", "n", data, 1)), ("$OBJ.r.chunks.n", b"x"),
        ("$OBJ.r", {"name": "a cat", "action": "delete"}),
    ):  # fmt: skip
        assert (await ask(client, subject, body))["error"]["err_code"] == 11005, subject

    encoded = urlsafe_b64encode(b"a cat").decode().rstrip("=")
    await ask(client, f"$OBJ.w.info.{encoded}", meta("w", "a cat", "N2", b"new", 1))
    assert (await ask(client, "$OBJ.w.chunks.N2", b"new"))["nonce"] == "N2"
    assert (await get(client, "w", "a cat"))[1] == b"new"
    assert (await ask(client, "$OBJ.w"))["total"] == 1
    stone = json.loads(await last_of(client, "OBJ_w", f"$O.w.M.{name}"))
    assert (stone["nuid"], stone["deleted"]) == ("U1", True), "real clients see that theirs is gone"


async def last_of(client: Client, stream: str, subject: str) -> bytes:
    return (await client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", 5.0)).data


async def test_the_domain_is_another_way(server: str) -> None:
    config = "jetstream { domain: hub }\n"
    async with ProcessCluster(3, server, config=config) as cluster, await cluster[0].connect() as client:
        await create_stream(client, "OBJ_b", ["$OBJ.b.>"], 3)
        begun = await ask(client, "$JS.hub.API.$OBJ.b.info.o", meta("b", "o", "n", b"12", 2))
        assert begun == {"stream": "OBJ_b", "domain": "hub", "seq": 1}
        await ask(client, "$JS.hub.API.$OBJ.b.chunks.n", b"1")
        assert (await ask(client, "$OBJ.b.chunks.n", b"2"))["nonce"] == "n"
        assert (await ask(client, "$JS.hub.API.$OBJ.b"))["total"] == 1
        assert (await get(client, "b", "o"))[1] == b"12"
        assert (await ask(client, "$JS.hub.API.$OBJ.none"))["error"]["err_code"] == 10059
        assert await ask(client, "$JS.hub.API.$OBJ.b.delete.o") == {"success": True}
