"""Empty environments in which the packages of a release have to work as in a user's: `jetcluster demo` runs there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from scripts.check_extras import ALONE, Environment, link, required

BUILD: Final = ("hatchling", "cython", "setuptools")
"""The tools that build an sdist; pip fetches them where there is an index."""


class TrialError(Exception):
    """A package that cannot be installed, has no compiled loops where it must, or fails the demo."""


def environment_of(folder: Path, wheel: Path) -> Environment:
    """The wheel and what it requires, and nothing else."""
    return Environment(folder, wheel, ALONE)


def try_wheel(here: Environment) -> None:
    """Raises TrialError."""
    demo(here.python, "compiled loops")


def try_sdist(folder: Path, sdist: Path, wheel: Path, *, compiling: bool) -> None:
    """Builds the sdist as pip does, on a PATH with or without a C compiler. Raises TrialError."""
    here = environment_of(folder, wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in sorted(required(([], [str(Requirement(name)) for name in BUILD]), ALONE)):
        link(package, site)
    bare = str(here.python.parent)
    words = [sys.executable, "-m", "pip", "--python", str(here.python), "install", "--quiet", "--force-reinstall"]
    words += ["--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir", str(sdist)]
    _run(words, {"PATH": f"{bare}:/usr/bin:/bin" if compiling else bare, "HOME": str(folder)})
    demo(here.python, "compiled loops" if compiling else "Python alone")


def demo(python: Path, loops: str) -> None:
    """Runs `jetcluster demo` where PATH has nothing but the environment. Raises TrialError."""
    program, env = str(python.with_name("jetcluster")), {"PATH": str(python.parent), "HOME": str(python.parents[1])}
    if loops not in (said := _run([program, "-v"], env)):
        raise TrialError(f"{program} -v ought to say {loops!r} and says {said!r}")
    _run([program, "demo"], env)


def _run(words: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise TrialError(f"{' '.join(words)[:200]}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr
