"""Compiles `jetcluster/native/*.pyx` in place: `python -m scripts.native`. `make install` and `pip install .` do it by
themselves (`hatch_build.py`), where there is a C compiler."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "jetcluster" / "native"
_FLAGS = ["-O3", "-fno-semantic-interposition", "-g0"]  # -g0: the same bytes wherever they are compiled
_DIRECTIVES = {"language_level": 3, "boundscheck": False, "wraparound": False, "initializedcheck": False}


def compile_all(folder: Path) -> str:
    """Compile each module of the folder in place. Returns why it could not, "" when it did."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if os.environ.get("JETCLUSTER_PURE"):
        return "JETCLUSTER_PURE is set"
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    top = folder.parent.parent
    work = top / "build" / "native"
    macros: list[tuple[str, str | None]] = [("SOURCE_DIGEST", f'"{_native(folder).source_digest(folder)}"')]
    modules = [
        Extension(
            f"jetcluster.native.{source.stem}",
            [str(source.relative_to(top))],
            extra_compile_args=_FLAGS,
            define_macros=macros,
        )
        for source in sorted(folder.glob("*.pyx"))
    ]
    before = Path.cwd()
    os.chdir(top)
    try:
        made = cythonize(modules, build_dir=str(work), quiet=True, force=True, compiler_directives=_DIRECTIVES)
        command = build_ext(Distribution({"ext_modules": made}))
        command.build_temp, command.build_lib, command.force = str(work), str(top), True
        command.ensure_finalized()
        command.run()
    except Exception as error:  # noqa: BLE001 - a compiler or headers that fail must not fail an install
        return f"the C compiler failed ({error})"
    finally:
        os.chdir(before)
    return ""


def _native(folder: Path) -> ModuleType:
    """Return the package's own module, without the package, whose dependencies may not be there yet."""
    spec = importlib.util.spec_from_file_location("_native", folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(compile_all(FOLDER) or 0)
