"""The CronJob of a backup, run by hand as docs/backup.md says; what it wrote is restored under another name."""

from __future__ import annotations

import asyncio
from pathlib import Path

from testkit.client import Client, create_stream
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import Object, apply, get, items, kubectl, until
from tests.kubernetes.release import Release
from tests.kubernetes.volumes import volume

CLAIM: Object = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}  # fmt: skip


AS = ("--stream", "ORDERS", "--as", "COPY", "--subject", "copy.>")


async def publish(release: Release, first: int, count: int) -> None:
    async with await Client.connect(release.url) as client:
        for n in range(first, first + count):
            assert b'"seq"' in (await client.request("orders.new", b"order %d" % n)).data


async def ended(release: Release, job: str) -> str:
    """The log of a job that succeeded."""

    def state() -> str:
        status = get("jobs", job, release.namespace).get("status", {})
        return "succeeded" if status.get("succeeded") else "failed" if status.get("failed") else ""

    await until(state, 180, f"the job {job} has ended")
    log = kubectl("logs", f"job/{job}", "-n", release.namespace)
    assert state() == "succeeded", f"{log}\n{release.state()}"
    return log


async def test_backup_by_hand_and_restore(release: Release, volumes: Path, say: Say) -> None:
    folder = volumes / release.namespace / "backups"
    folder.mkdir(parents=True)
    apply(
        volume(folder, release.namespace, "backups", "1Gi"),
        CLAIM | {"metadata": {"name": "backups", "namespace": release.namespace}},
    )
    job = "backup.jobs[0]"
    await asyncio.to_thread(
        release.install, f"{job}.name=orders", f"{job}.destination=/backup/orders", f"{job}.volumeClaim=backups"
    )
    async with await Client.connect(release.url) as client:
        await create_stream(client, "ORDERS", ["orders.>"], 3)
    (cron,) = items("cronjobs", release.namespace)
    source = f"--from=cronjob/{cron['metadata']['name']}"
    logs = []
    for number in range(2):
        await publish(release, number * 500, 500)
        kubectl("create", "job", f"by-hand-{number}", source, "-n", release.namespace)
        logs.append(await ended(release, f"by-hand-{number}"))
    template = cron["spec"]["jobTemplate"]["spec"]
    (container,) = template["template"]["spec"]["containers"]
    container["command"] = ["jetcluster", "restore", "/backup/orders", "--no-context", *AS]
    metadata = {"name": "restore", "namespace": release.namespace}
    apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template})
    await ended(release, "restore")
    async with await Client.connect(release.url) as client:
        state = (await client.api("STREAM.INFO.COPY"))["state"]
        assert state["messages"] == 1000
        last = await client.request("$JS.API.DIRECT.GET.COPY", b'{"seq":1000}')
        assert last.data == b"order 999"
    say(
        f"two backups, restored as another stream: {state['messages']} messages. The second: {logs[1].splitlines()[-1]}"
    )
