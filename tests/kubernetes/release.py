"""A release of the chart in a namespace of its own, and how its pods and service are reached from here."""

from __future__ import annotations

import asyncio
from pathlib import Path

from testkit.client import Client
from testkit.ledger import check_exactly_once, read_all, wait_direct
from tests.kubernetes.kube import Done, Object, get, helm, is_ready, items, kubectl, secret, until
from tests.kubernetes.load import Book
from tests.kubernetes.plane.folders import CHART
from tests.kubernetes.volumes import make_volumes, remove_volumes

SERVERS = "app.kubernetes.io/component=server"
MOST = 5
"""Nodes that a release gets volumes for."""


class Release:
    """`name` is that of the release, of its namespace and, as the chart names objects, of its StatefulSet."""

    def __init__(self, root: Path, name: str, chart: Path = CHART) -> None:
        self.name = self.namespace = name
        self.full = f"{name}-jetcluster"
        self.chart = chart
        self._root = root
        self._claims = [f"data-{self.full}-{n}" for n in range(MOST)]

    def make_namespace(self, size: str = "10Gi") -> None:
        kubectl("create", "namespace", self.namespace)
        make_volumes(self._root, self.namespace, self._claims, size)

    def install(self, *values: str, file: Path | None = None, within: int = 300) -> None:
        """Waits until all is ready. `values`: as behind --set."""
        done = self._helm("install", values, file, within)
        assert done.code == 0, f"{done.out}\n{self.state()}"

    def upgrade(self, *values: str, within: int = 600, fails: bool = False) -> Done:
        """Waits until all is ready; keeps the values that were set before."""
        done = self._helm("upgrade", ("--reuse-values", *values), None, within)
        assert fails or done.code == 0, f"{done.out}\n{self.state()}"
        return done

    def _helm(self, verb: str, values: tuple[str, ...], file: Path | None, within: int) -> Done:
        words = [verb, self.name, str(self.chart), "-n", self.namespace, "--wait", "--timeout", f"{within}s"]
        words += ["-f", str(file)] if file else []
        for value in values:
            words += [value] if value.startswith("--") else ["--set", value]
        return helm(*words, within=within + 60)

    def remove(self) -> None:
        helm("uninstall", self.name, "-n", self.namespace, "--wait")
        kubectl("delete", "pods", "-n", self.namespace, "--all", "--grace-period=1")
        remove_volumes(self._root, self.namespace, self._claims)
        kubectl("delete", "namespace", self.namespace)

    def pods(self) -> list[Object]:
        """Those that run servers, by number; also those that end."""
        found = items("pods", self.namespace, f"{SERVERS},app.kubernetes.io/instance={self.name}")
        return sorted(found, key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))

    def all_ready(self, count: int = 3) -> bool:
        pods = self.pods()
        return len(pods) == count and all(map(is_ready, pods))

    async def until_ready(self, count: int = 3, within: float = 180.0) -> float:
        try:
            return await until(lambda: self.all_ready(count), within, f"{count} pods of {self.name} are ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.state()}") from None

    def service(self, suffix: str = "") -> str:
        """The address of its service."""
        return str(get("services", self.full + suffix, self.namespace)["spec"]["clusterIP"])

    @property
    def url(self) -> str:
        return f"nats://{self.service()}:4222"

    def urls(self) -> dict[str, str]:
        """Pod: URL at its own address, of those that are ready."""
        return {
            pod["metadata"]["name"]: f"nats://{pod['status']['podIP']}:4222" for pod in filter(is_ready, self.pods())
        }

    def system_password(self) -> str:
        return secret(f"{self.full}-auth", self.namespace)["system-password"]

    def say(self, pod: str, *words: str) -> str:
        """The output of a command in a pod."""
        return kubectl("exec", "-n", self.namespace, pod, "-c", "jetcluster", "--", *words)

    def state(self) -> str:
        """Returns all that one would look at: pods, events, the ends of logs."""
        wide = kubectl("get", "pods,pvc,jobs", "-n", self.namespace, "-o", "wide")
        events = kubectl("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
        logs = kubectl(
            "logs", "-n", self.namespace, "-l", f"app.kubernetes.io/instance={self.name}", "--tail=15", "--prefix",
            "--ignore-errors",
        )  # fmt: skip
        return f"{wide}\n{events[-3000:]}\n{logs[-6000:]}"


async def account(release: Release, stream: str, ledger: Book) -> str:
    """Reads the stream from each pod: every acked message is there once, at its place, and all pods have the same.

    Returns the figures for the page."""
    copies = {}
    last = max(ledger.acked.values())
    for pod, url in (await asyncio.to_thread(release.urls)).items():
        async with await Client.connect(url) as client:
            await wait_direct(client, stream, last, within=60)
            copies[pod] = await read_all(client, stream, last=last)
    assert copies
    for pod, stored in copies.items():
        upto = {seq: payload for seq, payload in stored.items() if seq <= last}
        check_exactly_once(ledger, upto)
        copies[pod] = upto
    first, *others = copies.values()
    assert all(other == first for other in others), "pods have different messages"
    return f"{len(ledger.acked)} acked, all read from each of {len(copies)} pods; {ledger.gaps()}"
