"""Workers: several processes serve the ports of one machine, and their supervisor looks after them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from testkit.client import Client, ClientError, create_stream
from testkit.harness import HarnessError, Node, ProcessCluster, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.started,
    pytest.mark.ours("nats-server has no workers"),
    pytest.mark.thorough,
]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def supervised(root: Path, config: str = "") -> AsyncIterator[Node]:
    """A server of two workers, which serves; it is stopped at the end."""
    path = root / "server.conf"
    path.write_text(
        f'server_name: m\nworkers: 2\nlisten: "127.0.0.1:-1"\nhttp: "127.0.0.1:-1"\nports_file_dir: "{root}"\n'
        f'pid_file: "{root}/pid"\njetstream {{ store_dir: "{root}/store" }}\n{config}'
    )
    cluster = ProcessCluster(1, "jetcluster", root=root / "nodes")
    node = cluster[0]
    node.args = ["-c", str(path)]
    node.spawn()
    try:
        await node.wait_ready()
        ports = json.loads((root / f"nats-server_{node.pid}.ports").read_text())
        node.url = ports["nats"][0]
        node.http_port = int(ports["monitoring"][0].rpartition(":")[2])
        yield node
        if node.alive:
            assert await node.stop() == 0
        assert not (root / f"nats-server_{node.pid}.ports").exists()
    finally:
        node.kill9()


async def clients_of_both(url: str, within: float = 10.0) -> dict[str, Client]:
    """One client of each worker, by its server name; the kernel decides who serves a connection."""
    found: dict[str, Client] = {}
    end = asyncio.get_running_loop().time() + within
    while len(found) < 2:
        assert asyncio.get_running_loop().time() < end, f"all connections came to {sorted(found)}"
        client = await Client.connect(url)
        if client.info["server_name"] in found:
            client.close()
            await asyncio.sleep(0.01)
        else:
            found[client.info["server_name"]] = client
    return found


async def messages(client: Client, stream: str) -> int:
    found: int = (await client.api(f"STREAM.INFO.{stream}"))["state"]["messages"]
    return found


async def test_workers_serve_one_port_together_and_are_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path) as node:
        assert (tmp_path / "pid").read_text() == str(node.pid)
        workers = children(node.pid)
        clients = await clients_of_both(node.url)
        assert sorted(clients) == ["m", "m-w1"]
        await both_are_members(node)
        for name in ("A", "B"):
            await create_stream(clients["m"], name, [name], replicas=1)
        leaders = {(await clients["m"].api(f"STREAM.INFO.{name}"))["cluster"]["leader"] for name in ("A", "B")}
        assert leaders == {"m", "m-w1"}
        with pytest.raises(ClientError, match="no suitable peers for placement, server tag not unique"):
            await create_stream(clients["m"], "C", ["C"], replicas=2)
        for client in clients.values():
            for name in ("A", "B"):
                assert (await client.request(name, b"x")).json()["stream"] == name

        await check_monitoring(node)
        os.kill(workers[0], signal.SIGKILL)
        await eventually(lambda: workers[0] not in children(node.pid), 5, "it is still there")
        await eventually(lambda: len(children(node.pid)) == 2, 10, "it is not started again")
        clients = await clients_of_both(node.url)
        for client in clients.values():
            for name in ("A", "B"):
                await eventually_equal(client, name, 2)

        config = tmp_path / "server.conf"
        good = config.read_text()
        config.write_text(good + "max_payload: 2000\n")
        node.signal(signal.SIGHUP)
        for client in clients.values():
            await eventually(lambda client=client: client.info["max_payload"] == 2000, 5, "no reload")  # type: ignore[misc]
        config.write_text(good.replace("workers: 2", "workers: 3"))
        node.signal(signal.SIGHUP)
        await eventually(lambda: "config reload not supported for Workers" in node.log(), 5, "no refusal")


async def test_a_reload_through_the_system_account_reaches_all_workers(tmp_path: Path) -> None:
    accounts = "accounts { SYS { users: [ { user: sys, password: sys } ] } }\nsystem_account: SYS\n"
    async with supervised(tmp_path, accounts) as node:
        await both_are_members(node)
        clients = await clients_of_both(node.url)
        config = tmp_path / "server.conf"
        config.write_text(config.read_text() + "max_payload: 3000\n")
        system = await Client.connect(node.url, user="sys", **{"pass": "sys"})
        ids = [client.info["server_id"] for client in clients.values()]
        assert len(set(ids)) == 2, "each worker is a server of its own there"
        answer = (await system.request(f"$SYS.REQ.SERVER.{ids[0]}.RELOAD", b"")).json()
        assert "error" not in answer
        for client in clients.values():
            await eventually(lambda client=client: client.info["max_payload"] == 3000, 5, "no reload")  # type: ignore[misc]


async def both_are_members(node: Node) -> None:
    """As in any cluster, "Server is ready" comes before all nodes have joined."""
    end = asyncio.get_running_loop().time() + 10
    while True:
        found = await node.monitor("jsz")  # its meta_cluster is that of worker 0
        meta = found["meta_cluster"]
        joined = "missing_workers" not in found and meta["cluster_size"] == 2
        if joined and all(replica["current"] for replica in meta.get("replicas", ())):
            return
        assert asyncio.get_running_loop().time() < end, (found.get("missing_workers"), meta["cluster_size"], meta)
        await asyncio.sleep(0.05)


async def check_monitoring(node: Node) -> None:
    """The clients of both workers are connected, and each of the two streams has two messages."""
    for _ in range(4):  # whichever worker answers
        varz = await node.monitor("varz")
        assert (varz["server_name"], varz["connections"]) == ("m", 2)
        assert [row["server_name"] for row in varz["workers"]] == ["m", "m-w1"]
        assert [row["connections"] for row in varz["workers"]] == [1, 1]
    jsz = await node.monitor("jsz?streams=1")
    assert (jsz["streams"], jsz["messages"]) == (2, 4)
    (account,) = jsz["account_details"]
    assert sorted(stream["name"] for stream in account["stream_detail"]) == ["A", "B"]
    connz = await node.monitor("connz")
    assert sorted(row["worker"] for row in connz["connections"]) == [0, 1]
    assert (await node.monitor("connz?worker=1"))["num_connections"] == 1
    assert (await node.monitor("varz?worker=1"))["server_name"] == "m-w1"
    assert (await node.monitor("healthz"))["status"] == "ok"


async def test_the_console_is_behind_every_worker(tmp_path: Path) -> None:
    """The kernel decides which worker a page's request and its WebSocket come to."""
    async with supervised(tmp_path, "console: true\n") as node, aiohttp.ClientSession() as session:
        seen = set()
        async with asyncio.timeout(10), contextlib.AsyncExitStack() as stack:
            while seen != {"m", "m-w1"}:
                url = f"http://127.0.0.1:{node.http_port}/ui"
                async with session.get(f"{url}/server.json", headers={"Connection": "close"}) as answer:
                    assert (await answer.json())["server_name"] in ("m", "m-w1")
                socket = await stack.enter_async_context(session.ws_connect(f"{url}/nats"))
                seen.add(json.loads((await socket.receive_bytes())[5:])["server_name"])
                await socket.send_bytes(b"CONNECT {}\r\nPING\r\n")
            rows = (await node.monitor("connz"))["connections"]
            assert {row["type"] for row in rows} == {"console"} and {row["worker"] for row in rows} == {0, 1}


async def eventually_equal(client: Client, stream: str, count: int) -> None:
    end = asyncio.get_running_loop().time() + 10
    while True:
        try:
            found = await messages(client, stream)
        except ClientError:  # its leader is just starting
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.1)
        else:
            assert found == count
            return


async def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    async with supervised(tmp_path, "lame_duck_grace_period: 1ms\n") as node:
        workers = children(node.pid)
        node.kill9()
        await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10, "workers are left")
        node.spawn()
        await node.wait_ready()
        node.signal(signal.SIGUSR2)
        assert await node.wait_exit(10) == 0


async def test_signals_while_workers_start(tmp_path: Path) -> None:
    async with supervised(tmp_path) as node:
        for numbers, log in (((signal.SIGHUP, signal.SIGUSR1), "ready"), ((signal.SIGTERM,), "")):
            assert await node.stop() == 0
            (tmp_path / "pid").unlink(missing_ok=True)
            node.spawn()
            await eventually(lambda: (tmp_path / "pid").exists(), 10, "no pid file")
            for number in numbers:
                node.signal(number)
            if log:
                await node.wait_ready()
                await eventually(lambda: node.log().count('Trapped "hangup" signal') == 2, 5, "no reload of both")
            else:
                assert await node.wait_exit(10) == 0
                assert "Traceback" not in node.log()


async def test_a_worker_that_cannot_start_ends_all(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "worker-1").write_text("no folder")
    with pytest.raises(HarnessError):
        async with supervised(tmp_path):
            pass
