"""kubectl and helm, as the tests say them, and waiting for what they lead to."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.plane.folders import BIN
from tests.kubernetes.plane.needs import program

Object = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A command that has ended: `out` has both of its outputs."""

    code: int
    out: str


def run(*words: str, within: float = 300.0, text: str = "") -> Done:
    """Raises TimeoutExpired."""
    done = subprocess.run(
        words, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=within, check=False
    )
    return Done(done.returncode, done.stdout)


def kubectl(*words: str, within: float = 300.0, text: str = "") -> str:
    """Its output; fails the test where it does not end with 0."""
    done = run(str(BIN / "kubectl"), *words, within=within, text=text)
    assert done.code == 0, f"kubectl {' '.join(words)}: {done.out}"
    return done.out


def apply(*objects: Object) -> None:
    kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))


GROUPS = {"statefulsets": "apis/apps/v1", "jobs": "apis/batch/v1", "cronjobs": "apis/batch/v1"}
"""Paths of the kinds that are not of the core API."""


@functools.cache
def _access() -> tuple[str, ssl.SSLContext, dict[str, str]]:
    """URL, TLS and headers of the API server, out of the file that kubectl reads."""
    config = json.loads(Path(os.environ["KUBECONFIG"]).read_text())
    (cluster,), (user,) = config["clusters"], config["users"]
    context = ssl.create_default_context(cafile=cluster["cluster"]["certificate-authority"])
    return cluster["cluster"]["server"], context, {"Authorization": f"Bearer {user['user']['token']}"}


def _read(kind: str, namespace: str, rest: str) -> Object:
    """Without kubectl, whose start takes a fifth of a second of processor time: tests ask often."""
    server, context, headers = _access()
    within = "" if kind == "nodes" else f"namespaces/{namespace}/"
    url = f"{server}/{GROUPS.get(kind, 'api/v1')}/{within}{kind}{rest}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=context, timeout=30) as answer:
        return dict(json.load(answer))


def get(kind: str, name: str, namespace: str = "default") -> Object:
    """`kind` as in the API's paths, e.g. pods. Raises HTTPError."""
    return _read(kind, namespace, f"/{name}")


def items(kind: str, namespace: str = "default", selector: str = "") -> list[Object]:
    return list(_read(kind, namespace, f"?labelSelector={urllib.parse.quote(selector)}")["items"])


def helm(*words: str, within: float = 900.0) -> Done:
    command = program("helm")
    assert command is not None
    return run(command, *words, within=within)


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    running = "deletionTimestamp" not in pod["metadata"]
    return running and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def secret(name: str, namespace: str = "default") -> dict[str, str]:
    data = get("secrets", name, namespace)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def make_secret(name: str, files: dict[str, Path], namespace: str = "default", kind: str = "Opaque") -> None:
    data = {key: base64.b64encode(file.read_bytes()).decode() for key, file in files.items()}
    metadata = {"name": name, "namespace": namespace}
    apply({"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "data": data})


async def until(ready: Callable[[], object], within: float, what: str, *, every: float = 0.5) -> float:
    """Seconds until `ready`, which is asked in a thread, returns something true. Fails the test after `within`."""
    start = time.monotonic()
    while not await asyncio.to_thread(ready):
        assert time.monotonic() - start < within, f"not within {within:.0f} s: {what}"
        await asyncio.sleep(every)
    return time.monotonic() - start


def plane_folder() -> Path | None:
    """The folder of the control plane that this process is in, None where there is none."""
    folder = os.environ.get("JETCLUSTER_PLANE")
    return Path(folder) if folder else None


def warnings(namespace: str, kinds: Sequence[str] = ()) -> list[str]:
    """The events of type Warning, `reason: message`; of these reasons alone if there are any."""
    found = [event for event in items("events", namespace) if event["type"] == "Warning"]
    return [f"{e['reason']}: {e.get('message', '')}" for e in found if not kinds or e["reason"] in kinds]
