"""Runs the tests of this folder on a control plane of their own: `python -m tests.kubernetes [--hold] [pytest words]`.

`--hold`: brings the control plane up and waits, for a look by hand. `--built`: takes the images of the last run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kubernetes.plane import binaries, images, needs
from tests.kubernetes.plane.folders import FIGURES, TOP
from tests.kubernetes.plane.machine import remove_groups
from tests.kubernetes.plane.plane import Plane

UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
INIT = '"$@"; exit $?'
"""A shell is process 1 of the namespaces, as it also waits for orphans."""
AT_ONCE = ("-n", "2", "--dist", "loadfile")
"""Most of the time of a rolling restart is waiting: for leaderships, clients and probes."""
INSIDE = "--inside"


def outside(words: Sequence[str]) -> int:
    """Makes what is needed, and then namespaces, with which every process, mount and address goes at the end."""
    built = "--built" in words
    words = [word for word in words if word != "--built"]
    if reason := needs.install():
        print(f"kubernetes: not run: {reason}")
        return 1
    binaries.build()
    if not built:
        images.build()
    folder = Path(tempfile.mkdtemp(prefix="jck-", dir="/var/tmp"))
    folder.chmod(0o755)
    command = [*UNSHARE, "sh", "-c", INIT, "sh", sys.executable, "-m", "tests.kubernetes", INSIDE, str(folder), *words]
    try:
        return subprocess.run(command, cwd=TOP, check=False, env={**os.environ, "PATH": needs.PATH}).returncode
    finally:
        remove_groups()
        logs = TOP / "build" / "kubernetes"
        shutil.rmtree(logs, ignore_errors=True)
        shutil.copytree(folder / "plane" / "logs", logs, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def inside(folder: Path, words: Sequence[str]) -> int:
    # Mounts made here are to be seen by containers, and by nobody outside.
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    with Plane(folder / "plane") as plane:
        FIGURES.parent.mkdir(exist_ok=True)
        FIGURES.write_text("")
        env = {**os.environ, "JETCLUSTER_PLANE": str(folder), "KUBECONFIG": str(plane.kubeconfig)}
        if "--hold" in words:
            enter = f"nsenter -t PID -n -m -p env JETCLUSTER_PLANE={folder} KUBECONFIG={plane.kubeconfig} bash"
            print(
                f"kubernetes: it runs until this is ended. PID: the child of unshare. To enter it:\n{enter}", flush=True
            )
            return subprocess.run(["sleep", "infinity"], check=False).returncode
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rs", *AT_ONCE, *(words or ["tests/kubernetes"])],
            env=env,
            check=False,
        ).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        sys.exit(inside(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(outside(sys.argv[1:]))
