"""The image as pods see it: three containers whose names and routes come from their host names, `kill`, volumes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
from docker.models.containers import Container

from testkit.client import Client

TOP = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(1200)
IMAGE = "jetcluster:test"
SERVICE = "pods.test.svc"


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    # docker leaves the socket of a failed attempt to the garbage collector, whose ResourceWarning fails whatever test
    # runs then: so the daemon's socket is tried here first.
    try:
        host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        if host.startswith("unix://"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(host.removeprefix("unix://"))
        client = docker.from_env()
    except (OSError, docker.errors.DockerException) as error:
        pytest.skip(f"no docker daemon on this machine: {error}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> str:
    """Built from this tree; JETCLUSTER_IMAGE names one that is there already."""
    if ready := os.environ.get("JETCLUSTER_IMAGE"):
        return ready
    built = subprocess.run(
        [str(TOP / "deploy" / "build-image.sh"), IMAGE], capture_output=True, text=True, timeout=900, check=False
    )
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    return IMAGE


class Pods:
    """Containers `jc-0` to `jc-2` on a network where they are called as the pods of a StatefulSet are."""

    def __init__(self, engine: docker.DockerClient, image: str) -> None:
        self.engine = engine
        self.tag = uuid.uuid4().hex[:8]
        self.network = engine.networks.create(f"jc-test-{self.tag}")
        self.volumes = [engine.volumes.create(f"jc-test-{self.tag}-{n}") for n in range(3)]
        self.pods: list[Container] = []
        try:
            for n in range(3):
                self.pods.append(self._pod(image, n))
        except BaseException:
            self.close()
            raise

    def _pod(self, image: str, n: int) -> Container:
        api = self.engine.api
        names = api.create_networking_config(
            {self.network.name: api.create_endpoint_config(aliases=[f"jc-{n}.{SERVICE}"])}
        )
        created = api.create_container(
            image,
            hostname=f"jc-{n}",
            environment={"JETCLUSTER_REPLICAS": "3", "JETCLUSTER_SERVICE": SERVICE},
            networking_config=names,
            host_config=api.create_host_config(
                binds=[f"{self.volumes[n].name}:/data"],
                port_bindings={4222: ("127.0.0.1", None)},
                read_only=True,
                tmpfs={"/run/jetcluster": "uid=10001", "/tmp": ""},
                cap_drop=["ALL"],
            ),
            ports=[4222],
        )
        pod = self.engine.containers.get(created["Id"])
        pod.start()
        return pod

    def url(self, n: int) -> str:
        pod = self.pods[n]
        pod.reload()
        return f"nats://127.0.0.1:{pod.attrs['NetworkSettings']['Ports']['4222/tcp'][0]['HostPort']}"

    def wait_healthy(self, n: int, within: float = 60.0) -> None:
        end = time.monotonic() + within
        while True:
            done = self.pods[n].exec_run(["probe.py", "/healthz"])
            if done.exit_code == 0:
                return
            assert time.monotonic() < end, (done.output, self.pods[n].logs()[-2000:])
            time.sleep(0.3)

    def close(self) -> None:
        for pod in self.pods:
            pod.remove(force=True)
        self.network.remove()
        for volume in self.volumes:
            volume.remove(force=True)


@pytest.fixture
def pods(engine: docker.DockerClient, image: str) -> Iterator[Pods]:
    found = Pods(engine, image)
    yield found
    found.close()


async def publish(url: str, first: int, count: int) -> None:
    async with await Client.connect(url) as client:
        for n in range(first, first + count):
            reply = await client.request("d.x", b"%d" % n, within=5.0)
            assert b'"seq"' in reply.data, reply.data


async def state_of(url: str) -> dict[str, Any]:
    async with await Client.connect(url) as client:
        return dict((await client.api("STREAM.INFO.D"))["state"])


def test_the_image_has_compiled_loops_and_no_compiler(engine: docker.DockerClient, image: str) -> None:
    said = engine.containers.run(image, ["-v"], remove=True, stdout=True, stderr=True).decode()
    assert "compiled loops" in said, said
    look = "for tool in cc gcc cpp ld x86_64-linux-gnu-gcc cython; do command -v $tool; done; true"
    assert not engine.containers.run(image, ["sh", "-c", look], remove=True).decode()


def test_pods_form_a_cluster_and_survive_kill(pods: Pods) -> None:
    for n in range(3):
        pods.wait_healthy(n)
    assert pods.pods[0].exec_run(["id", "-u"]).output.strip() == b"10001"

    async def create() -> str:
        async with await Client.connect(pods.url(0)) as client:
            config = {"name": "D", "subjects": ["d.>"], "num_replicas": 3}
            made = await client.api("STREAM.CREATE.D", config)
            assert made["cluster"]["name"] == "jc"
            return str(made["cluster"]["leader"])

    leader = int(asyncio.run(create()).removeprefix("jc-"))
    other = (leader + 1) % 3
    asyncio.run(publish(pods.url(other), 0, 50))
    pods.pods[leader].kill("SIGKILL")
    asyncio.run(publish(pods.url(other), 50, 50))
    pods.pods[leader].start()
    pods.wait_healthy(leader)
    assert asyncio.run(state_of(pods.url(leader)))["messages"] == 100

    for pod in pods.pods:  # all at once, then all again: the volumes have everything
        pod.kill("SIGKILL")
    for pod in pods.pods:
        pod.start()
    for n in range(3):
        pods.wait_healthy(n)
    assert asyncio.run(state_of(pods.url(0)))["messages"] == 100


def test_pre_stop_ends_the_server_by_itself(pods: Pods) -> None:
    for n in range(3):
        pods.wait_healthy(n)
    done = pods.pods[2].exec_run(["pre-stop.sh"], environment={"PRE_STOP_SECONDS": "60"})
    assert done.exit_code == 0, done.output
    assert pods.pods[2].exec_run(["probe.py", "/healthz?js-enabled-only=true"]).exit_code == 0  # it is alive
    pods.pods[2].kill("SIGTERM")  # as the kubelet does now; a lame duck ends by itself
    assert pods.pods[2].wait(timeout=30)["StatusCode"] == 0
    pods.wait_healthy(0)


class Compose:
    """`compose.yaml` with free ports, as a project of its own; called with the words behind `docker compose`."""

    def __init__(self, engine: docker.DockerClient, image: str, **env: str) -> None:
        if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
            pytest.skip("no `docker compose` (v2) on this machine")
        engine.images.get(image).tag("jetcluster", "latest")
        self._project = f"jc-test-{uuid.uuid4().hex[:8]}"
        ports = {f"{kind}_PORT_{n}": "0" for n in (0, 1, 2, "EDGE") for kind in ("CLIENT", "MONITOR")}
        ports |= {"PROMETHEUS_PORT": "0", "GRAFANA_PORT": "0"}
        self._env = {**os.environ, **ports, **env}

    def __call__(self, *words: str) -> str:
        command = ["docker", "compose", "-p", self._project, "-f", str(TOP / "compose.yaml"), *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def url(self, service: str) -> str:
        return "nats://" + self("--profile", "edge", "port", service, "4222").replace("0.0.0.0", "127.0.0.1")


def test_compose(engine: docker.DockerClient, image: str) -> None:
    compose = Compose(engine, image)
    try:
        compose("up", "-d", "--no-build", "--wait")
        url = compose.url("node-0")

        async def create() -> None:
            async with await Client.connect(url) as client:
                assert not client.info.get("connect_urls")  # containers' addresses are of no use outside
                await client.api("STREAM.CREATE.D", {"name": "D", "subjects": ["d.>"], "num_replicas": 3})

        asyncio.run(create())
        asyncio.run(publish(url, 0, 20))
        compose("kill", "node-1")
        asyncio.run(publish(url, 20, 20))
        compose("down")
        compose("up", "-d", "--no-build", "--wait")
        url = compose.url("node-1")
        assert asyncio.run(state_of(url))["messages"] == 40
    finally:
        compose("--profile", "edge", "down", "-v")


async def read_at_edge(url: str, count: int, within: float = 30.0) -> None:
    """Until the edge answers a Direct Get of the hub's stream with its last message."""
    end = time.monotonic() + within
    while True:
        async with await Client.connect(url) as client:
            reply = await client.request("$JS.API.DIRECT.GET.D", b'{"last_by_subj":"d.x"}', within=5.0)
        if not reply.status and reply.data == b"%d" % (count - 1):
            return
        assert time.monotonic() < end, (reply.status, reply.data)
        await asyncio.sleep(0.2)


def test_compose_with_an_edge(engine: docker.DockerClient, image: str) -> None:
    """The mirror is there before its stream is; reads go on without the three nodes; restarts change nothing."""
    compose = Compose(engine, image, EDGE_STREAM="D")
    try:
        compose("--profile", "edge", "up", "-d", "--no-build", "--wait")
        hub, edge = compose.url("node-0"), compose.url("edge")

        async def create() -> None:
            async with await Client.connect(hub) as client:
                config = {"name": "D", "subjects": ["d.>"], "num_replicas": 3, "allow_direct": True}
                await client.api("STREAM.CREATE.D", config)

        asyncio.run(create())
        asyncio.run(publish(hub, 0, 20))
        asyncio.run(read_at_edge(edge, 20))
        compose("kill", "node-0", "node-1", "node-2")
        asyncio.run(read_at_edge(edge, 20))
        compose("--profile", "edge", "up", "-d", "--no-build", "--wait")
        asyncio.run(publish(compose.url("node-0"), 20, 20))
        asyncio.run(read_at_edge(edge, 40))
        compose("--profile", "edge", "restart", "edge")
        compose("--profile", "edge", "up", "-d", "--no-build", "--wait")
        asyncio.run(read_at_edge(compose.url("edge"), 40))
        assert "D mirrors D of hub already" in compose("--profile", "edge", "logs", "edge")
        state = asyncio.run(state_of(compose.url("edge")))
        assert (state["messages"], state["last_seq"]) == (40, 40)
    finally:
        compose("--profile", "edge", "down", "-v")


def fetch(url: str, within: float = 60.0) -> Any:
    """The JSON that is answered, once there is an answer."""
    end = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)
        except (OSError, ValueError) as error:
            assert time.monotonic() < end, f"{url}: {error}"
            time.sleep(0.5)


def healths(address: str) -> list[str]:
    return [one["health"] for one in fetch(f"http://{address}/api/v1/targets")["data"]["activeTargets"]]


def test_compose_observes(engine: docker.DockerClient, image: str) -> None:
    """Prometheus finds the nodes and takes the rules; Grafana, where its image is here, has the dashboard."""
    compose = Compose(engine, image)
    images = compose("--profile", "observe", "config", "--images").split()
    here = {tag for one in engine.images.list() for tag in one.tags}
    if not (found := [one for one in images if one.startswith("prom/") and one in here]):
        pytest.skip(f"the image of Prometheus is not here: docker pull {[one for one in images if 'prom' in one]}")
    grafana = ["grafana"] if any(one.startswith("grafana/") and one in here for one in images) else []
    try:
        nodes = ("node-0", "node-1", "node-2")
        compose("--profile", "observe", "up", "-d", "--no-build", "--no-deps", "--wait", *nodes, "prometheus", *grafana)
        address = compose("--profile", "observe", "port", "prometheus", "9090")
        end = time.monotonic() + 60
        while healths(address) != ["up"] * 3:
            assert time.monotonic() < end, (found, healths(address))
            time.sleep(0.5)
        groups = fetch(f"http://{address}/api/v1/rules")["data"]["groups"]
        assert sum(len(group["rules"]) for group in groups) > 10
        for _ in grafana:
            address = compose("--profile", "observe", "port", "grafana", "3000")
            assert fetch(f"http://{address}/api/dashboards/uid/jetcluster")["dashboard"]["title"] == "jetcluster"
    finally:
        compose("--profile", "observe", "down", "-v")
