"""Three pods of the chart without Kubernetes: the entrypoint, with their variables and configuration file."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, die_with_parent, eventually, free_ports
from tests.deploy.test_chart import PASSWORDS, PLAIN, TOP, documents, one

pytestmark = [pytest.mark.cluster, pytest.mark.ours("about the image")]


def pod(root: Path, number: int, ports: list[tuple[int, int, int]]) -> tuple[Node, dict[str, str]]:
    """Returns the node of a pod, with its files, and its environment. `ports`: client, route, monitoring of each."""
    found = documents(PLAIN.read_text())
    client, route, monitor = ports[number]
    folder = root / f"jc-{number}"
    command = [str(TOP / "deploy/docker/entrypoint.sh"), "-c", str(folder / "server.conf")]
    node = Node(f"jc-{number}", command, folder, client, [])
    node.http_port = monitor
    text = one(found, "ConfigMap")["data"]["server.conf"]
    for old, new in (
        ('"port": 4222', f'"port": {client}'), ("0.0.0.0:6222", f"127.0.0.1:{route}"), ("8222", str(monitor)),
        ("/run/jetcluster", str(folder)), ('"/data"', f'"{folder}/data"'),
    ):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (folder / "server.conf").write_text(text)
    # There is no name service here, and all pods have one address.
    names = "".join(f"s|//jc-{n}:6222|//127.0.0.1:{other}|g;" for n, (_, other, _) in enumerate(ports))
    script = f"exec {sys.executable} -m jetcluster $(echo \"$@\" | sed '{names}')"
    (folder / "jetcluster").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "jetcluster").chmod(0o755)
    (container,) = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    env = {e["name"]: e["value"] for e in container["env"] if "value" in e} | PASSWORDS
    env |= {"JETCLUSTER_SERVICE": "", "JETCLUSTER_ZONE": f"eu-{number}", "HOSTNAME": node.name}
    return node, env | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(TOP)}


def start(node: Node, env: dict[str, str]) -> None:
    with node.log_path.open("wb") as log:
        node.process = subprocess.Popen(
            [str(TOP / "deploy/docker/entrypoint.sh"), "-c", str(node.root / "server.conf")],
            env=env, stdout=log, stderr=log, cwd=node.root, preexec_fn=die_with_parent,
        )  # fmt: skip


async def is_healthy(node: Node) -> bool:
    try:
        return (await node.monitor("healthz")).get("status") == "ok"
    except OSError:
        return False


async def test_pods_with_the_charts_defaults(tmp_path: Path) -> None:
    numbers = free_ports(9)
    ports = [(numbers[n], numbers[3 + n], numbers[6 + n]) for n in range(3)]
    pods = [pod(tmp_path, number, ports) for number in range(3)]
    nodes = [node for node, _ in pods]
    try:
        for node, env in pods[:2]:
            start(node, env)
        last, env = pods[2]
        start(last, env | {"JETCLUSTER_ROUTE_PASSWORD": "another"})
        for node in nodes[:2]:
            await eventually(lambda node=node: is_healthy(node), 15, "it is not healthy", node)  # type: ignore[misc]
        await eventually(lambda: "authorization violation" in last.log(), 5, "a wrong password is no matter", last)
        assert not await is_healthy(last)
        last.kill9()
        start(last, env)
        await eventually(lambda: is_healthy(last), 15, "it is not healthy", last)
        assert "has no authorization" not in last.log(), "the password of the routes is lost"
        async with await last.connect() as anyone:
            await create_stream(anyone, "S", ["s"], 1)
            assert not anyone.info.get("connect_urls"), "a client would ask addresses of pods that are gone"
            account = await anyone.request("$SYS.REQ.USER.INFO", b"")
            assert account.json()["data"]["account"] == "$G"
        system = f"nats://system:{PASSWORDS['JETCLUSTER_SYSTEM_PASSWORD']}@127.0.0.1:{last.port}"
        async with await Client.connect(system) as operator:
            request = b'{"server_name": "jc-1"}'
            varz: dict[str, Any] = (await operator.request("$SYS.REQ.SERVER.PING.VARZ", request)).json()["data"]
        assert varz["tags"] == ["zone:eu-1"]
        assert varz["jetstream"]["config"]["max_memory"] == 256 << 20
        with pytest.raises(Exception, match=r"(?i)authorization violation"):
            await Client.connect(f"nats://system:wrong@127.0.0.1:{last.port}")
        await fewer_and_more(nodes, env)
    finally:
        for node in nodes:
            node.kill9()


async def fewer_and_more(nodes: list[Node], env: dict[str, str]) -> None:
    """The hook takes the last pod out, again too after an attempt that was cut; it comes back with its old claim."""
    *stay, last = nodes
    urls = ",".join(node.url for node in stay)
    words = {"NATS_URL": urls, "NATS_USER": "system", "NATS_PASSWORD": PASSWORDS["JETCLUSTER_SYSTEM_PASSWORD"]}
    for said in ("verified", "not a member"):
        done = await asyncio.to_thread(
            subprocess.run, [str(TOP / "deploy/docker/scale-down.sh"), "60", last.name],
            env=env | words, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
    assert "its store is set aside" not in last.log(), "it comes back only when it starts again"
    last.kill9()
    start(last, env)
    await eventually(lambda: "its store is set aside" in last.log(), 15, "it keeps its old store", last)
    await eventually(lambda: is_healthy(last), 15, "it is no member", last)
    (aside,) = (last.root / "data").glob("jetstream-removed-*")
    assert (aside / "node.json").exists()
    async with await last.connect() as anyone:
        assert (await anyone.api("STREAM.INFO.S"))["cluster"]["leader"]
