"""`compose.yaml`: each profile is what compose accepts, and what it mounts is there and is what its reader accepts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.load import load_file

TOP = Path(__file__).resolve().parents[2]
FILE = TOP / "compose.yaml"
NODES = {"node-0", "node-1", "node-2"}
PROFILES = {"": NODES, "edge": NODES | {"edge"}, "observe": NODES | {"prometheus", "grafana"}}
PROMETHEUS = TOP / "deploy" / "prometheus" / "prometheus.yml"
GRAFANA = TOP / "deploy" / "grafana"


def rendered(profile: str, folder: Path) -> dict[str, Any]:
    """The services as compose understands them: v2, or Debian's v1, which has no `name`."""
    options = ["--profile", profile] if profile else []
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        said = subprocess.run([*command, "version"], capture_output=True, text=True, check=False)
        if said.returncode:
            continue
        place = FILE
        if re.search(r"version v?1\.", said.stdout):
            place = folder / "compose.yaml"
            place.write_text(re.sub(r"^name: .*\n", "", FILE.read_text(), flags=re.MULTILINE))
        words = [*command, "-f", str(place), "--project-directory", str(TOP), *options, "config"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
        return services
    pytest.skip("neither `docker compose` nor docker-compose is on this machine")


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())["services"]
    return found


@pytest.mark.parametrize("profile", PROFILES)
def test_compose_accepts_each_profile(profile: str, tmp_path: Path) -> None:
    found = rendered(profile, tmp_path)
    wanted = PROFILES[profile]
    assert {name for name, service in found.items() if set(service.get("profiles", [])) <= {profile}} == wanted
    for name in NODES:
        assert len(found[name]["ports"]) == 2


def test_profiles_are_what_they_say() -> None:
    for profile, wanted in PROFILES.items():
        assert {name for name, one in services().items() if one.get("profiles", [profile]) == [profile]} == wanted


def test_whatever_is_mounted_is_in_the_repository() -> None:
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    for name, service in services().items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (TOP / source).exists() if source.startswith("./") else source in volumes, (name, volume)


def test_what_observes_is_reached_from_this_machine_alone() -> None:
    for name in ("prometheus", "grafana"):
        assert all(port.startswith("127.0.0.1:") for port in services()[name]["ports"]), name


def test_prometheus_scrapes_every_node() -> None:
    read = yaml.safe_load(PROMETHEUS.read_text())
    jobs = {job["job_name"]: job for job in read["scrape_configs"]}
    (targets,) = [one["targets"] for one in jobs["jetcluster"]["static_configs"]]
    assert set(targets) == {f"{node}:8222" for node in NODES}
    assert all((PROMETHEUS.parent / name).exists() for name in read["rule_files"])


def test_prometheus_accepts_its_configuration() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool (apt-get install prometheus)")
    done = subprocess.run(["promtool", "check", "config", str(PROMETHEUS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rules found" in done.stdout


def test_grafana_finds_its_data_and_the_dashboard() -> None:
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "jetcluster.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])
    assert mounts["./deploy/grafana/jetcluster.json"] == f"{provider['options']['path']}/jetcluster.json"
    assert mounts["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == mounts["./deploy/grafana/jetcluster.json"]
    dashboard = json.loads((GRAFANA / "jetcluster.json").read_text())
    variable = dashboard["templating"]["list"][0]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"]), "the default one is taken"


def test_the_nodes_have_the_console() -> None:
    options, pedantic = load_file(str(TOP / "deploy" / "compose" / "hub.conf"))
    assert not pedantic
    assert options.console
    assert not Authenticator(options).required, "so the port is published on this machine only"
    for name, service in services().items():
        monitoring = [port for port in service["ports"] if port.endswith(":8222")]
        assert all(port.startswith("127.0.0.1:") for port in monitoring), name
        assert monitoring or name not in NODES
