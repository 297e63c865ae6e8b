"""The needs of a machine: installed where Debian's packages can be had, said in one line where not."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.kubernetes.plane.folders import TOP

PACKAGES: Final = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "cc": "gcc",
}
"""Program: Debian's package."""
PLUGINS: Final = Path("/usr/lib/cni")
PATH: Final = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"


def program(name: str) -> str | None:
    """Path of a program, of this tree's tools too."""
    return shutil.which(name, path=f"{TOP / '.tools' / 'bin'}:{PATH}")


def impossible() -> str:
    """Says what nothing can be installed for; "" for nothing."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"it needs Linux on x86_64, this is {platform.system()} on {platform.machine()}"
    if os.geteuid() != 0:
        return "it needs root: for network namespaces, mounts and control groups"
    if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
        return "it may not make namespaces here (unshare)"
    return ""


def missing() -> list[str]:
    """Debian's packages that are not there."""
    wanted = [package for name, package in PACKAGES.items() if program(name) is None]
    if not (PLUGINS / "bridge").exists():
        wanted.append("containernetworking-plugins")
    # An image can only be built by docker. Its client may be there without a daemon.
    if subprocess.run(["docker", "info"], capture_output=True).returncode if program("docker") else True:
        wanted += ["docker.io"] if program("dockerd") is None else []
        wanted += ["debootstrap"] if program("debootstrap") is None else []
    return wanted


def install() -> str:
    """Installs what is missing; returns what is still missing, in one line, "" for nothing."""
    if reason := impossible():
        return reason
    if (packages := missing()) and program("apt-get"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        print(f"kubernetes: installing with apt-get: {' '.join(packages)}", flush=True)
        words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        for command in (["apt-get", "update", "-qq"], words):
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
    if program("go") is None:
        return "it needs Go 1.24 or newer, to build Kubernetes"
    if program("helm") is None:
        subprocess.run([str(TOP / "scripts" / "tools.sh"), "helm"], env={**os.environ, "PATH": PATH}, check=False)
    if program("helm") is None:
        return "it needs helm (scripts/tools.sh helm)"
    still = missing()
    return f"it needs Debian's packages {', '.join(still)}" if still else ""
