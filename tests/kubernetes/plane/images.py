"""The images that pods run: jetcluster's, that of the commit before, and the one that holds a pod's namespaces."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testkit.previous import commit_before, git, unpacked
from tests.kubernetes.plane.folders import BUILDER, IMAGES, KEPT, PAUSE, TOP
from tests.kubernetes.plane.needs import PATH

NOW: Final = "jetcluster:now"
BEFORE: Final = "jetcluster:before"
PAUSE_NAME: Final = "localhost/pause:1"
PAUSE_SOURCE: Final = "int pause(void); int main(void) { for (;;) pause(); }\n"


def previous() -> str:
    """The commit that is upgraded from: the one before this, or JETCLUSTER_PREVIOUS. "" where there is none."""
    asked = os.environ.get("JETCLUSTER_PREVIOUS", "")
    return git(TOP, "rev-parse", "--verify", "--quiet", f"{asked}^{{commit}}") if asked else commit_before(TOP)


def build() -> None:
    """Writes IMAGES and PAUSE. Raises CalledProcessError, TimeoutError (no docker daemon)."""
    KEPT.mkdir(parents=True, exist_ok=True)
    if not PAUSE.exists():
        make_pause(PAUSE)
    with _daemon() as env:
        names = [NOW]
        _build(TOP, NOW, env)
        if commit := previous():
            _build(unpacked(TOP, commit).resolve(), BEFORE, env)
            names.append(BEFORE)
        subprocess.run(["docker", "save", "-o", str(IMAGES), *names], env=env, check=True)


def _build(tree: Path, name: str, env: dict[str, str]) -> None:
    start = time.monotonic()
    log = KEPT / f"build-{name.partition(':')[2]}.log"
    with log.open("wb") as out:
        done = subprocess.run([str(tree / "deploy" / "build-image.sh"), name], env=env, stdout=out, stderr=out)
    if done.returncode:
        raise RuntimeError(f"{name} could not be built: {log}\n{log.read_text()[-2000:]}")
    said = log.read_text().strip().splitlines()[-1]
    print(f"kubernetes: image {name} in {time.monotonic() - start:.0f} s: {said}", flush=True)


@contextmanager
def _daemon() -> Iterator[dict[str, str]]:
    """The environment of a docker that answers: this machine's, or one that runs meanwhile with data of its own."""
    env = {**os.environ, "PATH": PATH}
    if subprocess.run(["docker", "info"], env=env, capture_output=True).returncode == 0:
        yield env
        return
    folder = KEPT / "docker"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jck-docker-") as run, (KEPT / "dockerd.log").open("wb") as log:
        env["DOCKER_HOST"] = f"unix://{run}/s"
        daemon = subprocess.Popen(
            ["dockerd", "--host", env["DOCKER_HOST"], "--data-root", str(folder), "--exec-root", f"{run}/exec",
             "--pidfile", f"{run}/pid", "--bip", BUILDER], env=env, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _until_answering(env, daemon)
            yield env
        finally:
            daemon.terminate()
            daemon.wait(60)


def _until_answering(env: dict[str, str], daemon: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while subprocess.run(["docker", "info"], env=env, capture_output=True).returncode:
        if daemon.poll() is not None or time.monotonic() > end:
            raise TimeoutError(f"no docker daemon answers: {KEPT / 'dockerd.log'}")
        time.sleep(0.3)


def make_pause(target: Path) -> None:
    """Writes an image of one program that waits, as `docker save` does. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        command = ["cc", "-static", "-Os", "-s", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=PAUSE_SOURCE.encode(), check=True)
        layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    config = {
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_NAME], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    whole = {name: json.dumps(content).encode() for name, content in files.items()}
    target.write_bytes(_tar({**whole, "layer.tar": layer}))


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            packed.addfile(entry, io.BytesIO(content))
    return out.getvalue()
