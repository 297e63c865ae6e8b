"""One node of the cluster: a containerd and a kubelet, of which several run on this machine beside each other."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from jetcluster import __version__
from tests.kubernetes.plane.folders import BIN, DOMAIN, HOST, IMAGES, PAUSE
from tests.kubernetes.plane.images import NOW, PAUSE_NAME
from tests.kubernetes.plane.needs import PATH, PLUGINS
from tests.kubernetes.plane.processes import Processes

CGROUPS = Path("/sys/fs/cgroup")
GROUP = "jetcluster-plane-"
CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Where the machine's own processes may not lower their oom_score_adj, a pod's may not either.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{networks}"
"""


def hierarchies() -> list[Path]:
    """Version 1 of control groups has one per controller, version 2 one for all."""
    found = [top for top in CGROUPS.iterdir() if (top / "tasks").exists() and not top.is_symlink()]
    return found or [CGROUPS]


def remove_groups() -> None:
    """Control groups outlive the namespaces; nobody is in them any more then."""
    for group in (*CGROUPS.glob(f"{GROUP}*"), *CGROUPS.glob(f"*/{GROUP}*")):
        for folder, _, _ in os.walk(group, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError as error:
                print(f"kubernetes: {folder} stays: {error}", flush=True)


class Machine:
    """`number` from 1 on: its ports and its groups follow from it."""

    def __init__(self, root: Path, number: int, kubeconfig: Path, networks: Path, resolv: Path) -> None:
        self.name = f"n{number}"
        self._number = number
        self._folder = root / self.name
        self._socket = self._folder / "containerd.sock"
        self._kubeconfig, self._networks, self._resolv = kubeconfig, networks, resolv
        self._group = f"{GROUP}{self.name}"

    def start_runtime(self, processes: Processes) -> None:
        """Starts containerd and gives it the images. Raises RuntimeError, CalledProcessError."""
        self._folder.mkdir()
        file = self._folder / "containerd.toml"
        file.write_text(
            CONTAINERD.format(
                folder=self._folder, socket=self._socket, pause=PAUSE_NAME, plugins=PLUGINS, networks=self._networks
            )
        )
        name = f"containerd-{self.name}"
        processes.start(name, "containerd", "-c", str(file))
        processes.until(name, lambda: self._ctr("version").returncode == 0)
        # As the chart's defaults call it.
        default = f"docker.io/library/jetcluster:{__version__}"
        for words in (("import", str(PAUSE)), ("import", str(IMAGES)), ("tag", f"docker.io/library/{NOW}", default)):
            done = self._ctr("-n", "k8s.io", "images", *words)
            if done.returncode:
                raise RuntimeError(f"images {' '.join(words)}: {done.stderr.decode()}")

    def start_kubelet(self, processes: Processes) -> None:
        for top in hierarchies():
            (top / self._group).mkdir(exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):  # a new group of version 1 has none
            new = CGROUPS / "cpuset" / self._group / key
            if new.exists():
                new.write_text((CGROUPS / "cpuset" / key).read_text())
        file = self._folder / "kubelet.json"
        file.write_text(json.dumps(self._settings()))
        processes.start(
            f"kubelet-{self.name}", str(BIN / "kubelet"), f"--config={file}", f"--kubeconfig={self._kubeconfig}",
            f"--root-dir={self._folder / 'kubelet'}", f"--cert-dir={self._folder / 'pki'}",
            f"--hostname-override={self.name}", f"--node-ip={HOST}", "--v=1",
        )  # fmt: skip

    def end(self, processes: Processes) -> None:
        """The kubelet goes as on a machine that is cut off: its containers run on."""
        processes.end(f"kubelet-{self.name}")

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = ["ctr", "-a", str(self._socket), *words]
        return subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PATH": PATH})

    def _settings(self) -> dict[str, object]:
        """Its nodes are on one machine, whose disk the kubelet is not to clean up."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [HOST],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "port": 10250 + self._number * 100,
            "healthzPort": 10248 + self._number * 100,
            "readOnlyPort": 0,
            "podLogsDir": str(self._folder / "logs"),
            "makeIPTablesUtilChains": False,
            "resolvConf": str(self._resolv),
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": str(self._folder / "plugins"),
        }
