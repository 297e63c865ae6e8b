"""`helm install` with nothing but its defaults: it gets ready, `helm test` passes, metrics and console are reached."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testkit.client import Client
from tests.kubernetes.conftest import Say
from tests.kubernetes.kube import helm, is_ready, kubectl, warnings
from tests.kubernetes.release import Release


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def test_install_with_defaults(release: Release, say: Say) -> None:
    release.install()
    assert release.all_ready()
    done = helm("test", release.name, "-n", release.namespace, "--logs", "--timeout", "120s")
    assert done.code == 0 and "Succeeded" in done.out, f"{done.out}\n{release.state()}"
    nodes = {pod["spec"]["nodeName"] for pod in release.pods()}
    assert len(nodes) == 3, f"pods are spread over nodes, these are on {nodes}"
    async with await Client.connect(release.url) as client:
        assert not (await client.api("INFO")).get("error")
    say(f"{len(nodes)} nodes; `helm test` passes: {done.out.count(': ok')} addresses are ok")


def test_metrics_of_each_pod(release: Release) -> None:
    for pod in filter(is_ready, release.pods()):
        families = text_string_to_metric_families(fetch(f"http://{pod['status']['podIP']}:8222/metrics"))
        assert "jetcluster_info" in {family.name for family in families}, pod["metadata"]["name"]


async def test_passwords_stay_and_let_the_operator_in(release: Release) -> None:
    """`jetcluster status` by a user of the system account; an upgrade, here one that turns the console on, makes no
    other passwords."""
    with pytest.raises((TimeoutError, urllib.error.URLError)):
        await asyncio.to_thread(fetch, f"http://{release.service()}:8222/ui/")  # it is off by default
    password = release.system_password()
    pod = f"{release.full}-0"
    words = ("env", "NATS_USER=system", f"NATS_PASSWORD={password}", "jetcluster", "status")
    said = await asyncio.to_thread(release.say, pod, *words)
    assert all(f"{release.full}-{n}" in said for n in range(3)), said
    release.upgrade("console.enabled=true")
    assert release.system_password() == password
    assert (await asyncio.to_thread(release.say, pod, *words)).count(release.full) >= 3


def test_console_through_the_service(release: Release) -> None:
    assert "<html" in fetch(f"http://{release.service()}:8222/ui/")
    # Its page asks the same port for everything else.
    assert fetch(f"http://{release.service()}:8222/healthz")


def test_a_normal_stop_of_a_pod_warns_of_nothing(release: Release) -> None:
    """The upgrade above has stopped every pod."""
    assert not warnings(release.namespace, ("FailedPreStopHook", "BackOff", "FailedMount"))
    killing = [word for word in kubectl("get", "events", "-n", release.namespace).splitlines() if "Killing" in word]
    assert killing, "no pod was stopped: this test would be empty"
