"""Progress and errors on stderr, as stdout is for the result."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from jetcluster.pipeline.environment import is_submitted


def progress(text: str) -> None:
    """One line on stderr, at once."""
    java = _java_stderr() if is_submitted() else None
    if java is None:
        print(text, file=sys.stderr, flush=True)
    else:
        java.println(text)


def _java_stderr() -> Any:
    """spark-submit puts stdout and stderr of the Python that it runs on its own stdout (`PythonRunner` of pyspark
    4.3.0); only its JVM reaches stderr. None where the JVM cannot be reached."""
    from pyspark import SparkContext

    context: Any = SparkContext
    with contextlib.suppress(Exception):
        context._ensure_initialized()
        return context._jvm.java.lang.System.err
    return None
