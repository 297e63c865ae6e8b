"""Replicas and whole servers come and go while messages flow: every acked message is there once, on every replica."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import TOP, Node, ProcessCluster, eventually, frozen
from testkit.ledger import Ledger, check_exactly_once, read_all, steady_publisher
from tests.symptom_page import shown

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.thorough]

CONFIG = """accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  $SYS { users: [{user: s, password: s}] }
}
no_auth_user: a
"""


def system(node: Node) -> str:
    return f"nats://s:s@127.0.0.1:{node.port}"


async def ask(node: Node, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Asks as the system account, and returns the whole reply."""
    async with await Client.connect(system(node)) as client:
        return (await client.request(f"$JS.API.{subject}", json.dumps(body or {}).encode(), 8.0)).json()


async def members(cluster: ProcessCluster, stream: str, within: float = 60.0) -> set[str]:
    """Names of the stream's replicas, once all are current and as many as it has to have."""
    last: dict[str, Any] = {}

    async def settled() -> bool:
        node = next(n for n in cluster.nodes if n.alive)
        with contextlib.suppress(Exception):
            async with await node.connect() as client:
                last.update(await client.api(f"STREAM.INFO.{stream}", within=2.0))
        others = last.get("cluster", {}).get("replicas") or []
        whole = len(others) + 1 == last.get("config", {}).get("num_replicas")
        return whole and all(r["current"] and not r.get("lag") for r in others)

    await eventually(settled, within, f"{stream} is not whole: {last.get('cluster')}", every=0.1)
    return {last["cluster"]["leader"], *(r["name"] for r in last["cluster"].get("replicas") or [])}


async def check_replicas(cluster: ProcessCluster, stream: str, ledger: Ledger) -> None:
    """Each replica by itself, and they are equal."""
    names = await members(cluster, stream)
    copies = []
    for name in sorted(names):
        others = [node for node in cluster.nodes if node.name in names and node.name != name and node.alive]
        with frozen(others):
            async with await cluster.node(name).connect() as client:
                copies.append(await read_all(client, stream, within=4.0))
        check_exactly_once(ledger, copies[-1])
        await cluster.stream_leader(stream)
        await members(cluster, stream)
    assert all(copy == copies[0] for copy in copies)


@contextlib.asynccontextmanager
async def traffic(nodes: list[Node], subject: str) -> AsyncIterator[Ledger]:
    """Publishes through `nodes` until the block ends and everything is acked."""
    ledger, stop = Ledger(), asyncio.Event()
    task = asyncio.create_task(steady_publisher([n.url for n in nodes], subject, ledger, stop, pause=0.01))
    try:
        yield ledger
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def scale(client: Client, stream: str, replicas: int) -> None:
    config = (await client.api(f"STREAM.INFO.{stream}"))["config"]
    await client.api(f"STREAM.UPDATE.{stream}", {**config, "num_replicas": replicas})


@pytest.mark.ours("what nats-server does while it scales is not ours to test")
async def test_replicas_grow_and_shrink_while_messages_come(server: str) -> None:
    async with ProcessCluster(5, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 1, duplicate_window=120_000_000_000)
        async with traffic(cluster.nodes[:2], "s") as ledger:
            for replicas in (3, 5, 3, 1, 5, 1, 3):
                before = len(ledger.acked)
                async with await cluster[0].connect() as client:
                    await scale(client, "S", replicas)
                began = time.monotonic()
                assert len(await members(cluster, "S")) == replicas
                await asyncio.sleep(0.5)
                acked = len(ledger.acked) - before
                print(f"R{replicas} after {time.monotonic() - began - 0.5:.1f} s, {acked} acked meanwhile")
                assert acked > 0
        print(f"{len(ledger.acked)} acked, longest gap {ledger.longest_gap():.2f} s")
        await check_replicas(cluster, "S", ledger)


@pytest.mark.ours("nats-server answers other errors")
async def test_a_dead_server_is_removed_and_an_empty_one_takes_its_place(server: str) -> None:
    async with ProcessCluster(4, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
        names = await members(cluster, "S")
        (spare,) = {node.name for node in cluster.nodes} - names
        leader = await cluster.stream_leader("S")
        dead = next(cluster.node(name) for name in sorted(names) if name != leader.name)
        alive = [node for node in cluster.nodes if node is not dead]
        told: list[dict[str, Any]] = []
        ears = [await Client.connect(system(node)) for node in alive]
        for ear in ears:
            ear.subscribe("$JS.EVENT.ADVISORY.SERVER.REMOVED", lambda msg: told.append(msg.json()))
            await ear.flush()
        async with traffic(alive, "s") as ledger:
            await asyncio.sleep(1)
            dead.kill9()
            await asyncio.sleep(2)
            reply = await ask(alive[0], "SERVER.REMOVE", {"peer": dead.name})
            assert reply == {"type": "io.nats.jetstream.api.v1.meta_server_remove_response", "success": True}
            assert await members(cluster, "S") == names - {dead.name} | {spare}
        await check_replicas(cluster, "S", ledger)
        assert told and told[0]["server"] == dead.name and told[0]["cluster"] == "C"
        for ear in ears:
            ear.close()
        assert (await ask(alive[0], "SERVER.REMOVE", {"peer": dead.name}))["error"]["err_code"] == 10044
        await comes_back(dead)
        async with await cluster[0].connect() as client:

            async def placed() -> bool:
                """It is healthy when it has what the others have; the leader hears a moment later what it can hold."""
                with contextlib.suppress(ClientError):
                    await scale(client, "S", 4)
                    return True
                return False

            await eventually(placed, 5, "it takes a replica", dead)
        assert await members(cluster, "S") == {node.name for node in cluster.nodes}


async def comes_back(removed: Node) -> None:
    """With its old store it says what it is, and does not serve; told to, it sets that store aside and joins anew."""
    old = json.loads((removed.store / "jetstream" / "node.json").read_text())["peer_id"]
    removed.spawn()
    said = "this server was removed from the cluster; it can come back with an empty store"
    await eventually(lambda: f"[ERR] {said}" in removed.log(), 10, "the log says why", removed)
    shown("a-removed-server-comes-back", removed.log())
    assert "set_aside_removed" in removed.log()
    assert said in (await removed.monitor("healthz?js-server-only=true"))["error"]
    await removed.stop()
    config = removed.root / "server.conf"
    config.write_text(config.read_text() + "jetstream { set_aside_removed: true }\n")
    removed.spawn()
    await eventually(lambda: "its store is set aside" in removed.log(), 15, "its store is set aside", removed)
    aside = removed.store / f"jetstream-removed-{old}"
    await eventually((removed.store / "jetstream" / "node.json").exists, 10, "it has a new store", removed)
    assert json.loads((aside / "node.json").read_text())["peer_id"] == old
    assert json.loads((removed.store / "jetstream" / "node.json").read_text())["peer_id"] != old

    async def healthy() -> bool:
        with contextlib.suppress(OSError):
            return (await removed.monitor("healthz")).get("status") == "ok"
        return False

    await eventually(healthy, 15, "it is a member", removed)


@pytest.mark.ours("decommission is ours")
async def test_decommission_goes_on_after_the_tool_died(server: str) -> None:
    async with ProcessCluster(4, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            for number in range(6):
                await create_stream(client, f"S{number}", [f"s.{number}"], 3 if number else 1)
        leaving = cluster[0]  # which the tool asks first, and which may not hear that it was removed
        stay = [node for node in cluster.nodes if node is not leaving]

        def tool(*more: str) -> subprocess.Popen[str]:
            words = [sys.executable, "-m", "jetcluster", "decommission", leaving.name, "--within", "90", *more]
            words += ["--server", ",".join(system(node) for node in cluster.nodes)]
            env = {**os.environ, "PYTHONPATH": str(TOP)}
            return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True)

        async with traffic(stay, "s.1") as ledger:
            first = tool()
            assert first.stdout is not None
            line = await asyncio.to_thread(first.stdout.readline)
            assert leaving.name in line, line
            first.kill()
            await asyncio.to_thread(first.communicate)
            second = tool()
            output, _ = await asyncio.to_thread(second.communicate, None, 100)
            print(output)
            assert second.returncode == 0, output
            assert "verified" in output
            leaving.kill9()
        async with await stay[0].connect() as client:
            for number in range(6):
                info = await client.api(f"STREAM.INFO.S{number}")
                names = {info["cluster"]["leader"], *(r["name"] for r in info["cluster"].get("replicas") or [])}
                assert leaving.name not in names
        await check_replicas(cluster, "S1", ledger)
        third = tool()
        output, _ = await asyncio.to_thread(third.communicate, None, 30)
        assert third.returncode == 1 and "not a member" in output
        leaving = stay[0]
        fourth = tool()  # R3 streams, three servers left
        output, _ = await asyncio.to_thread(fourth.communicate, None, 30)
        assert fourth.returncode == 1 and "5 streams find no other place" in output, output


async def test_the_meta_leader_steps_down(server: str) -> None:
    async with ProcessCluster(3, server, config=CONFIG, monitor=True) as cluster:

        async def leader() -> str:
            for node in cluster.nodes:
                name = (await node.monitor("jsz")).get("meta_cluster", {}).get("leader")
                if name:
                    return str(name)
            return ""

        for node in cluster.nodes:
            before = await leader()
            reply = await ask(cluster[0], "META.LEADER.STEPDOWN", {"placement": {"preferred": node.name}})
            assert reply["type"] == "io.nats.jetstream.api.v1.meta_leader_stepdown_response"
            if node.name == before:
                assert reply["error"]["description"] == f'preferred server "{before}" is already leader'
                continue
            assert reply["success"] is True

            async def leads(wanted: str = node.name) -> bool:
                return await leader() == wanted

            await eventually(leads, 10, f"{node.name} does not lead", every=0.1)


@pytest.mark.ours("safe-to-restart is ours")
async def test_safe_to_restart(server: str) -> None:

    async def safe(node: Node) -> dict[str, Any]:
        return await node.monitor("healthz?safe-to-restart=true")

    async def all_safe() -> bool:
        return all([(await safe(node))["status"] == "ok" for node in cluster.nodes])

    async with ProcessCluster(3, server, config=CONFIG, monitor=True) as cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
        await eventually(all_safe, 20, "not safe at rest", every=0.2)
        cluster[2].signal(signal.SIGSTOP)

        async def unsafe() -> bool:
            found = await safe(cluster[0])
            return bool(found["status"] == "unavailable" and found["unsafe"] == 2)

        await eventually(unsafe, 15, "a paused node counts", every=0.2)
        cluster[2].signal(signal.SIGCONT)
        await eventually(all_safe, 20, "not safe again", every=0.2)
        cluster[1].kill9()
        await eventually(unsafe, 15, "a dead node counts", every=0.2)
        print(await safe(cluster[0]))
        await cluster[1].start()
        await eventually(all_safe, 20, "not safe again", every=0.2)
