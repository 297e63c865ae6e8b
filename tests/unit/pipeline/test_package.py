"""The package as a zip, in the path or unpacked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import jetcluster
from jetcluster.pipeline import package

CODE = """
import sys
sys.path[:0] = sys.argv[1:]
import jetcluster, jetcluster.client.connection as connection
from jetcluster import native
print(jetcluster.__version__, native.why_pure != "", connection.__file__)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    package.write(folder)
    return folder


def found(path: Path) -> list[str]:
    """Version, that the compiled loops are missing, and where a module was found: `-I` leaves out this tree."""
    words = [sys.executable, "-I", "-c", CODE, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_in_the_path(made: Path) -> None:
    zipped = made / package.file_name()
    assert found(zipped) == [jetcluster.__version__, "True", f"{zipped}/jetcluster/client/connection.py"]


def test_unpacked_under_the_name_of_the_package(made: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(made / package.file_name()) as zipped:
        zipped.extractall(tmp_path / "jetcluster")
    where = f"{tmp_path}/jetcluster/jetcluster/client/connection.py"
    assert found(tmp_path) == [jetcluster.__version__, "True", where]


def test_the_same_sources_make_the_same_bytes(made: Path, tmp_path: Path) -> None:
    package.write(tmp_path)
    assert (tmp_path / package.file_name()).read_bytes() == (made / package.file_name()).read_bytes()
    assert "DefaultSource" in (tmp_path / package.SHIM).read_text()
