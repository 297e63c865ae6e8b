"""Which loops run, and that compiled ones are never those of other sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster import native
from scripts.hatch_build import NativeBuildHook

TOP = Path(native.__file__).parents[2]


def described(folder: Path, **env: str) -> str:
    code = "from jetcluster import native; print(native.described)"
    words = [sys.executable, "-c", code]
    env = {**os.environ, "JETCLUSTER_PURE": "", "PYTHONPATH": str(folder), **env}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package without any compiled module."""
    room = tmp_path / "jetcluster"
    (room / "native").mkdir(parents=True)
    shutil.copy(TOP / "jetcluster" / "__init__.py", room)
    for source in (TOP / "jetcluster" / "native").iterdir():
        if source.suffix in {".py", ".pyx", ".pxd"}:
            shutil.copy(source, room / "native")
    return tmp_path


def test_python_runs_alone_where_nothing_is_compiled_and_where_it_is_asked_for(copy: Path) -> None:
    assert described(copy).startswith("Python alone: not compiled")
    assert described(TOP, JETCLUSTER_PURE="1") == "Python alone: JETCLUSTER_PURE is set"


@pytest.mark.skipif(native.publish_lines is None, reason=f"no compiled loops: {native.why_pure}")
def test_modules_of_other_sources_are_not_used(copy: Path) -> None:
    room = copy / "jetcluster" / "native"
    for module in (TOP / "jetcluster" / "native").glob("*.so"):
        shutil.copy(module, room)
    assert described(copy) == "compiled loops"
    source = room / "publishes.pyx"
    source.write_text(source.read_text() + "\n")
    assert described(copy) == "Python alone: compiled from other sources: run make install"


def test_loops_are_compiled_where_there_is_a_compiler() -> None:
    """An environment that `make install` made has them: without this test, CI could compare Python with itself."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if shutil.which(compiler) is None or not headers.exists() or os.environ.get("JETCLUSTER_PURE"):
        pytest.skip("no C compiler, no headers, or JETCLUSTER_PURE is set")
    assert native.why_pure == ""


@pytest.mark.parametrize("compiler", ["unwanted", "works"])
def test_a_wheel_has_this_pythons_modules_and_the_tree_keeps_its_own(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scripts = tmp_path / "jetcluster" / "native", tmp_path / "scripts"
    folder.mkdir(parents=True)
    scripts.mkdir()
    ending = sysconfig.get_config_var("EXT_SUFFIX")
    here = {folder / "loops.pyx", folder / f"loops{ending}", folder / f"former{ending}", folder / "loops.other.so"}
    for one in here:
        one.touch()
    why = "JETCLUSTER_PURE is set" if compiler == "unwanted" else ""
    (scripts / "native.py").write_text(f"def compile_all(folder):\n    return {why!r}\n")
    said: list[str] = []
    app: Any = SimpleNamespace(display_warning=said.append)
    hook = NativeBuildHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel", app)
    data: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", data)
    assert set(folder.iterdir()) == here
    assert data["artifacts"] == ([] if why else [f"jetcluster/native/loops{ending}"])
    assert said == ([f"jetcluster is built without compiled loops: {why}"] if why else [])
