"""The Kubernetes manifests: checked against the API's schemas, and the same as what the chart renders."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from jetcluster.config.load import load_file
from jetcluster.config.options import Options
from testkit.certificates import Authority

TOP = Path(__file__).resolve().parents[2]
CHART = TOP / "deploy" / "helm" / "jetcluster"
PLAIN = TOP / "deploy" / "k8s" / "jetcluster.yaml"
VERSION = "1.31"


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = [document for document in found if document["kind"] == kind]
    return document


def render(*values: str, file: Path | None = None) -> str:
    helm = shutil.which("helm") or shutil.which("helm", path=str(TOP / ".tools" / "bin"))
    if helm is None:
        pytest.skip("no helm on this machine: run `make tools` (needs Go)")
    command = [helm, "template", "jetcluster", str(CHART), "--kube-version", f"{VERSION}.0", "-n", "default"]
    if file is not None:
        command += ["-f", str(file)]
    for value in values:
        command += ["--set", value]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def check(found: list[dict[str, Any]]) -> None:
    for document in found:
        if document["apiVersion"] != "monitoring.coreos.com/v1":  # the operator's own type: no schema here
            kubernetes_validate.validate(document, VERSION, strict=True)


def test_plain_manifests_are_valid() -> None:
    found = documents(PLAIN.read_text())
    assert {d["kind"] for d in found} == {
        "StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget", "ServiceAccount",
    }  # fmt: skip
    check(found)


def test_schema_check_can_fail() -> None:
    found = documents(PLAIN.read_text())
    one(found, "StatefulSet")["spec"]["replicas"] = "three"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(found)


def test_plain_manifests_are_what_the_chart_renders() -> None:
    assert documents(render()) == documents(PLAIN.read_text())


def test_configuration_file_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "server.conf"
    path.write_text(one(documents(PLAIN.read_text()), "ConfigMap")["data"]["server.conf"])
    options, pedantic = load_file(str(path))
    assert not pedantic
    assert (options.port, options.http_port, options.jetstream.enabled) == (4222, 8222, True)


def test_probes_are_the_three_questions() -> None:
    (container,) = one(documents(PLAIN.read_text()), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz?startup=true"
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz?js-server-only=true"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz?js-enabled-only=true"


def test_the_image_asks_for_readiness() -> None:
    """Docker has one question: `docker compose up --wait` takes it for "clients may come", others for "restart it"."""
    lines = [
        line for line in (TOP / "deploy" / "Dockerfile").read_text().splitlines() if line.startswith("HEALTHCHECK ")
    ]
    (command,) = [json.loads(line.partition(" CMD ")[2]) for line in lines]
    (container,) = one(documents(PLAIN.read_text()), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert command == ["probe.py", container["readinessProbe"]["httpGet"]["path"]]
    services = yaml.safe_load((TOP / "compose.yaml").read_text())["services"].values()
    assert not any("healthcheck" in service for service in services), "the image's own"


def test_values(tmp_path: Path) -> None:
    text = render(
        "config.cluster.replicas=5",
        "config.nats.port=5222",
        "config.workers=4",
        "config.cluster.port=7222",
        "config.jetstream.fileStore.maxSize=8GiB",
        "config.jetstream.fileStore.pvc.storageClassName=fast",
        "config.merge.max_payload=4194304",
        "serviceMonitor.enabled=true",
        "namespaceOverride=elsewhere",
        "extraResources[0].apiVersion=v1",
        "extraResources[0].kind=Secret",
        "extraResources[0].metadata.name=more",
        "container.image.repository=registry.example/jetcluster",
        "container.image.tag=9",
    )
    found = documents(text)
    check(found)
    spec = one(found, "StatefulSet")["spec"]
    assert one(found, "StatefulSet")["metadata"]["namespace"] == "elsewhere"
    assert one(found, "Secret")["metadata"]["name"] == "more"
    assert spec["replicas"] == 5
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/jetcluster:9"
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (env["JETCLUSTER_REPLICAS"], env["JETCLUSTER_PORT"]) == ("5", "7222")
    assert one(found, "ServiceMonitor")["spec"]["endpoints"][0]["path"] == "/metrics"
    path = tmp_path / "server.conf"
    path.write_text(one(found, "ConfigMap")["data"]["server.conf"])
    options, _ = load_file(str(path))
    assert (options.port, options.max_payload, options.jetstream.max_file_store) == (5222, 4 << 20, 8 << 30)
    assert options.workers == 4
    assert configuration(documents(render("config.workers=auto")), tmp_path).workers == 0
    assert '"workers"' not in render()


def test_pods_that_go_and_come_back(tmp_path: Path) -> None:
    found = documents(render())
    assert configuration(found, tmp_path).jetstream.set_aside_removed
    kept = {"whenScaled": "Retain", "whenDeleted": "Retain"}
    assert one(found, "StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"] == kept
    store = "config.jetstream.fileStore"
    other = documents(render(f"{store}.pvc.whenScaled=Delete", f"{store}.setAsideRemoved=false"))
    check(other)
    assert one(other, "StatefulSet")["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Delete"
    assert not configuration(other, tmp_path).jetstream.set_aside_removed


def configuration(found: list[dict[str, Any]], folder: Path) -> Options:
    path = folder / "server.conf"
    path.write_text(one(found, "ConfigMap")["data"]["server.conf"])
    options, pedantic = load_file(str(path))
    assert not pedantic
    return options


def test_tls_of_clients_routes_and_leaf_links(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("node")
    tls = {"enabled": "true", "secretName": "s", "dir": tmp_path, "cert": cert.name, "key": key.name}
    blocks = ("nats", "cluster", "leafnodes")
    values = [f"config.{block}.tls.{name}={value}" for block in blocks for name, value in tls.items()]
    values += [f"config.{block}.tls.secretName={block}-secret" for block in blocks]
    found = documents(
        render(
            *values,
            "config.leafnodes.enabled=true",
            "config.leafnodes.tls.merge.verify=true",
            "config.leafnodes.merge.authorization.user=u",
            "config.cluster.merge.authorization.user=r",
            "config.cluster.merge.authorization.password=s",
            "config.jetstream.merge.domain=hub",
            "tlsCA.enabled=true",
            "tlsCA.configMapName=ca",
            f"tlsCA.dir={tmp_path}",
            f"tlsCA.key={authority.file.name}",
        )
    )
    check(found)
    options = configuration(found, tmp_path)
    for read in (options.tls, options.cluster.tls, options.leafnodes.tls):
        assert read is not None
        assert (read.cert_file, read.key_file, read.ca_file) == (str(cert), str(key), str(authority.file))
    assert options.leafnodes.tls is not None
    assert options.leafnodes.tls.verify
    assert (options.leafnodes.port, options.domain, options.cluster.authorization.user) == (7422, "hub", "r")
    pod = one(found, "StatefulSet")["spec"]["template"]["spec"]
    secrets = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert secrets == {"nats-secret", "cluster-secret", "leafnodes-secret"}
    names = {volume["name"] for volume in pod["volumes"]} | {"data"}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == names
    for service in (document for document in found if document["kind"] == "Service"):
        assert 7422 in {port["port"] for port in service["spec"]["ports"]}


def test_values_of_an_edge(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    found = documents(render(file=CHART / "values-edge.yaml"))
    check(found)
    text = one(found, "ConfigMap")["data"]["server.conf"].replace("/etc/nats-ca-cert/ca.crt", str(authority.file))
    one(found, "ConfigMap")["data"]["server.conf"] = text
    options = configuration(found, tmp_path)
    (remote,) = options.leafnodes.remotes
    assert (remote.urls, remote.credentials) == (["tls://hub.example.com:7422"], "/etc/hub-user/hub.creds")
    assert (options.domain, options.leafnodes.port) == ("edge", 0)
    (container,) = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (env["JETCLUSTER_MIRROR"], env["JETCLUSTER_MIRROR_DOMAIN"]) == ("ORDERS", "hub")


@pytest.mark.parametrize(
    "values",
    [
        ["config.monitor.enabled=false"],
        ["config.cluster.tls.enabled=true"],
        ["mirror.streams={A}", "config.nats.tls.enabled=true", "config.nats.tls.secretName=x"],
    ],
)
def test_values_that_cannot_be(values: list[str]) -> None:
    render()
    with pytest.raises(subprocess.CalledProcessError):
        render(*values)


def test_one_node_without_a_cluster() -> None:
    found = documents(render("config.cluster.enabled=false", "config.jetstream.fileStore.pvc.enabled=false"))
    check(found)
    spec = one(found, "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert "volumeClaimTemplates" not in spec
    assert not [d for d in found if d["kind"] == "PodDisruptionBudget"]
    (container,) = spec["template"]["spec"]["containers"]
    assert "JETCLUSTER_REPLICAS" not in {entry["name"] for entry in container["env"]}
