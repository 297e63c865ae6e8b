"""Mirrors and sources through stock clients: buckets mirrored by the `nats` tool, read by nats-py, streams of both."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from nats.aio.client import Client as NATS
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StreamConfig, StreamSource
from nats.js.errors import KeyNotFoundError

from testkit.harness import ProcessCluster, eventually
from tests.cluster.link_client import reached, stored
from tests.interop.test_nats_cli import Cli

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]


@pytest.fixture
def cli(shared: ProcessCluster, tool: str) -> Cli:
    return Cli(tool, shared.urls[0])


@pytest.fixture
async def js(nc: NATS, shared: ProcessCluster) -> JetStreamContext:
    if shared.server == "nats-server":
        await asyncio.sleep(1)  # it is ready before it knows the other nodes' resources
    return nc.jetstream(timeout=10)


async def test_a_bucket_is_mirrored(js: JetStreamContext, cli: Cli, shared: ProcessCluster) -> None:
    hub = await js.create_key_value(KeyValueConfig(bucket="HUB", history=3, replicas=3, direct=True))
    for n in range(20):
        await hub.put(f"key.{n % 5}", b"%d" % n)
    await hub.delete("key.4")
    await cli("kv", "add", "EDGE", "--mirror", "HUB", "--history", "3")
    async with await shared[0].connect() as client:
        await reached(client, "KV_EDGE", 21)
        assert await stored(client, "KV_EDGE") == await stored(client, "KV_HUB")
    shown = json.loads(await cli("stream", "info", "KV_EDGE", "--json"))
    assert shown["config"]["mirror"]["name"] == "KV_HUB"
    assert shown["mirror"]["lag"] == 0
    edge = await js.key_value("EDGE")
    edge._pre = "$KV.HUB."  # a mirror keeps the subjects; neither nats-py nor the tool look for that
    assert (await edge.get("key.3")).value == b"18"
    with pytest.raises(KeyNotFoundError):
        await edge.get("key.4")
    watch = await edge.watchall()
    seen = [await watch.updates(timeout=5) for _ in range(6)]
    assert {entry.key for entry in seen if entry is not None} == {f"key.{n}" for n in range(5)}
    await watch.stop()
    await cli("kv", "put", "HUB", "key.9", "later")

    async def there() -> bool:
        try:
            return (await edge.get("key.9")).value == b"later"
        except KeyNotFoundError:
            return False

    await eventually(there, 10, "the mirror does not have it")


async def test_streams_of_nats_py(js: JetStreamContext) -> None:
    await js.add_stream(name="PYUP", subjects=["py.>"], num_replicas=3)
    for n in range(10):
        await js.publish(f"py.{n % 2}", b"%d" % n)
    await js.add_stream(StreamConfig(name="PYM", mirror=StreamSource(name="PYUP"), num_replicas=3))
    await js.add_stream(StreamConfig(name="PYS", sources=[StreamSource(name="PYM", filter_subject="py.1")]))

    async def all_there() -> bool:
        return (await js.stream_info("PYS")).state.messages == 5

    await eventually(all_there, 20, "not all came")
    mirrored = await js.stream_info("PYM")
    assert mirrored.mirror is not None
    assert (mirrored.mirror.name, mirrored.mirror.lag) == ("PYUP", 0)
    sources = (await js.stream_info("PYS")).sources
    assert sources is not None
    assert [source.name for source in sources] == ["PYM"]
    sub = await js.pull_subscribe("", durable="d", stream="PYM")
    assert [m.data for m in await sub.fetch(10, timeout=5)] == [b"%d" % n for n in range(10)]
    message = await js.get_msg("PYS", 1)
    assert message.headers is not None and message.headers["Nats-Stream-Source"].startswith("PYM 2 py.1 > py.1")


async def test_streams_of_the_tool(cli: Cli, tmp_path: Path) -> None:
    await cli("stream", "add", "TUP", "--subjects", "t.>", "--defaults", "--replicas", "3")
    await cli("pub", "t.x", "msg {{Count}}", "--count", "30", "--jetstream")
    for name, link in (("TM", {"mirror": {"name": "TUP"}}), ("TS", {"sources": [{"name": "TUP"}]})):
        wanted = tmp_path / f"{name}.json"
        wanted.write_text(json.dumps({"name": name, "storage": "file", "num_replicas": 1, **link}))
        await cli("stream", "add", name, "--config", str(wanted))

    async def all_there() -> bool:
        infos = [json.loads(await cli("stream", "info", name, "--json")) for name in ("TM", "TS")]
        return all(shown["state"]["messages"] == 30 for shown in infos)

    await eventually(all_there, 20, "not all came")
    assert "Mirror Information" in await cli("stream", "info", "TM")
    assert "Source Information" in await cli("stream", "info", "TS")
    report = await cli("stream", "report")
    assert "TM" in report and "Mirror" in report
    assert "msg 7" in await cli("stream", "get", "TM", "7")
    await cli("stream", "rm", "TUP", "-f")
    await cli("stream", "purge", "TM", "-f")


async def test_an_upstream_behind_a_prefix() -> None:
    """The domain's own prefix leads to the server itself: the way that a link to another domain takes."""
    config = "jetstream { domain: hub }\n"
    async with ProcessCluster(1, config=config) as cluster, await cluster[0].connect() as client:
        await client.api("STREAM.CREATE.UP", {"name": "UP", "subjects": ["up"]})
        for n in range(10):
            await client.request("up", b"%d" % n)
        external = {"api": "$JS.hub.API", "deliver": "to.me"}
        link = {"name": "UP", "external": external}
        await client.api("STREAM.CREATE.M", {"name": "M", "mirror": link, "allow_direct": True})
        await client.api("STREAM.CREATE.S", {"name": "S", "sources": [link], "allow_direct": True})
        await reached(client, "M", 10)
        await reached(client, "S", 10)
        assert [m.data for m in await stored(client, "M")] == [b"%d" % n for n in range(10)]
        source = (await stored(client, "S"))[0].source
        assert source.startswith("UP:") and " 1 > > up " in source
        shown = (await client.api("STREAM.INFO.M"))["mirror"]
        assert shown["external"] == external
