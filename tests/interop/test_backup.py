"""`nats stream backup` and `restore` against the server, and archives carried to and from the real nats-server."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from jetcluster.cluster.restore_watch import SILENT_SECONDS
from testkit.client import Client, ClientError, Msg
from testkit.consumer_client import Jet
from testkit.harness import Node, ProcessCluster, eventually, find_server
from tests.interop.test_nats_cli import Cli

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.interop,
    pytest.mark.long,
    pytest.mark.usefixtures("tool"),
    pytest.mark.thorough,
]


async def ask(client: Client, subject: str, body: Any = "") -> dict[str, Any]:
    reply = await client.request(f"$JS.API.{subject}", json.dumps(body).encode() if body != "" else b"")
    found: dict[str, Any] = reply.json()
    return found


async def fill(client: Client, stream: str, replicas: int) -> None:
    """300 messages on a few subjects, with and without headers; holes inside and at the end."""
    config = {"name": stream, "subjects": [f"{stream}.>"], "num_replicas": replicas, "description": "to be kept"}
    created = await ask(client, f"STREAM.CREATE.{stream}", config)
    assert "error" not in created, created
    for i in range(1, 301):
        headers = {"Number": str(i)} if i % 3 == 0 else None
        payload = b"m%d " % i * (1 + i % 50 * 20)
        await client.request(f"{stream}.{i % 7}", payload, headers=headers)
    for seq in (1, 2, 50, 51, 120, 299, 300):
        assert (await ask(client, f"STREAM.MSG.DELETE.{stream}", {"seq": seq}))["success"]


async def contents(client: Client, stream: str) -> tuple[dict[str, Any], list[Any]]:
    info = await ask(client, f"STREAM.INFO.{stream}", {"deleted_details": True})
    state = info["state"]
    messages = [await ask(client, f"STREAM.MSG.GET.{stream}", {"seq": seq}) for seq in range(1, state["last_seq"] + 1)]
    for found in messages:
        found.get("message", {}).pop("headers", None)  # ours adds them decoded
        found.pop("error", None)
    return state, messages


async def carry(tool: str, source: Node, target: Node, stream: str, folder: Path) -> None:
    """Backs the stream up, deletes it where it is to go, restores it there, and compares everything."""
    there, here = await source.connect(), await target.connect()
    state, before = await contents(there, stream)
    await Cli(tool, source.url)("stream", "backup", stream, str(folder), "--no-progress")
    if source is target:
        assert (await ask(there, f"STREAM.DELETE.{stream}"))["success"]
    await Cli(tool, target.url)("stream", "restore", str(folder), "--no-progress")
    restored_state, after = await contents(here, stream)
    for found in (state, restored_state):
        found.pop("consumer_count")
    # The time of the last message is that of the last one there: what was behind it is gone on both sides.
    for found in (state, restored_state):
        found.pop("last_ts")
    assert restored_state == state
    assert after == before
    info = await ask(here, f"STREAM.INFO.{stream}")
    assert info["config"]["description"] == "to be kept"
    assert "restoring" not in info["config"]
    ack = (await here.request(f"{stream}.new", b"next")).json()
    assert ack["seq"] == state["last_seq"] + 1
    there.close()
    here.close()


@pytest.mark.parametrize("replicas", [1, 3])
async def test_round_trip(cluster: ProcessCluster, tool: str, tmp_path: Path, replicas: int) -> None:
    client = await cluster[0].connect()
    await fill(client, "KEEP", replicas)
    await carry(tool, cluster[0], cluster[0], "KEEP", tmp_path / "backup")
    if replicas == 3:
        before = await contents(client, "KEEP")
        assert (await ask(client, "STREAM.LEADER.STEPDOWN.KEEP"))["success"]
        assert await contents(client, "KEEP") == before
    assert not any("differs" in node.log() for node in cluster.nodes)
    client.close()


async def test_carried_to_and_from_nats_server(single: ProcessCluster, tool: str, tmp_path: Path) -> None:
    """Its archives are compressed, ours are not; both are of format V2."""
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        for stream, source, target in (("THERE", single[0], peer[0]), ("HERE", peer[0], single[0])):
            client = await source.connect()
            await fill(client, stream, 1)
            await carry(tool, source, target, stream, tmp_path / stream)
            client.close()


@pytest.mark.parametrize("direction", ["ours", "to nats-server", "from nats-server"])
async def test_consumers_come_back(single: ProcessCluster, tool: str, tmp_path: Path, direction: str) -> None:
    if find_server("nats-server") is None:
        pytest.skip("nats-server is not on this machine")
    async with ProcessCluster(1, "nats-server", root=tmp_path / "peer") as peer:
        source = peer[0] if direction == "from nats-server" else single[0]
        target = peer[0] if direction == "to nats-server" else single[0]
        client = await source.connect()
        await ask(client, "STREAM.CREATE.C", {"name": "C", "subjects": ["C.>"]})
        for i in range(9):
            await client.request("C.x", b"%d" % i)
        config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 600_000_000_000, "filter_subject": "C.x"}
        await ask(client, "CONSUMER.CREATE.C.d", {"stream_name": "C", "config": config})
        for i in range(5):
            (msg,) = await Jet(client, "C", 1, "").fetch("d")
            if i != 1:
                await client.request(msg.reply.decode(), b"+ACK")
        before = await ask(client, "CONSUMER.INFO.C.d")
        await Cli(tool, source.url)("stream", "backup", "C", str(tmp_path / "b"), "--no-progress", "--consumers")
        if source is target:
            await ask(client, "STREAM.DELETE.C")
        await Cli(tool, target.url)("stream", "restore", str(tmp_path / "b"), "--no-progress")
        client.close()
        client = await target.connect()
        after = await ask(client, "CONSUMER.INFO.C.d")
        for key in ("num_ack_pending", "num_pending", "num_redelivered"):
            assert after[key] == before[key], (key, after)
        for key in ("delivered", "ack_floor"):
            assert after[key]["stream_seq"] == before[key]["stream_seq"], (key, after)
            assert after[key]["consumer_seq"] == before[key]["consumer_seq"], (key, after)
        (msg,) = await Jet(client, "C", 1, "").fetch("d")
        assert msg.data == b"5"
        client.close()


class Events:
    """Advisories on their way to a client."""

    def __init__(self, client: Client) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []
        for kind in ("SNAPSHOT", "SNAPSHOT_CREATE", "SNAPSHOT_COMPLETE", "RESTORE", "RESTORE_CREATE",
                     "RESTORE_COMPLETE"):  # fmt: skip
            client.subscribe(f"$JS.EVENT.ADVISORY.STREAM.{kind}.>", self._take)

    def _take(self, msg: Msg) -> None:
        self.found.append((msg.subject.decode().removeprefix("$JS.EVENT.ADVISORY.STREAM."), msg.json()))


async def snapshot(client: Client, body: dict[str, Any], *, acks: bool = True) -> tuple[dict[str, Any], list[Msg]]:
    """The response and all messages of the transfer, the end message last."""
    got: list[Msg] = []
    done = asyncio.Event()

    def take(msg: Msg) -> None:
        got.append(msg)
        if not msg.data:
            done.set()
        elif acks and msg.reply:
            client.publish(msg.reply.decode())

    client.subscribe("deliver.here", take)
    response = await ask(client, "STREAM.SNAPSHOT.S", {"deliver_subject": "deliver.here", **body})
    assert "error" not in response, response
    await asyncio.wait_for(done.wait(), 10)
    return response, got


async def restore(client: Client, config: dict[str, Any], state: dict[str, Any], chunks: list[bytes]) -> dict[str, Any]:
    opened = await ask(client, f"STREAM.RESTORE.{config['name']}", {"config": config, "state": state})
    assert opened["type"] == "io.nats.jetstream.api.v1.stream_restore_response"
    subject = opened["deliver_subject"]
    assert subject.startswith(f"$JS.SNAPSHOT.RESTORE.{config['name']}.")
    for chunk in chunks:
        answer = await client.request(subject, chunk)
        if answer.data:
            return dict(answer.json())
    return dict((await client.request(subject)).json())


async def test_the_chunk_protocol_and_its_advisories(single: ProcessCluster) -> None:
    client = await single[0].connect()
    events = Events(client)
    await fill(client, "S", 1)
    response, got = await snapshot(client, {"chunk_size": 10_000, "window_size": 20_000})
    *chunks, last, end = got
    assert response["success"] is True
    assert response["state"]["messages"] == 293
    assert {len(msg.data) for msg in chunks} == {10_000}
    assert 0 < len(last.data) < 10_000
    assert not last.reply
    for at, msg in enumerate(chunks, 1):
        assert re.fullmatch(rf"\$JS\.SNAPSHOT\.ACK\.S\.\w+\.10000\.{at}", msg.reply.decode())
    assert end.header.startswith(b"NATS/1.0 204")

    assert (await ask(client, "STREAM.DELETE.S"))["success"]
    answer = await restore(client, response["config"], response["state"], [m.data for m in (*chunks, last)])
    assert answer["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    assert answer["state"]["messages"] == 293
    kinds = [kind for kind, _ in events.found]
    assert kinds == [
        "SNAPSHOT_CREATE.S", "SNAPSHOT.CREATE.S", "SNAPSHOT_COMPLETE.S", "SNAPSHOT.COMPLETE.S",
        "RESTORE_CREATE.S", "RESTORE.CREATE.S", "RESTORE_COMPLETE.S", "RESTORE.COMPLETE.S",
    ]  # fmt: skip
    for (_, event), (_, same) in zip(events.found[::2], events.found[1::2], strict=True):
        assert event == same
        assert event["stream"] == "S"
        assert event["client"]["acc"]
    assert events.found[0][1]["type"] == "io.nats.jetstream.advisory.v1.snapshot_create"
    assert events.found[0][1]["state"] == response["state"]
    assert events.found[6][1]["bytes"] == sum(len(m.data) for m in (*chunks, last))
    assert events.found[6][1]["start"] <= events.found[6][1]["end"]
    client.close()


async def test_nothing_is_sent_before_its_client_has_subscribed(single: ProcessCluster) -> None:
    """The tool takes all replies with one wildcard, under which its deliver subject is, too."""
    client = await single[0].connect()
    assert "error" not in await ask(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]})
    await client.request("S.1", b"small")
    early: list[Msg] = []
    got: list[Msg] = []
    client.subscribe("box.*", early.append)
    await ask(client, "STREAM.SNAPSHOT.S", {"deliver_subject": "box.one"})
    await asyncio.sleep(0.2)
    assert not early
    client.subscribe("box.one", got.append)
    await eventually(lambda: ended(got), 5, "no end")
    assert len(got) == 2
    early.clear()
    await ask(client, "STREAM.SNAPSHOT.S", {"deliver_subject": "box.two"})
    await eventually(lambda: ended(early), 5, "who listens by wildcard alone gets nothing")
    client.close()


async def ended(messages: list[Msg]) -> bool:
    return bool(messages) and not messages[-1].data


async def test_a_client_that_stops_is_given_up(single: ProcessCluster) -> None:
    client = await single[0].connect()
    await fill(client, "S", 1)
    _, got = await snapshot(client, {"chunk_size": 1024, "window_size": 4096}, acks=False)
    assert len(got) == 5
    assert got[-1].header.startswith(b"NATS/1.0 408 No Flow Response")

    config = {"name": "R", "subjects": ["r.>"]}
    opened = await ask(client, "STREAM.RESTORE.R", {"config": config, "state": {}})
    assert (await ask(client, "STREAM.RESTORE.R", {"config": config, "state": {}}))["error"]["err_code"] == 10130
    assert (await ask(client, "STREAM.UPDATE.R", config))["error"]["err_code"] == 10052
    with pytest.raises((TimeoutError, ClientError)):
        reply = await client.request("r.x", b"not taken", within=0.5)
        raise ClientError(str(reply.status))
    refused = (await client.request(opened["deliver_subject"], b"nonsense that is no archive")).json()
    assert refused["error"] == {"code": 500, "err_code": 10062, "description": "restore failed: not an S2 stream"}
    await eventually(lambda: gone(client, "R"), 5, "the stream is not deleted")
    await ask(client, "STREAM.RESTORE.R", {"config": config, "state": {}})
    await eventually(lambda: gone(client, "R"), 8, "the stream is not deleted after silence")
    client.close()


async def gone(client: Client, stream: str) -> bool:
    return (await ask(client, f"STREAM.INFO.{stream}")).get("error", {}).get("err_code") == 10059


@pytest.mark.parametrize(
    ("subject", "body", "err_code"),
    [
        ("SNAPSHOT.S", "", 10003),
        ("SNAPSHOT.S", {}, 10003),
        ("SNAPSHOT.S", {"deliver_subject": "a.*"}, 10015),
        ("SNAPSHOT.S", {"chunk_size": 5}, 10015),
        ("SNAPSHOT.NONE", {"deliver_subject": "a"}, 10059),
        ("RESTORE.X", {}, 10003),
        ("RESTORE.X", {"config": {"name": "X"}}, 10003),
        ("RESTORE.X", {"config": {"name": "Y"}, "state": {}}, 10056),
        ("RESTORE.S", {"config": {"name": "S"}, "state": {}}, 10130),
        ("RESTORE.X", {"config": {"name": "X", "subjects": ["S.1"]}, "state": {}}, 10065),
    ],
)
async def test_refusals(single: ProcessCluster, subject: str, body: Any, err_code: int) -> None:
    client = await single[0].connect()
    created = await ask(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["S.>"]})
    assert "error" not in created
    assert (await ask(client, f"STREAM.{subject}", body))["error"]["err_code"] == err_code
    client.close()


async def test_a_restore_whose_node_dies_gives_the_name_free(cluster: ProcessCluster, server: str) -> None:
    """The node that talks to the client is killed in the middle: the cluster deletes the half of a stream by itself."""
    if server == "nats-server":
        pytest.skip("nats-server keeps a restore on one of the stream's peers, which is not known to the client")
    client, other = await cluster[0].connect(), await cluster[1].connect()
    await fill(client, "S", 3)
    response, got = await snapshot(client, {"chunk_size": 10_000})
    assert (await ask(client, "STREAM.DELETE.S"))["success"]
    opened = await ask(client, "STREAM.RESTORE.S", {"config": response["config"], "state": response["state"]})
    for message in got[:2]:
        assert not (await client.request(opened["deliver_subject"], message.data)).data
    create = {"name": "S", "subjects": ["S.>"]}
    assert (await ask(other, "STREAM.CREATE.S", create))["error"]["err_code"] == 10058
    cluster[0].kill9()

    async def free() -> bool:
        try:
            return "error" not in await ask(other, "STREAM.CREATE.S", create)
        except (TimeoutError, ClientError):
            return False

    await eventually(free, SILENT_SECONDS + 15, "the name is not given free", every=0.5)
    assert (await ask(other, "STREAM.INFO.S"))["state"]["messages"] == 0
    assert any("a restore was not continued" in node.log() for node in cluster.nodes[1:])
    other.close()


async def test_restored_messages_are_duplicates_of_themselves(single: ProcessCluster, server: str) -> None:
    if server == "nats-server":
        pytest.skip("nats-server 2.15.2 stores them once more: it does not read the ids out of an archive")
    client = await single[0].connect()
    created = await ask(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    assert "error" not in created
    for n in range(5):
        assert (await client.request("s", b"x", headers={"Nats-Msg-Id": f"id{n}"})).json()["seq"] == n + 1
    response, got = await snapshot(client, {})
    assert (await ask(client, "STREAM.DELETE.S"))["success"]
    answer = await restore(client, response["config"], response["state"], [m.data for m in got if m.data])
    assert answer["state"]["messages"] == 5
    again = (await client.request("s", b"x", headers={"Nats-Msg-Id": "id3"})).json()
    assert (again["seq"], again.get("duplicate")) == (4, True)
    expected = {"Nats-Expected-Last-Msg-Id": "id4", "Nats-Msg-Id": "id5"}
    assert (await client.request("s", b"x", headers=expected)).json()["seq"] == 6
    client.close()
