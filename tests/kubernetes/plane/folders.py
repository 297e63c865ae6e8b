"""The folders of the control plane, and the addresses that it uses."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TOP: Final = Path(__file__).resolve().parents[3]
CHART: Final = TOP / "deploy" / "helm" / "jetcluster"
KEPT: Final = TOP / ".tools" / "kubernetes"
"""Folder of all that is made once: the program, the pause image, the docker daemon's layers."""
BIN: Final = KEPT / "bin"
FIGURES: Final = TOP / "build" / "kubernetes.md"
"""Rows of the table in docs/deploy/kubernetes-tests.md, one for each test that has figures."""
IMAGES: Final = KEPT / "images.tar"
"""The images of the last run, as `docker save` writes them."""
PAUSE: Final = KEPT / "pause.tar"

# 198.18.0.0/15 is for tests of networks (RFC 2544): nobody's network at home has it.
BRIDGE: Final = "jk0"
HOST: Final = "198.18.0.1"
"""The machine, as pods see it: API server, kubelets and the name service."""
PODS: Final = "198.18.0.0/16"
SERVICES: Final = "198.19.0.0/17"
API_SERVICE: Final = "198.19.0.1"
BUILDER: Final = "198.19.200.1/24"
"""The bridge of a docker daemon that is started for the image alone."""
DOMAIN: Final = "cluster.local"
PORT: Final = 6443
NODES: Final = ("n1", "n2", "n3")
