"""The Kubernetes manifests: checked against the API's schemas, and the same as what the chart renders."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from jetcluster.config.load import load_file
from jetcluster.config.option_checks import problem_of
from jetcluster.config.options import Options
from testkit.certificates import Authority
from tests.deploy.fake_api import Objects, api_server

TOP = Path(__file__).resolve().parents[2]
CHART = TOP / "deploy" / "helm" / "jetcluster"
PLAIN = TOP / "deploy" / "k8s" / "jetcluster.yaml"
VERSION = "1.31"


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def one(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = [document for document in found if document["kind"] == kind]
    return document


SECRET = "auth.existingSecret=jetcluster-auth"
"""As in the plain manifests: without it each rendering has other passwords."""
PASSWORDS = {"JETCLUSTER_ROUTE_PASSWORD": "r0ute", "JETCLUSTER_SYSTEM_PASSWORD": "s1e5"}


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that pods get from the secret."""
    for name, value in PASSWORDS.items():
        monkeypatch.setenv(name, value)


def render(*values: str, file: Path | None = None, hooks: bool = False, api: str = "") -> str:
    """`api`: URL of an API server, which `lookup` asks then."""
    helm = shutil.which("helm") or shutil.which("helm", path=str(TOP / ".tools" / "bin"))
    if helm is None:
        pytest.skip("no helm on this machine: run `make tools` (needs Go)")
    command = [helm, "template", "jetcluster", str(CHART), "--kube-version", f"{VERSION}.0", "-n", "default"]
    if not hooks:
        command.append("--no-hooks")
    if api:
        command += ["--dry-run=server", "--kube-apiserver", api, "--kube-token", "x", "--disable-openapi-validation"]
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
        "StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget", "ServiceAccount", "NetworkPolicy",
    }  # fmt: skip
    check(found)


def test_schema_check_can_fail() -> None:
    found = documents(PLAIN.read_text())
    one(found, "StatefulSet")["spec"]["replicas"] = "three"
    with pytest.raises(kubernetes_validate.ValidationError):
        check(found)


def test_plain_manifests_are_what_the_chart_renders() -> None:
    assert documents(render(SECRET)) == documents(PLAIN.read_text())


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
    assert "more" in {d["metadata"]["name"] for d in found if d["kind"] == "Secret"}
    assert spec["replicas"] == 5
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    (container,) = spec["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/jetcluster:9"
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["JETCLUSTER_REPLICAS"], env["JETCLUSTER_ROUTE_PORT"]) == ("5", "7222")
    assert one(found, "ServiceMonitor")["spec"]["endpoints"][0]["path"] == "/metrics"
    path = tmp_path / "server.conf"
    path.write_text(one(found, "ConfigMap")["data"]["server.conf"])
    options, _ = load_file(str(path))
    assert (options.port, options.max_payload, options.jetstream.max_file_store) == (5222, 4 << 20, 8 << 30)
    assert options.cluster.port == 7222
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


def test_the_console_and_the_ingress_of_the_comment(tmp_path: Path) -> None:
    """The example is what `extraResources` takes, and leads to a port that the service has."""
    assert not configuration(documents(render()), tmp_path).console
    lines = (CHART / "values.yaml").read_text().splitlines()
    start = lines.index("# extraResources:")
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("#"))
    example = tmp_path / "values.yaml"
    example.write_text("\n".join(line[2:] for line in lines[start:end]) + "\n")
    found = documents(render("console.enabled=true", "fullnameOverride=jc-jetcluster", file=example))
    check(found)
    assert configuration(found, tmp_path).console
    rule = one(found, "Ingress")["spec"]["rules"][0]["http"]["paths"][0]
    wanted = rule["backend"]["service"]
    (service,) = [
        document for document in found
        if document["kind"] == "Service" and document["metadata"]["name"] == wanted["name"]
    ]  # fmt: skip
    assert wanted["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


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
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (env["JETCLUSTER_MIRROR"], env["JETCLUSTER_MIRROR_DOMAIN"]) == ("ORDERS", "hub")


@pytest.mark.parametrize(
    "values",
    [
        ["config.monitor.enabled=false"],
        ["config.cluster.tls.enabled=true"],
        ["zones.readNode=true", "serviceAccount.enabled=false"],
        ["scaleDown.from=5", "config.workers=auto"],
    ],
)
def test_values_that_cannot_be(values: list[str]) -> None:
    render(hooks=True)
    with pytest.raises(subprocess.CalledProcessError):
        render(*values, hooks=True)


def test_one_node_without_a_cluster() -> None:
    found = documents(render("config.cluster.enabled=false", "config.jetstream.fileStore.pvc.enabled=false"))
    check(found)
    spec = one(found, "StatefulSet")["spec"]
    assert spec["replicas"] == 1
    assert "volumeClaimTemplates" not in spec
    assert not [d for d in found if d["kind"] == "PodDisruptionBudget"]
    (container,) = spec["template"]["spec"]["containers"]
    assert "JETCLUSTER_REPLICAS" not in {entry["name"] for entry in container["env"]}


def test_routes_have_a_password_and_the_system_account_a_user(tmp_path: Path) -> None:
    found = documents(render())
    secret = one(found, "Secret")
    made = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert all(re.fullmatch("[a-z][A-Za-z0-9]{31}", value) for value in made.values()), made
    assert len(set(made.values())) == 2
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (container,) = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    keys = {
        e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "secretKeyRef" in e.get("valueFrom", {})
    }
    assert {name: ref["key"] for name, ref in keys.items()} == {
        "JETCLUSTER_ROUTE_PASSWORD": "route-password", "JETCLUSTER_SYSTEM_PASSWORD": "system-password",
    }  # fmt: skip
    assert {ref["name"] for ref in keys.values()} == {secret["metadata"]["name"]}
    text = one(found, "ConfigMap")["data"]["server.conf"]
    assert not any(value in text for value in made.values())
    options = configuration(found, tmp_path)
    assert problem_of(replace(options, server_name="n", cluster=replace(options.cluster, name="c"))) is None
    assert (options.cluster.authorization.user, options.cluster.authorization.password) == ("route", "r0ute")
    assert not options.cluster.trusted_network
    assert options.system_account_name == "$SYS"
    assert options.no_auth_user == "anyone"


@pytest.mark.parametrize(
    "value", ["authorization.token=secret", "accounts.A.jetstream=enabled", "no_auth_user=me", "system_account=S"]
)
def test_users_of_your_own_are_the_only_ones(value: str) -> None:
    text = one(documents(render(f"config.merge.{value}")), "ConfigMap")["data"]["server.conf"]
    assert '"anyone"' not in text and '"system"' not in text
    assert "JETCLUSTER_ROUTE_PASSWORD" in text


def test_without_passwords(tmp_path: Path) -> None:
    found = documents(render("auth.enabled=false", "config.cluster.trustedNetwork=true"))
    assert not [d for d in found if d["kind"] == "Secret"]
    options = configuration(found, tmp_path)
    assert options.cluster.trusted_network and not options.cluster.authorization.user and not options.no_auth_user


def test_who_may_reach_a_pod() -> None:
    policy = one(documents(render()), "NetworkPolicy")["spec"]
    selector = one(documents(render()), "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"] == selector
    release, *others = policy["ingress"]
    (peer,) = release["from"]
    assert peer["podSelector"]["matchLabels"].items() < selector.items() and "ports" not in release
    assert [[port["port"] for port in rule["ports"]] for rule in others] == [["nats"], ["monitor"]]
    values = ["config.leafnodes.enabled=true", "networkPolicy.clients[0].namespaceSelector.matchLabels.a=b"]
    found = documents(render(*values))
    check(found)
    _, clients, monitor, leafs = one(found, "NetworkPolicy")["spec"]["ingress"]
    assert clients["from"] == [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
    assert "from" not in monitor and leafs["ports"][0]["port"] == "leafnodes"
    assert not [d for d in documents(render("networkPolicy.enabled=false")) if d["kind"] == "NetworkPolicy"]


def test_resources() -> None:
    (container,) = one(documents(render()), "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"] == "1Gi"
    assert "cpu" in container["resources"]["requests"] and "cpu" not in container["resources"]["limits"]


def test_zones_of_the_nodes(tmp_path: Path) -> None:
    found = documents(render())
    (container,) = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    (zone,) = [entry for entry in container["env"] if entry["name"] == "JETCLUSTER_ZONE"]
    assert zone["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"
    assert not configuration(found, tmp_path).jetstream.unique_tag
    assert not [d for d in found if d["kind"].startswith("ClusterRole")]
    found = documents(render("zones.readNode=true", "zones.unique=true"))
    check(found)
    pod = one(found, "StatefulSet")["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    assert init["command"] == ["zone.py", "$(NODE_NAME)", "topology.kubernetes.io/zone", "/run/jetcluster/zone"]
    mounts = [{mount["name"] for mount in c["volumeMounts"]} for c in (init, *pod["containers"])]
    assert ["service-account" in names for names in mounts] == [True, False], "the server has no token"
    assert one(found, "ClusterRole")["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert configuration(found, tmp_path).jetstream.unique_tag == "zone:"
    env = {entry["name"] for entry in pod["containers"][0]["env"]}
    assert "JETCLUSTER_ZONE_FILE" in env and "JETCLUSTER_ZONE" not in env
    assert "JETCLUSTER_ZONE" not in render("zones.enabled=false")


def test_nodes_are_taken_out_before_their_pods_go() -> None:
    assert "kind: Job" not in render(SECRET, hooks=True)
    for same in ("scaleDown.from=3", "scaleDown.from=2"):
        assert "kind: Job" not in render(SECRET, same, hooks=True)
    found = documents(render(SECRET, "scaleDown.from=5", hooks=True))
    check(found)
    job = one(found, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["scale-down.sh", "3600", "jetcluster-4", "jetcluster-3"], "the last one first"
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["NATS_URL"]["value"].split(",") == [
        f"nats://jetcluster-{n}.jetcluster-headless.default.svc:4222" for n in range(3)
    ]
    assert env["NATS_PASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "jetcluster-auth", "key": "system-password"}
    selector = one(found, "StatefulSet")["spec"]["selector"]["matchLabels"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] != selector["app.kubernetes.io/component"], "no node of the service"
    two = documents(render(SECRET, "scaleDown.from=4", "config.workers=2", hooks=True))
    (container,) = one(two, "Job")["spec"]["template"]["spec"]["containers"]
    assert container["command"][2:] == ["jetcluster-3-w1", "jetcluster-3"]
    assert "kind: Job" not in render(SECRET, "scaleDown.from=5", "scaleDown.decommission=false", hooks=True)


def test_backups_on_a_schedule() -> None:
    assert "kind: CronJob" not in render()
    found = documents(
        render(
            "backup.keep=3", "backup.jobs[0].name=orders", "backup.jobs[0].destination=s3://backups/orders",
            "backup.jobs[0].envSecret=keys", "backup.jobs[0].endpoint=http://minio:9000",
            "backup.jobs[1].name=edge", "backup.jobs[1].destination=/backup/edge", "backup.jobs[1].volumeClaim=disk",
            "backup.jobs[1].credsSecret=creds", "backup.jobs[1].schedule=0 * * * *", "backup.jobs[1].keep=48",
            "backup.jobs[1].verify=false", "backup.jobs[1].streams={A,B}",
        )
    )  # fmt: skip
    check(found)
    first, second = [document for document in found if document["kind"] == "CronJob"]
    assert [job["metadata"]["name"] for job in (first, second)] == [
        "jetcluster-backup-orders",
        "jetcluster-backup-edge",
    ]
    assert [job["spec"]["schedule"] for job in (first, second)] == ["17 2 * * *", "0 * * * *"]
    pods = [job["spec"]["jobTemplate"]["spec"]["template"] for job in (first, second)]
    containers = [pod["spec"]["containers"][0] for pod in pods]
    assert containers[0]["command"] == [
        "jetcluster", "backup", "s3://backups/orders", "--no-context", "--keep=3", "--verify",
        "--endpoint=http://minio:9000",
    ]  # fmt: skip
    policies = [job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"] for job in (first, second)]
    assert [rules[0]["onExitCodes"]["values"] for rules in policies] == [[4], [4]]
    assert containers[1]["command"][2:] == ["/backup/edge", "--no-context", "--keep=48", "--stream=A", "--stream=B"]
    assert containers[0]["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {entry["name"]: entry["value"] for entry in containers[1]["env"]} == {
        "NATS_URL": "nats://jetcluster-headless.default.svc:4222", "NATS_CREDS": "/etc/nats-creds/user.creds",
    }  # fmt: skip
    assert {volume["name"] for volume in pods[1]["spec"]["volumes"]} == {"tmp", "backup", "creds"}
    selector = one(found, "StatefulSet")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= pods[0]["metadata"]["labels"].items(), "no node of the service"


def test_the_words_of_a_backup_are_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a place of its own and no server: everything else is as the command takes it."""
    from jetcluster.cli.main import main

    values = ["name=a", f"destination={tmp_path}/x", "endpoint=http://127.0.0.1:1", "region=r", "streams={A}"]
    job = one(documents(render(*(f"backup.jobs[0].{value}" for value in values))), "CronJob")
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert main([*container["command"][1:], "-s", "nats://127.0.0.1:1"]) == 2
    assert "no server could be reached" in capsys.readouterr().err


def test_helm_test_asks_all_nodes_and_a_client() -> None:
    found = documents(render(SECRET, hooks=True))
    check(found)
    pod = one(found, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    nodes = [f"jetcluster-{n}.jetcluster-headless.default.svc:8222" for n in range(3)]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["smoke.py", "--client", "jetcluster.default.svc:4222", *nodes]
    for value in ("config.merge.authorization.token=x", "service.enabled=false"):
        (container,) = one(documents(render(SECRET, value, hooks=True)), "Pod")["spec"]["containers"]
        assert container["command"] == ["smoke.py", *nodes]


def test_monitoring_of_the_prometheus_operator() -> None:
    found = documents(render("podMonitor.enabled=true", "prometheusRule.enabled=true", "prometheusRule.labels.a=b"))
    monitor, rule = one(found, "PodMonitor"), one(found, "PrometheusRule")
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "monitor", "path": "/metrics", "interval": "15s"}]
    ports = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert "monitor" in {port["name"] for port in ports}
    assert rule["spec"] == yaml.safe_load((TOP / "deploy" / "prometheus" / "alerts.yaml").read_text())
    assert rule["metadata"]["labels"]["a"] == "b"


def test_what_helm_finds_in_the_cluster(tmp_path: Path) -> None:
    """An upgrade keeps the passwords, and knows how many nodes there are."""
    kept = {"route-password": "cm91dGU=", "system-password": "c3lzdGVt"}
    meta = {"name": "x", "namespace": "default"}
    objects: Objects = {
        "namespaces/default/secrets/jetcluster-auth": {
            "apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": kept,
        },
        "namespaces/default/statefulsets/jetcluster": {
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": {"replicas": 5},
        },
    }  # fmt: skip
    with api_server(objects) as api:
        found = documents(render(api=api, hooks=True))
        assert one(found, "Secret")["data"] == kept
        (container,) = one(found, "Job")["spec"]["template"]["spec"]["containers"]
        assert container["command"][2:] == ["jetcluster-4", "jetcluster-3"]
        assert "kind: Job" not in render("config.cluster.replicas=5", api=api, hooks=True)
        del objects["namespaces/default/secrets/jetcluster-auth"]["data"]["system-password"]
        data = one(documents(render(api=api)), "Secret")["data"]
        assert data["route-password"] == kept["route-password"] and len(base64.b64decode(data["system-password"])) == 32
        objects.clear()
        found = documents(render(api=api, hooks=True))
        assert one(found, "Secret")["data"]["route-password"] != kept["route-password"]
        assert not [d for d in found if d["kind"] == "Job"]


@pytest.mark.parametrize("verify", [False, True])
def test_mirrors_are_made_with_tls(*, verify: bool) -> None:
    tls = ["config.nats.tls.enabled=true", "config.nats.tls.secretName=x", "tlsCA.enabled=true", "tlsCA.secretName=ca"]
    found = documents(render("mirror.streams={A}", *tls, f"config.nats.tls.merge.verify={str(verify).lower()}"))
    check(found)
    (container,) = one(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["JETCLUSTER_MIRROR_SERVER"] == "tls://$(POD_NAME).jetcluster-headless.default.svc:4222"
    assert list(env).index("POD_NAME") < list(env).index("JETCLUSTER_MIRROR_SERVER"), "as only earlier ones are known"
    assert env["NATS_CA"] == "/etc/nats-ca-cert/ca.crt"
    assert env.get("NATS_CERT") == ("/etc/nats-certs/nats/tls.crt" if verify else None)
