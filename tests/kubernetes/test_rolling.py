"""A rolling restart, and losses of pods and nodes, under load: every ack is accounted for."""

from __future__ import annotations

import asyncio
import time

from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import items, kubectl, until, warnings
from tests.kubernetes.load import LIMIT, load
from tests.kubernetes.release import Release, account


def uids(release: Release) -> set[str]:
    return {pod["metadata"]["uid"] for pod in release.pods()}


async def test_rolling_restart(release: Release, say: Say) -> None:
    await asyncio.to_thread(release.install)
    async with load(release.url, "RESTART") as ledger:
        start, before = time.monotonic(), uids(release)
        kubectl("rollout", "restart", "statefulset", release.full, "-n", release.namespace)
        watch = ("rollout", "status", "statefulset", release.full, "-n", release.namespace, "--timeout=600s")
        await asyncio.to_thread(kubectl, *watch, within=660)
        took = time.monotonic() - start
        assert not before & uids(release), "a pod was not restarted"
    say(f"{took:.0f} s; {await account(release, 'RESTART', ledger)}")
    assert not warnings(release.namespace, ("FailedPreStopHook",))
    assert ledger.longest_gap() <= LIMIT


async def test_deleted_pods_come_back(release: Release, say: Say) -> None:
    async with load(release.url, "DELETE") as ledger:
        start = time.monotonic()
        for number in range(3):
            await asyncio.to_thread(kubectl, "delete", "pod", f"{release.full}-{number}", "-n", release.namespace)
            await release.until_ready()
        took = time.monotonic() - start
    say(f"{took:.0f} s; {await account(release, 'DELETE', ledger)}")
    assert not warnings(release.namespace, ("FailedPreStopHook",))
    assert ledger.longest_gap() <= LIMIT


async def test_pods_deleted_by_force_come_back(release: Release, say: Say) -> None:
    """The new pod may start while the old one still runs on the same volume. Nobody has told the client, or kube-proxy:
    a connection to the address of a pod that is gone is given up after 2 s by the client."""
    async with load(release.url, "FORCE") as ledger:
        start = time.monotonic()
        for number in range(3):
            pod, before = f"{release.full}-{number}", uids(release)
            await asyncio.to_thread(
                kubectl, "delete", "pod", pod, "-n", release.namespace, "--force", "--grace-period=0"
            )
            await until(lambda before=before: len(uids(release) - before) == 1, 60, "there is another pod")  # type: ignore[misc]
            await release.until_ready()
        took = time.monotonic() - start
    say(f"{took:.0f} s; {await account(release, 'FORCE', ledger)}")
    assert ledger.longest_gap() <= LIMIT + 2


async def test_drained_nodes(release: Release, say: Say) -> None:
    """Each node in turn: its pods move to the others, one at a time as the disruption budget allows it."""
    async with load(release.url, "DRAIN") as ledger:
        start = time.monotonic()
        for node in sorted(item["metadata"]["name"] for item in items("nodes")):
            words = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
            chosen = f"--pod-selector=app.kubernetes.io/instance={release.name}"
            try:
                await asyncio.to_thread(kubectl, *words, chosen, within=330)
                await release.until_ready()
                assert node not in {pod["spec"]["nodeName"] for pod in release.pods()}
            finally:
                kubectl("uncordon", node)
        took = time.monotonic() - start
    say(f"{took:.0f} s; {await account(release, 'DRAIN', ledger)}")
    assert not warnings(release.namespace, ("FailedPreStopHook",))
    assert ledger.longest_gap() <= LIMIT
