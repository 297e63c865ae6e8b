"""`helm upgrade` from chart and image of the commit before to these, under load, and `helm rollback`.

`JETCLUSTER_PREVIOUS` names another commit, branch or tag to begin with."""

from __future__ import annotations

import asyncio
import time

import pytest

from testkit.previous import unpacked
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import helm, warnings
from tests.kubernetes.load import LIMIT, load
from tests.kubernetes.plane.folders import CHART, TOP
from tests.kubernetes.plane.images import previous
from tests.kubernetes.release import Release, account


def images(release: Release) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in release.pods()}


async def test_upgrade_and_rollback(release: Release, say: Say) -> None:
    commit = previous()
    if not commit:
        pytest.skip("no commit before this one here: there is nothing to upgrade from")
    release.chart = unpacked(TOP, commit).resolve() / "deploy" / "helm" / "jetcluster"
    # An older chart had its clients learn the addresses of pods, and wait for those that are gone.
    told = "config.cluster.merge.no_advertise=true"
    await asyncio.to_thread(release.install, "container.image.tag=before", told)
    assert images(release) == {"jetcluster:before"}
    release.chart = CHART
    async with load(release.url, "UPGRADE") as ledger:
        start = time.monotonic()
        await asyncio.to_thread(release.upgrade, "container.image.tag=now")
        took = time.monotonic() - start
        assert images(release) == {"jetcluster:now"}
        done = await asyncio.to_thread(
            helm, "rollback", release.name, "1", "-n", release.namespace, "--wait", "--timeout", "600s"
        )
        assert done.code == 0, f"{done.out}\n{release.state()}"
        assert images(release) == {"jetcluster:before"}
        back = time.monotonic() - start - took
    said = await account(release, "UPGRADE", ledger)
    say(f"from {commit[:8]}: {took:.0f} s, and {back:.0f} s back; {said}")
    assert not warnings(release.namespace, ("FailedPreStopHook",))
    assert ledger.longest_gap() <= LIMIT
