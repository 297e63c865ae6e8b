"""The entrypoint of the image: names and routes out of the host name, without docker: `jetcluster` only prints here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "deploy" / "docker" / "entrypoint.sh"


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    fake = tmp_path / "jetcluster"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    return tmp_path


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        [str(ENTRYPOINT), *words], env={"PATH": path, **env}, capture_output=True, text=True, timeout=10, check=False
    )


def test_flags_alone(bin_folder: Path) -> None:
    assert run(bin_folder, "-c", "/etc/nats/server.conf").stdout.split() == ["serve", "-c", "/etc/nats/server.conf"]


def test_workers(bin_folder: Path) -> None:
    assert run(bin_folder, JETCLUSTER_WORKERS="auto").stdout.split() == ["serve", "--workers", "auto"]


def test_pod_of_three(bin_folder: Path) -> None:
    done = run(
        bin_folder, "-c", "x.conf", HOSTNAME="jc-1", JETCLUSTER_REPLICAS="3", JETCLUSTER_SERVICE="jc-headless.ns.svc"
    )
    assert done.stdout.split() == [
        "serve", "-c", "x.conf", "--cluster", "nats://0.0.0.0:6222", "--server_name", "jc-1", "--cluster_name", "jc",
        "--routes", ",".join(f"nats://jc-{n}.jc-headless.ns.svc:6222" for n in range(3)),
        "--cluster_advertise", "jc-1.jc-headless.ns.svc:6222",
    ]  # fmt: skip


def test_names_port_and_full_host_names(bin_folder: Path) -> None:
    done = run(
        bin_folder, HOSTNAME="a-b-12.example.org", JETCLUSTER_REPLICAS="1", JETCLUSTER_CLUSTER="east",
        JETCLUSTER_PORT="7222",
    )  # fmt: skip
    assert done.stdout.split() == [
        "serve", "--cluster", "nats://0.0.0.0:7222", "--server_name", "a-b-12", "--cluster_name", "east",
        "--routes", "nats://a-b-0:7222",
    ]  # fmt: skip


def test_host_name_without_a_number(bin_folder: Path) -> None:
    done = run(bin_folder, HOSTNAME="web", JETCLUSTER_REPLICAS="3")
    assert done.returncode == 1
    assert "does not end in -<number>" in done.stderr


@pytest.mark.parametrize("count", ["abc", "3x", "0", "-1", "3.5"])
def test_a_number_of_nodes_that_is_none(bin_folder: Path, count: str) -> None:
    """Without routes each node would start a cluster of its own."""
    done = run(bin_folder, HOSTNAME="jc-0", JETCLUSTER_REPLICAS=count)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"JETCLUSTER_REPLICAS is '{count}'" in done.stderr


def test_other_commands_run_as_they_are(bin_folder: Path) -> None:
    assert run(bin_folder, "jetcluster", "up", "--help").stdout.split() == ["up", "--help"]


def test_mirrors_of_an_edge(bin_folder: Path) -> None:
    done = run(
        bin_folder, "-c", "x.conf", JETCLUSTER_MIRROR="A B", JETCLUSTER_MIRROR_DOMAIN="hub",
        JETCLUSTER_MIRROR_REPLICAS="3",
    )  # fmt: skip
    options = ["--domain", "hub", "--replicas", "3", "--server", "nats://127.0.0.1:4222", "--within", "3600"]
    words = done.stdout.split()
    # Three processes write, in any order.
    assert sorted(words) == sorted(["serve", "-c", "x.conf", "mirror", "A", *options, "mirror", "B", *options])


def test_a_cluster_port_of_the_file_keeps_its_password(bin_folder: Path) -> None:
    """--cluster without a user clears the authorization of the file, as with nats-server."""
    done = run(
        bin_folder, HOSTNAME="jc-0", JETCLUSTER_REPLICAS="1", JETCLUSTER_PORT="file", JETCLUSTER_ROUTE_PORT="7222"
    )
    assert done.stdout.split() == [
        "serve", "--server_name", "jc-0", "--cluster_name", "jc", "--routes", "nats://jc-0:7222",
    ]  # fmt: skip


def test_zones(bin_folder: Path) -> None:
    file = bin_folder / "zone"
    file.write_text("eu-2")
    assert run(bin_folder, JETCLUSTER_ZONE="eu-1").stdout.split() == ["serve", "--tags", "zone:eu-1"]
    assert run(bin_folder, JETCLUSTER_ZONE="", JETCLUSTER_ZONE_FILE=str(file)).stdout.split()[-1] == "zone:eu-2"
    for nothing in ("", str(bin_folder / "none")):
        assert run(bin_folder, JETCLUSTER_ZONE="", JETCLUSTER_ZONE_FILE=nothing).stdout.split() == ["serve"]
