"""Checks whether Spark can run here, before pyspark is imported: a missing package is one line, never a traceback.

Progress goes to stderr, as stdout is for a job's result; under spark-submit it goes through the JVM.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jetcluster.pipeline.result import EnvironmentProblem

MIN_JAVA_VERSION: Final = 17
PACKAGES: Final = ("pyspark", "pyarrow", "pandas")
"""pandas is used by pyspark alone: its Arrow writers refuse to start without it."""
INSTALL_EXTRA: Final = 'pip install "jetcluster[spark]"'
INSTALL_JAVA: Final = "Debian/Ubuntu: apt-get install openjdk-17-jre-headless"
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')


def check(env: Mapping[str, str] | None = None) -> None:
    """Raises EnvironmentProblem: one of PACKAGES or a Java runtime is missing or too old."""
    env = os.environ if env is None else env
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise EnvironmentProblem(f"jetcluster pipeline needs {name}, which is not installed: {INSTALL_EXTRA}")
    if not is_submitted(env):
        java_version(env)


def is_submitted(env: Mapping[str, str] | None = None) -> bool:
    """True under spark-submit: a JVM runs already, with its own master and configuration."""
    return "PYSPARK_GATEWAY_PORT" in (os.environ if env is None else env)


def java_version(env: Mapping[str, str]) -> int:
    """Returns the major version of Spark's Java (JAVA_HOME, else PATH). Raises EnvironmentProblem."""
    java = find_java(env)
    if java is None:
        where = f"JAVA_HOME={env['JAVA_HOME']}" if env.get("JAVA_HOME") else "JAVA_HOME, PATH"
        raise EnvironmentProblem(
            f"jetcluster pipeline needs a Java {MIN_JAVA_VERSION}+ runtime; none found ({where}). {INSTALL_JAVA}"
        )
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{java} does not run: {error}. {INSTALL_JAVA}") from None
    found = parse_java_version(done.stderr + done.stdout)
    if not found:
        raise EnvironmentProblem(f"{java} -version does not say its version. {INSTALL_JAVA}")
    if found < MIN_JAVA_VERSION:
        raise EnvironmentProblem(f"{java} is Java {found}; Spark needs {MIN_JAVA_VERSION} or newer. {INSTALL_JAVA}")
    return found


def find_java(env: Mapping[str, str]) -> str | None:
    """Finds Java as Spark's launcher does: JAVA_HOME wins, even without a Java in it."""
    home = env.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if os.access(java, os.X_OK) else None
    return shutil.which("java", path=env.get("PATH", ""))


def parse_java_version(text: str) -> int:
    """Returns the major version in the output of `java -version` (8 for 1.8), 0 if there is none."""
    match = _VERSION.search(text)
    if match is None:
        return 0
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def progress(text: str) -> None:
    """Prints one line to stderr, without buffering."""
    java = _java_stderr() if is_submitted() else None
    if java is None:
        print(text, file=sys.stderr, flush=True)
    else:
        java.println(text)


def _java_stderr() -> Any:
    """Returns the JVM's stderr, None if it cannot be reached. spark-submit sends stdout and stderr of its Python
    process to its own stdout (`PythonRunner` of pyspark 4.3.0); only its JVM reaches stderr."""
    from pyspark import SparkContext

    context: Any = SparkContext
    with contextlib.suppress(Exception):
        context._ensure_initialized()
        return context._jvm.java.lang.System.err
    return None
