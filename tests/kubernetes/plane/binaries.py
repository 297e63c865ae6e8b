"""Kubernetes itself: built from its Go module once, as one program with a link for each of its parts."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.kubernetes.plane.folders import BIN
from tests.kubernetes.plane.needs import PATH, program

VERSION: Final = (1, 34, 4)
"""As in go.mod. A build by Go alone calls itself v0.0.0, for which helm installs no chart."""
NAMES: Final = "k8s.io/component-base/version"
LINK: Final = (
    f"-s -w -X {NAMES}.gitVersion=v{'.'.join(map(str, VERSION))} -X {NAMES}.gitMajor={VERSION[0]} "
    f"-X {NAMES}.gitMinor={VERSION[1]}"
)
SOURCES: Final = Path(__file__).parent / "go"
PARTS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")


def build() -> None:
    """Builds what is not there: 17 minutes of processor time. Raises CalledProcessError."""
    BIN.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sources) + LINK.encode()).hexdigest()[:12]
    whole = BIN / f"kubernetes-{digest}"
    if not whole.exists():
        print("kubernetes: building it with Go; takes 17 minutes of processor time, once", flush=True)
        start = time.monotonic()
        _compile(whole)
        print(f"kubernetes: built in {time.monotonic() - start:.0f} s", flush=True)
        for old in BIN.glob("kubernetes-*"):
            if old != whole:
                old.unlink()
    for part in PARTS:
        link = BIN / part
        link.unlink(missing_ok=True)
        link.symlink_to(whole.name)


def _compile(whole: Path) -> None:
    """In a folder of its own: go writes the modules' modules and their sums into the file."""
    go = program("go")
    assert go is not None, "needs.install has looked for it"
    with tempfile.TemporaryDirectory() as scratch:
        for file in SOURCES.iterdir():
            shutil.copy(file, scratch)
        env = {**os.environ, "PATH": PATH, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false -p=2"}
        part = whole.with_suffix(".part")
        command = [go, "build", "-trimpath", "-ldflags", LINK, "-o", str(part), "."]
        subprocess.run(command, cwd=scratch, env=env, check=True)
        part.rename(whole)
