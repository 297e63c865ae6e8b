"""The SBOM names the JavaScript that the console carries, and is what CycloneDX's schema allows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.sbom import LICENSES, LOCK, SbomError, check, make_sbom, vendored, with_vendored

TOP = Path(__file__).resolve().parents[2]
ROOT = "root-component"


def document(**more: Any) -> dict[str, Any]:
    """The parts of cyclonedx-py's document that matter here."""
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": ROOT, "name": "jetcluster"}},
        "components": [{"type": "library", "bom-ref": "rich==15", "name": "rich", "version": "15"}],
        "dependencies": [{"ref": ROOT, "dependsOn": ["rich==15"]}, {"ref": "rich==15"}],
        **more,
    }


def test_every_package_of_the_bundles_is_named_with_licence_and_hash() -> None:
    found = {component["purl"]: component for component in vendored(TOP)}
    assert {"pkg:npm/preact@10.29.8", "pkg:npm/%40preact/signals@2.11.4"} <= found.keys()
    assert not any("esbuild" in purl for purl in found), "what only builds is not carried"
    scoped = found["pkg:npm/%40preact/signals@2.11.4"]
    assert (scoped["group"], scoped["name"]) == ("@preact", "signals")
    assert scoped["licenses"] == [{"license": {"id": "MIT"}}]
    assert all(
        len(one["hashes"][0]["content"]) == 128 and one["hashes"][0]["alg"] == "SHA-512" for one in found.values()
    )


def test_the_merged_document_is_valid_and_the_main_component_needs_all() -> None:
    more = vendored(TOP)
    merged = with_vendored(document(), more)
    check(json.dumps(merged))
    names = [component["bom-ref"] for component in more]
    (root,) = [entry for entry in merged["dependencies"] if entry["ref"] == ROOT]
    assert root["dependsOn"] == sorted(["rich==15", *names])
    assert len(merged["components"]) == 1 + len(more)


def test_the_packages_of_an_environment_and_the_version_are_named(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    info = site / "aiohttp-3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aiohttp\nVersion: 3.0\n")
    env = {"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1700000000"}
    found = json.loads(make_sbom(tmp_path / "bin" / "python", TOP, "1.2.3", env))
    main = found["metadata"]["component"]
    assert (main["name"], main["version"], main["purl"]) == ("jetcluster", "1.2.3", "pkg:pypi/jetcluster@1.2.3")
    versions = {component["name"]: component["version"] for component in found["components"]}
    assert (versions["aiohttp"], versions["preact"]) == ("3.0", "10.29.8")
    assert found["metadata"]["timestamp"].startswith("2023-11-14")


def test_what_the_schema_refuses_is_an_error() -> None:
    with pytest.raises(SbomError):
        check(json.dumps(document(components=[{"type": "no such type", "name": "x"}])))


def test_a_package_without_its_licence_is_refused(tmp_path: Path) -> None:
    for place in (LOCK, LICENSES):
        (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / LOCK).write_bytes((TOP / LOCK).read_bytes())
    (tmp_path / LICENSES).write_text((TOP / LICENSES).read_text().replace("preact 10.29.8, MIT", "preact 10.0.0, MIT"))
    with pytest.raises(SbomError, match=r"does not have preact 10\.29\.8"):
        vendored(tmp_path)
