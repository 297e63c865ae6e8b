"""deploy/grow-volumes.sh with a `kubectl` that is played: a folder with one file per claim."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "grow-volumes.sh"
KUBECTL = """#!/bin/sh
[ "$1" = -n ] && shift 2
echo "$@" >> asked
case "$*" in
    "get pvc -o name") ls claims | sed 's|^|persistentvolumeclaim/|';;
    "get pvc "*storageClassName*) echo fast;;
    "get storageclass fast "*) cat expansion;;
    "get pvc "*requests.storage*) cat "claims/$3";;
    "get pvc "*capacity*) if [ -e stuck ]; then echo "10Gi "; else echo "$(cat "claims/$3") "; fi;;
    "patch pvc "*) echo "$7" | sed 's/.*storage":"\\([^"]*\\)".*/\\1/' > "claims/$3";;
    "get statefulset jc") ;;
    "delete statefulset "*) ;;
    *) exit 9;;
esac
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "claims").mkdir()
    for name in ("data-jc-0", "data-jc-1", "data-jc-extra-0", "other"):
        (tmp_path / "claims" / name).write_text("10Gi")
    (tmp_path / "expansion").write_text("true")
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    return tmp_path


def grow(cluster: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KUBECTL": str(cluster / "kubectl")}
    return subprocess.run(
        [str(SCRIPT), *words], cwd=cluster, env=env, capture_output=True, text=True, timeout=30, check=False
    )


def sizes(cluster: Path) -> dict[str, str]:
    return {file.name: file.read_text().strip() for file in sorted((cluster / "claims").iterdir())}


def test_the_claims_of_a_set_grow_and_it_is_made_anew(cluster: Path) -> None:
    done = grow(cluster, "-n", "prod", "jc", "20Gi")
    assert done.returncode == 0, done.stderr
    assert sizes(cluster) == {"data-jc-0": "20Gi", "data-jc-1": "20Gi", "data-jc-extra-0": "10Gi", "other": "10Gi"}
    assert "delete statefulset jc --cascade=orphan" in (cluster / "asked").read_text()
    assert "pvc.size=20Gi" in done.stdout
    assert grow(cluster, "jc", "20Gi").returncode == 0, "it can be run again"


@pytest.mark.parametrize(
    ("words", "expansion", "text"),
    [
        (["jc", "9Gi"], "true", "volumes do not get smaller"),
        (["jc", "10G"], "true", "volumes do not get smaller"),
        (["jc", "20Gi"], "", "does not allow it"),
        (["none", "20Gi"], "true", "there is no claim data-none-"),
        (["jc", "twenty"], "true", "is no size"),
        (["jc", "20GB"], "true", "is no size"),
    ],
)
def test_a_refusal_changes_nothing(cluster: Path, words: list[str], expansion: str, text: str) -> None:
    (cluster / "expansion").write_text(expansion)
    before = sizes(cluster)
    done = grow(cluster, *words)
    assert done.returncode in (1, 2) and text in done.stderr
    assert sizes(cluster) == before
    asked = cluster / "asked"
    assert not asked.exists() or "delete" not in asked.read_text()


def test_a_volume_that_stays_small_ends_it(cluster: Path) -> None:
    (cluster / "stuck").touch()
    done = grow(cluster, "jc", "20Gi", "1")
    assert done.returncode == 1 and "data-jc-0 is not larger after 1 s" in done.stderr
    assert "delete" not in (cluster / "asked").read_text()
    assert sizes(cluster)["data-jc-1"] == "10Gi"
