"""Compiled in two folders, the loops are the same bytes: a wheel can be built again and compared."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest

from jetcluster.native import HERE
from scripts.native import compile_all

SOURCE = """
SOURCE = SOURCE_DIGEST
cdef extern from *:
    const char* SOURCE_DIGEST

def check(int value):
    assert value > 0, "where this stands must not be in the file"
    return 10 // value
"""


def compiled(top: Path) -> bytes:
    folder = top / "jetcluster" / "native"
    folder.mkdir(parents=True)
    shutil.copy(HERE / "__init__.py", folder)
    (folder / "loop.pyx").write_text(SOURCE)
    assert compile_all(folder) == ""
    (made,) = folder.glob("*.so")
    return made.read_bytes()


@pytest.mark.skipif(
    shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None, reason="there is no C compiler"
)
def test_two_folders_make_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JETCLUSTER_PURE", raising=False)
    first = compiled(tmp_path / "a")
    assert compiled(tmp_path / "another folder" / "with a longer name") == first
    assert str(tmp_path).encode() not in first
