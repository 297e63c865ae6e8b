#!/opt/jetcluster/bin/python -IS
"""`zone.py NODE LABEL FILE`: writes the value of a label of the Kubernetes node into FILE; for an init container.

Only for clusters that do not copy the topology labels to pods. The service account, which may read nodes, is mounted at
SERVICE_ACCOUNT, by default where Kubernetes puts it. A node without the label leaves FILE empty.
"""

import json
import os
import ssl
import sys
import urllib.parse
import urllib.request
from pathlib import Path

node, label, file = sys.argv[1:]
account = Path(os.environ.get("SERVICE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
address = f"[{host}]" if ":" in host else host
request = urllib.request.Request(
    f"https://{address}:{port}/api/v1/nodes/{urllib.parse.quote(node)}",
    headers={"Authorization": f"Bearer {(account / 'token').read_text().strip()}"},
)
context = ssl.create_default_context(cafile=str(account / "ca.crt"))
try:
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
        labels = json.load(answer)["metadata"].get("labels", {})
except OSError as error:
    sys.exit(f"zone: node {node}: {error}")
Path(file).write_text(labels.get(label, ""))
