"""Stock clients in other languages: the suites in `go/` (nats.go) and `js/` (nats.js), on R1 and R3; the order of
messages with nats.java.

They are built here; where the toolchain or its package index is missing, the reason is printed.
"""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from testkit.client import Client
from testkit.harness import ProcessCluster, eventually, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.long, pytest.mark.thorough]


async def run(cluster: ProcessCluster, command: list[str], replicas: int, url: str = "") -> None:
    words = [*command, url or cluster[0].url, str(replicas)]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 200)
    except TimeoutError:
        process.kill()
        raise
    text = output.decode(errors="replace")
    print(text)
    assert process.returncode == 0, text[-1500:]
    assert "FAIL" not in text and text.count("ok ") >= 9


@pytest.mark.parametrize("replicas", [1, 3])
async def test_nats_go(tidy: ProcessCluster, go_suite: list[str], replicas: int) -> None:
    await run(tidy, go_suite, replicas)


@pytest.mark.parametrize("replicas", [1, 3])
async def test_nats_js(tidy: ProcessCluster, js_suite: list[str], replicas: int) -> None:
    await run(tidy, js_suite, replicas)


@pytest.mark.parametrize("way", ["consume", "iterate", "fetch"])
async def test_nats_java_gets_messages_in_order_though_it_has_several_requests_open(
    tidy: ProcessCluster, java_member: list[str], way: str
) -> None:
    """Each request of nats.java has a reply subject of its own, and two of a client may be open."""
    name, messages = way.upper(), 2000
    done = await asyncio.create_subprocess_exec(*java_member, "consumer", tidy[0].url, name, "C", "0")
    assert await done.wait() == 0
    async with await tidy[0].connect() as client:
        for number in range(messages):
            client.publish(f"{name}.{number % 10}", b"m")
        await eventually(lambda: _stored(client, name, messages), 20, "all are stored")
    process = await asyncio.create_subprocess_exec(
        *java_member, "member", tidy[0].url, name, "C", way, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    first: list[int] = []
    assert process.stdin is not None and process.stdout is not None
    async for line in process.stdout:
        what, *rest = line.decode().split()
        if what == "got" and rest[2] == "1":
            first.append(int(rest[0]))
            if len(first) == messages:
                process.stdin.close()
    assert await process.wait() == 0 and first == list(range(1, messages + 1))


async def _stored(client: Client, name: str, messages: int) -> bool:
    return bool((await client.api(f"STREAM.INFO.{name}"))["state"]["messages"] == messages)


async def test_nats_js_over_websocket(js_suite: list[str]) -> None:
    """The same suite by `wsconnect`, through one node of a cluster."""
    node, script = js_suite
    cluster = ProcessCluster(3, config="websocket {}")
    ports = free_ports(3)
    for one, port in zip(cluster.nodes, ports, strict=True):
        block = f"websocket {{ host: 127.0.0.1, port: {port}, no_tls: true, compression: true }}\n"
        (one.root / "server.conf").write_text(block)
    async with cluster:
        await run(cluster, [node, "--experimental-websocket", script], 3, f"ws://127.0.0.1:{ports[2]}")
