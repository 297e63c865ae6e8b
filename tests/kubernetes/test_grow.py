"""Volumes that get full and are made larger by deploy/grow-volumes.sh; this test is the storage that grows them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.client import Client, create_stream
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import items, kubectl, run
from tests.kubernetes.plane.folders import BIN, TOP
from tests.kubernetes.release import Release

SMALL, LARGE = 256, 512
"""MiB"""


@pytest.fixture
def disks(release: Release, volumes: Path) -> Iterator[dict[str, Path]]:
    """Claim: a disk in memory, which can grow while it is mounted."""
    found = {f"data-{release.full}-{n}": volumes / release.namespace / f"data-{release.full}-{n}" for n in range(3)}
    for folder in found.values():
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}m", "tmpfs", str(folder)], check=True)
    for claim in found:  # there is no claim yet: nobody uses them
        patch = {"spec": {"capacity": {"storage": f"{SMALL}Mi"}}}
        kubectl("patch", "pv", f"{release.namespace}-{claim}", "--type=merge", "-p", json.dumps(patch))
    yield found
    for folder in found.values():
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def resize(release: Release, disks: dict[str, Path]) -> None:
    """Does what a storage driver does: sees a claim that asks for more, makes its disk larger, and says so."""
    while True:
        for claim in await asyncio.to_thread(items, "persistentvolumeclaims", release.namespace):
            name = claim["metadata"]["name"]
            asked, has = claim["spec"]["resources"]["requests"]["storage"], claim["status"].get("capacity", {})
            if name in disks and asked == f"{LARGE}Mi" and has.get("storage") != asked:
                options = f"remount,size={LARGE}m"
                subprocess.run(["mount", "-o", options, str(disks[name])], check=True)
                capacity = {"capacity": {"storage": asked}}
                volume, more = f"{release.namespace}-{name}", ("-n", release.namespace, "--subresource=status")
                kubectl("patch", "pv", volume, "--type=merge", "-p", json.dumps({"spec": capacity}))
                kubectl("patch", "pvc", name, *more, "--type=merge", "-p", json.dumps({"status": capacity}))
        await asyncio.sleep(0.5)


async def fill(release: Release) -> int:
    """Publishes until it is refused; messages that were acked."""
    async with await Client.connect(release.url) as client:
        await create_stream(client, "FULL", ["full"], 3)
        for n in range(SMALL * 4):
            answer = (await client.request("full", os.urandom(1 << 19), within=20)).json()
            if "error" in answer:
                return n
    raise AssertionError("the disk never got full")


async def test_a_full_volume_grows(release: Release, disks: dict[str, Path], say: Say) -> None:
    size = "config.jetstream.fileStore.pvc.size"
    await asyncio.to_thread(release.install, f"{size}={SMALL}Mi", f"config.jetstream.fileStore.maxSize={LARGE}MiB")
    acked = await fill(release)
    before = [pod["metadata"]["uid"] for pod in release.pods()]
    script = str(TOP / "deploy" / "grow-volumes.sh")
    resizer = asyncio.create_task(resize(release, disks))
    try:
        words = ("env", f"KUBECTL={BIN / 'kubectl'}", script, "-n", release.namespace, release.full, f"{LARGE}Mi")
        done = await asyncio.to_thread(run, *words)
        assert done.code == 0, done.out
    finally:
        resizer.cancel()
    assert not items("statefulsets", release.namespace), done.out
    await asyncio.to_thread(release.upgrade, f"{size}={LARGE}Mi")
    assert [pod["metadata"]["uid"] for pod in release.pods()] == before, "pods were restarted"
    async with await Client.connect(release.url) as client:
        for n in range(acked, acked + 50):
            answer = (await client.request("full", os.urandom(1 << 19), within=20)).json()
            assert answer.get("seq") == n + 1, answer
    say(f"full after {acked} messages of 512 KiB on {SMALL} MiB; grown to {LARGE} MiB, no restart, 50 more stored")
