"""The SBOM of a release (CycloneDX, JSON): the packages that an install of the wheel brings, by cyclonedx-py, and the
JavaScript that the console carries, by the lock file that it was made from."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

LOCK: Final = Path("scripts/console_vendor/package-lock.json")
LICENSES: Final = Path("jetcluster/console/web/vendor/LICENSES.txt")
VERSION: Final = "1.6"
"""CycloneDX's."""


class SbomError(Exception):
    """A vendored package that has no licence text, or a document that the schema refuses."""


def make_sbom(python: Path, tree: Path, version: str, env: dict[str, str]) -> str:
    """The document of this version, for the packages in the environment of `python` and those in the sources `tree`.
    Raises SbomError, CalledProcessError."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--sv", VERSION]
    command += ["--pyproject", str(tree / "pyproject.toml"), str(python)]
    found = json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)  # noqa: S603
    text = json.dumps(with_vendored(with_version(found, version), vendored(tree)), indent=2, sort_keys=True) + "\n"
    check(text)
    return text


def vendored(tree: Path) -> list[dict[str, Any]]:
    """Components for the packages that the console's bundles are made of. Raises SbomError when one of them is not in
    the file of licences that is served with them."""
    if not (tree / LOCK).exists():
        return []
    licenses = (tree / LICENSES).read_text().splitlines()
    components = []
    for place, package in json.loads((tree / LOCK).read_text())["packages"].items():
        if not place or package.get("dev") or package.get("optional"):
            continue
        name, version, licence = place.rpartition("node_modules/")[2], package["version"], package["license"]
        if f"{name} {version}, {licence}" not in licenses:
            raise SbomError(f"{LICENSES} does not have {name} {version}: run scripts/console_vendor/build.sh")
        components.append(_component(name, version, licence, package["integrity"]))
    return components


def _component(name: str, version: str, licence: str, integrity: str) -> dict[str, Any]:
    group, _, short = name.rpartition("/")
    purl = f"pkg:npm/{quote(name, safe='/')}@{version}"
    algorithm, _, digest = integrity.partition("-")
    hashed = {"alg": algorithm.upper().replace("SHA", "SHA-"), "content": base64.b64decode(digest).hex()}
    found = {
        "type": "library", "bom-ref": purl, "purl": purl, "name": short, "version": version,
        "licenses": [{"license": {"id": licence}}], "hashes": [hashed],
        "description": f"bundled in {LICENSES.parent}",
    }  # fmt: skip
    return found | ({"group": group} if group else {})


def with_version(document: dict[str, Any], version: str) -> dict[str, Any]:
    """The document with the version of its main component, which pyproject.toml leaves to the package."""
    component = document["metadata"]["component"] | {"version": version, "purl": f"pkg:pypi/jetcluster@{version}"}
    return {**document, "metadata": document["metadata"] | {"component": component}}


def with_vendored(document: dict[str, Any], components: list[dict[str, Any]]) -> dict[str, Any]:
    """The document with more components, on which its main one depends."""
    root = document["metadata"]["component"]["bom-ref"]
    names = [component["bom-ref"] for component in components]
    dependencies = [
        {**entry, "dependsOn": sorted({*entry.get("dependsOn", []), *names})} if entry["ref"] == root else entry
        for entry in document["dependencies"]
    ]
    dependencies += [{"ref": name} for name in names]
    return {**document, "components": document["components"] + components, "dependencies": dependencies}


def check(text: str) -> None:
    """Raises SbomError for what CycloneDX's schema refuses."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if problem := JsonStrictValidator(SchemaVersion.from_version(VERSION)).validate_str(text):
        raise SbomError(str(problem)[:500])
