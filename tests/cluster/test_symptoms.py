"""Symptoms (docs/symptoms) on three servers: what clients and operators are told is what the pages show, and what the
pages say to do helps. The tests share a cluster; the last one ends two of its servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from jetcluster.cli.commands import run_command
from testkit.client import Client, ClientError, Msg, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from tests.symptom_page import shown

pytestmark = [pytest.mark.cluster, pytest.mark.ours("the pages are about this server"), pytest.mark.thorough]

MS = 1_000_000
CONFIG = """
jetstream { max_file_store: 64MB, max_memory_store: 8MB }
max_payload: 10000
accounts {
  $SYS { users: [ { user: sys, password: pw } ] }
  APP {
    jetstream: enabled
    users: [
      { user: app, password: pw }
      { user: reader, password: pw, permissions { publish: "$JS.API.>", subscribe: "_INBOX.>" } }
    ]
  }
  SMALL { jetstream { max_file: 1MB, max_mem: 1KB, max_streams: 2 }, users: [ { user: small, password: pw } ] }
  PLAIN { users: [ { user: plain, password: pw } ] }
  FEW { limits { max_connections: 1 }, users: [ { user: few, password: pw } ] }
}
no_auth_user: app
"""


@pytest.fixture(scope="module")
def nodes(server: str) -> Iterator[ProcessCluster]:
    cluster = ProcessCluster(3, server, config=CONFIG, monitor=True)
    asyncio.run(cluster.__aenter__())
    yield cluster
    asyncio.run(cluster.__aexit__(None))


@pytest.fixture
async def client(nodes: ProcessCluster) -> AsyncIterator[Client]:
    async with await nodes[0].connect() as connected:
        yield connected


def url(node: Node, user: str, password: str = "pw") -> str:
    return f"nats://{user}:{password}@127.0.0.1:{node.port}"


async def said(client: Client, subject: str, data: object = b"", **headers: str) -> str:
    """The answer as clients show it: `description (err_code)`, the status line, or the body."""
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return text_of(await client.request(subject, body, 8.0, headers=headers or None))


def text_of(answer: Msg) -> str:
    if answer.status:
        return answer.header.partition(b"\r\n")[0].decode()
    reply = json.loads(answer.data) if answer.data.startswith(b"{") else {}
    error = reply.get("error")
    return f"{error['description']} ({error['err_code']})" if error else answer.data.decode()


async def create(client: Client, name: str, **config: Any) -> str:
    return await said(client, f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [name], **config})


async def findings(node: Node) -> str:
    page = await node.monitor("findingsz?cluster=1")
    return "\n".join(f"{one['code']}  {one['what']}\n{one['why']}" for one in page["findings"])


async def found(node: Node, code: str, about: str = "") -> str:
    """The findings, once one of them has the code and the text."""
    seen = ""

    async def there() -> bool:
        nonlocal seen
        seen = await findings(node)
        return any(line.startswith(code) and about in line for line in seen.splitlines())

    await eventually(there, 20.0, f"no finding {code}", node, every=0.2)
    return seen


async def test_no_stream_takes_the_subject(nodes: ProcessCluster, client: Client) -> None:
    shown("no-responders", await said(client, "none.1", b"x"))
    await create_stream(client, "NONE", ["none.>"], 3)
    assert '"seq":1' in await said(client, "none.1", b"x")


async def test_an_account_is_full(nodes: ProcessCluster) -> None:
    async with await Client.connect(url(nodes[0], "small")) as small:
        shown("insufficient-storage-resources-available-10047", await create(small, "S", max_bytes=2 << 20))
        refused = await create(small, "S", max_bytes=2 << 20, storage="memory")
        shown("insufficient-memory-resources-available-10028", refused)
        await create_stream(small, "A", ["a"], 1)
        await create_stream(small, "B", ["b"], 1)
        shown("maximum-number-of-streams-reached-10027", await create(small, "C"))
        refused = ""

        async def full() -> bool:
            nonlocal refused
            answers = [await said(small, "a", b"x" * 9000) for _ in range(10)]
            refused = next((answer for answer in answers if "seq" not in answer), "")
            return bool(refused)

        await eventually(full, 20.0, "more fits than may be", every=0.0)

        def told() -> bool:
            return "JetStream account limits exceeded" in "\n".join(node.log() for node in nodes.nodes)

        await eventually(told, 10.0, "no line in a log")
        log = "\n".join(node.log() for node in nodes.nodes)
        shown("resource-limits-exceeded-for-account-10002", refused, log)
        await small.api("STREAM.PURGE.A")

        async def taken() -> bool:  # the servers tell each other what they hold
            return '"seq"' in await said(small, "a", b"x")

        await eventually(taken, 10.0, "still full after the purge", every=0.1)
    seen = await found(nodes[0], "JC321", "10047")
    assert "the limit is 1.0 MiB, streams have reserved 0 B, 1.0 MiB are left" in seen


async def test_an_account_has_no_jetstream(nodes: ProcessCluster, client: Client) -> None:
    async with await Client.connect(url(nodes[0], "plain")) as plain:
        shown("jetstream-not-enabled-for-account-10039", await said(plain, "$JS.API.INFO"))
        shown("stream-not-found-10059", await said(client, "$JS.API.STREAM.INFO.A"))
    async with await Client.connect(url(nodes[0], "small")) as small:
        assert (await small.api("STREAM.INFO.A"))["config"]["name"] == "A"


async def test_no_server_fits(nodes: ProcessCluster, client: Client) -> None:
    few = await create(client, "FIT", num_replicas=5)
    tags = await create(client, "TAGS", num_replicas=3, placement={"tags": ["ssd"]})
    large = await create(client, "LARGE", num_replicas=3, max_bytes=1 << 30)
    log = "\n".join(node.log() for node in nodes.nodes)
    shown("no-suitable-peers-for-placement-10005", few, tags, large, log)
    assert "seq" not in few and "did_create" in await create(client, "FIT", num_replicas=3, max_bytes=1 << 20)


async def test_a_stream_is_full(client: Client) -> None:
    await create_stream(client, "FULL", ["full"], 3, discard="new", max_msgs=2)
    await create_stream(client, "BYTES", ["bytes"], 3, discard="new", max_bytes=100)
    for _ in range(2):
        await said(client, "full", b"x")
    shown("maximum-messages-exceeded-10077", await said(client, "full", b"x"), await said(client, "bytes", b"x" * 200))
    await client.api("STREAM.PURGE.FULL")
    assert '"seq":3' in await said(client, "full", b"x")


async def test_another_writer_was_first(client: Client) -> None:
    await create_stream(client, "CAS", ["cas"], 3)
    for _ in range(2):
        await said(client, "cas", b"x")
    expected = {"Nats-Expected-Last-Subject-Sequence": "1"}
    shown("wrong-last-sequence-10071", await said(client, "cas", b"x", **expected))
    assert '"seq":3' in await said(client, "cas", b"x", **{"Nats-Expected-Last-Subject-Sequence": "2"})


async def test_a_name_or_a_subject_is_taken(client: Client) -> None:
    await create_stream(client, "TAKEN", ["taken.>"], 1)
    other = await create(client, "TAKEN", subjects=["other"])
    shown("stream-name-already-in-use-10058", other, await create(client, "MORE", subjects=["taken.1"]))
    assert "did_create" in await create(client, "MORE", subjects=["more.1"])


async def test_a_message_is_too_large(nodes: ProcessCluster, client: Client) -> None:
    await create_stream(client, "SIZE", ["size"], 3, max_msg_size=100)
    stream = await said(client, "size", b"x" * 200)
    async with await nodes[0].connect() as other:
        other.publish("size", b"x" * 20_000)
        with pytest.raises(ClientError) as caught:
            await other.flush()
    shown(
        "message-size-exceeds-maximum-allowed-10054",
        stream,
        f"-ERR {caught.value.args[0].removeprefix('connection lost: ')}",
    )
    await client.api("STREAM.UPDATE.SIZE", {"name": "SIZE", "subjects": ["size"], "num_replicas": 3})
    assert '"seq":1' in await said(client, "size", b"x" * 200)


async def test_a_user_may_not(nodes: ProcessCluster, client: Client) -> None:
    await create_stream(client, "MAY", ["may.>"], 1)
    async with await Client.connect(url(nodes[0], "reader")) as reader:
        texts = []
        for forbidden in (lambda: reader.publish("may.1", b"x"), lambda: reader.subscribe("may.>", lambda _: None)):
            forbidden()
            await reader.flush()
            texts.append(f"-ERR {reader.last_error.decode()}")
        with pytest.raises(TimeoutError):  # the answer that the page says does not come
            await reader.request("may.1", b"x", 0.3)
    shown("permissions-violation", *texts)


async def test_a_login_is_refused(nodes: ProcessCluster) -> None:
    with pytest.raises(ClientError) as caught:
        await Client.connect(url(nodes[0], "app", "wrong"))
    log = await logged(nodes[0], "authentication refused")
    shown("authorization-violation", f"-ERR {caught.value}", log)
    async with await Client.connect(url(nodes[0], "few")):
        with pytest.raises(ClientError) as caught:
            await Client.connect(url(nodes[0], "few"))
    shown("maximum-account-active-connections-exceeded", f"-ERR {caught.value}")
    async with await Client.connect(url(nodes[0], "few")):
        pass


async def logged(node: Node, text: str) -> str:
    await eventually(lambda: text in node.log(), 10.0, f"not in the log: {text}", node)
    return node.log()


async def test_messages_are_gone(client: Client, nodes: ProcessCluster) -> None:
    await create_stream(client, "GONE", ["gone"], 3, max_msgs=3)
    for _ in range(5):
        await said(client, "gone", b"x")
    get = await said(client, "$JS.API.STREAM.MSG.GET.GONE", {"seq": 1})
    direct = await said(client, "$JS.API.DIRECT.GET.GONE", {"seq": 1})
    shown("no-message-found-10037", get, direct, await found(nodes[0], "JC315", "GONE"))
    assert (await client.api("STREAM.INFO.GONE"))["state"]["first_seq"] == 3
    await create_stream(client, "WISH", ["wish"], 3, retention="interest")
    answer = await said(client, "wish", b"x")
    shown("a-message-is-acknowledged-and-not-there", answer, await found(nodes[0], "JC320"))
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    await client.api("CONSUMER.CREATE.WISH.C", {"stream_name": "WISH", "config": consumer})
    await said(client, "wish", b"x")
    assert (await client.api("STREAM.INFO.WISH"))["state"]["messages"] == 1


async def test_a_repeated_message_is_stored_twice(client: Client) -> None:
    await create_stream(client, "TWICE", ["twice"], 3, duplicate_window=200 * MS)
    name = {"Nats-Msg-Id": "1"}
    first, again = await said(client, "twice", b"x", **name), await said(client, "twice", b"x", **name)
    assert '"duplicate"' in again
    await asyncio.sleep(0.4)
    late = await said(client, "twice", b"x", **name)
    shown("a-message-is-stored-twice", first, late)
    assert "duplicate" not in late
    config = (await client.api("STREAM.INFO.TWICE"))["config"] | {"duplicate_window": 60_000 * MS}
    await client.api("STREAM.UPDATE.TWICE", config)
    assert '"duplicate"' in (await said(client, "twice", b"x", **name), await said(client, "twice", b"x", **name))[1]


async def test_a_server_is_not_emptied(client: Client, nodes: ProcessCluster) -> None:
    await create_stream(client, "STAYS", ["stays"], 3)
    async with await Client.connect(url(nodes[0], "sys")) as system:
        refused = await said(system, "$JS.API.SERVER.EVACUATE", {"peer": "n3"})
    shown("a-server-is-not-emptied-10041", refused)


async def test_a_stream_went_with_the_disk_of_its_server(
    client: Client, nodes: ProcessCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    other = nodes[0]
    for number in range(6):
        await create_stream(client, "ONE", ["one"], 1)
        lost = nodes.node((await client.api("STREAM.INFO.ONE"))["cluster"]["leader"])
        if lost is not other:
            break
        await client.api("STREAM.DELETE.ONE")
        await create_stream(client, f"FILLS{number}", [f"fills.{number}"], 1)
    assert lost is not other
    lost.kill9()
    lost.store.rename(lost.root / "old")
    await lost.start()
    told = await found(other, "JC324", "ONE")
    info = await said(client, "$JS.API.STREAM.INFO.ONE")
    shown("a-stream-is-on-no-server-any-more", info, told, await status(other, capsys))
    for name in (await client.api("STREAM.NAMES"))["streams"]:
        if name == "ONE" or name.startswith("FILLS"):
            await client.api(f"STREAM.DELETE.{name}")

    async def gone() -> bool:  # other tests' streams with one replica may have been on that disk, too
        return "ONE is on no server" not in await findings(other)

    await eventually(gone, 20.0, "the finding stays", other, every=0.2)


async def test_a_majority_is_gone(nodes: ProcessCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The last test: one server of three is left."""
    first = nodes[0]
    async with await first.connect() as client:
        await create_stream(client, "LEFT", ["left"], 3)
        await said(client, "left", b"x")
        await nodes.wait_current("LEFT")
        for node in nodes.nodes[1:]:
            node.kill9()
        shown("a-server-of-the-cluster-is-absent", await found(first, "JC101", "n3"), await status(first, capsys))
        await eventually(lambda: _leaderless(client), 20.0, "a leader without a majority", first, every=0.2)
        health = (await first.monitor("healthz"))["error"]
        refused = await create(client, "NEW")
        shown("the-cluster-has-no-leader", health, refused, await found(first, "JC201"))
        published, info = await said(client, "left", b"x"), await said(client, "$JS.API.STREAM.INFO.LEFT")
        log = await logged(first, "stream has no quorum")
        shown("a-stream-has-no-leader", published, info, await found(first, "JC301", "LEFT"), log)
        direct = await client.request("$JS.API.DIRECT.GET.LEFT", b'{"seq":1}', 5.0)
        assert direct.data == b"x"
        shown("a-read-is-older-than-the-last-write", await said(client, "$JS.API.STREAM.MSG.GET.LEFT", {"seq": 1}))
        risks = await first.monitor("healthz?safe-to-restart=true")
        shown("a-server-may-not-be-restarted", risks["error"], *risks["first"])
    for node in nodes.nodes[1:]:
        await node.start()
    await nodes.wait_current("LEFT")
    async with await first.connect() as client:
        assert '"seq":2' in await said(client, "left", b"x")


async def _leaderless(client: Client) -> bool:
    return "10008" in await said(client, "$JS.API.STREAM.INFO.LEFT")


async def status(node: Node, capsys: pytest.CaptureFixture[str]) -> str:
    words = ["status", "-s", f"nats://127.0.0.1:{node.port}", "--user", "sys", "--password", "pw"]
    await asyncio.to_thread(run_command, words)
    return capsys.readouterr().out
