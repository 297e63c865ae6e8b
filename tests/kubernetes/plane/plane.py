"""The control plane as a whole: it runs as long as the `with` block, in the namespaces of this process."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from tests.kubernetes.plane.credentials import Credentials
from tests.kubernetes.plane.folders import BIN, BRIDGE, DOMAIN, HOST, NODES, PODS, PORT, SERVICES
from tests.kubernetes.plane.machine import Machine
from tests.kubernetes.plane.processes import Processes

ETCD = "http://127.0.0.1:2379"


class Plane:
    """`folder` must not be there yet, and its path be short: sockets are in it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._processes = Processes(folder / "logs")
        self._credentials = Credentials(folder / "pki")
        self.kubeconfig = self._credentials.kubeconfig
        networks, resolv = folder / "networks", folder / "resolv.conf"
        networks.mkdir()
        resolv.write_text(f"nameserver {HOST}\n")
        (networks / "10-pods.conflist").write_text(json.dumps(network()))
        self.machines = [Machine(folder, n + 1, self.kubeconfig, networks, resolv) for n in range(len(NODES))]

    def __enter__(self) -> Plane:
        start = time.monotonic()
        try:
            bridge()
            self._start_server()
            self._start_controllers()
            with ThreadPoolExecutor() as pool:  # each unpacks the images, which takes half a minute
                list(pool.map(lambda machine: machine.start_runtime(self._processes), self.machines))
            for machine in self.machines:
                machine.start_kubelet(self._processes)
            self._until_ready()
        except BaseException:
            self._end()
            raise
        print(f"kubernetes: {len(NODES)} nodes are ready after {time.monotonic() - start:.0f} s", flush=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def kubectl(self, *words: str, check: bool = True) -> str:
        """Its output. Raises CalledProcessError."""
        command = [str(BIN / "kubectl"), "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check).stdout

    def _start_server(self) -> None:
        data = self.folder / "etcd"
        self._processes.start(
            "etcd", "etcd", "--data-dir", str(data), "--unsafe-no-fsync", "--listen-client-urls", ETCD,
            "--advertise-client-urls", ETCD, "--listen-peer-urls", "http://127.0.0.1:2380",
        )  # fmt: skip
        own = self._credentials
        self._processes.start(
            "api-server", str(BIN / "kube-apiserver"), f"--etcd-servers={ETCD}", f"--secure-port={PORT}",
            "--bind-address=0.0.0.0", f"--advertise-address={HOST}",
            f"--tls-cert-file={own.certificate}", f"--tls-private-key-file={own.key}",
            f"--token-auth-file={own.tokens}", "--authorization-mode=RBAC",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-account-key-file={own.accounts_key}",
            f"--service-account-signing-key-file={own.accounts_key}",
            f"--service-cluster-ip-range={SERVICES}", "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        self._processes.until("api-server", self._answers)

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=self._credentials.ca)
        headers = {"Authorization": f"Bearer {self._credentials.token}"}
        request = urllib.request.Request(f"https://127.0.0.1:{PORT}/readyz", headers=headers)
        try:
            with urllib.request.urlopen(request, context=context, timeout=5) as found:
                return bool(found.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def _start_controllers(self) -> None:
        own = self._credentials
        self._processes.start(
            "controllers", str(BIN / "kube-controller-manager"), f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false", f"--service-account-private-key-file={own.accounts_key}",
            f"--root-ca-file={own.ca}", "--use-service-account-credentials=false",
            # Under load a kubelet may be late; a test of lost nodes deletes them by itself.
            "--node-monitor-grace-period=120s",
        )  # fmt: skip
        self._processes.start(
            "scheduler", str(BIN / "kube-scheduler"), f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"
        )
        settings = self.folder / "proxy.json"
        settings.write_text(
            json.dumps(
                {
                    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
                    "clientConnection": {"kubeconfig": str(self.kubeconfig)}, "mode": "iptables",
                    "hostnameOverride": NODES[0], "clusterCIDR": PODS, "conntrack": {"maxPerCore": 0},
                }
            )
        )  # fmt: skip
        self._processes.start("proxy", str(BIN / "kube-proxy"), "--config", str(settings))
        module = "tests.kubernetes.plane.names"
        self._processes.start("names", sys.executable, "-m", module, own.token, str(own.ca))

    def _until_ready(self) -> None:
        def ready() -> bool:
            path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
            return self.kubectl("get", "nodes", "-o", f"jsonpath={path}").split() == ["True"] * len(NODES)

        self._processes.until(f"kubelet-{NODES[-1]}", ready)

    def _end(self) -> None:
        """Containers and mounts go with the namespaces; control groups do not, so pods are ended first."""
        if self._answers():
            words = ["--all-namespaces", "--all", "--wait=false"]
            self.kubectl("delete", "statefulset,job,cronjob", *words, check=False)
            self.kubectl("delete", "pod", "--grace-period=1", "--timeout=60s", *words[:2], check=False)
        self._processes.end_all()


def network() -> dict[str, object]:
    """All nodes' pods are on one bridge: no packet has to find its way from node to node."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    pods = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [pods, ports]}


def bridge() -> None:
    """Raises CalledProcessError: this process must be in a network namespace of its own, and root."""
    for words in (
        "ip link set lo up", f"ip link add {BRIDGE} type bridge", f"ip addr add {HOST}/16 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
        f"ip route add {SERVICES} dev {BRIDGE}", "iptables -P FORWARD ACCEPT",
    ):  # fmt: skip
        subprocess.run(words.split(), check=True)
    for key in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        file = Path("/proc/sys") / key
        if file.exists():
            file.write_text("1")
        else:
            print(f"kubernetes: no {file}: services may not be reached from their own pods", flush=True)
