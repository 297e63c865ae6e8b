"""`SentenceFirst`: an error's sentence before its traceback, where Spark shows Python's errors to users.

Spark puts the text of an error behind its own words, and tools show the first line of it: "Traceback (most recent call
last):". PySpark's worker shows the error without a traceback when SPARK_HIDE_TRACEBACK is set, with the error's notes
behind it; so the traceback becomes a note. The variable is set just before the worker shows the error, and ends.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ContextDecorator
from types import TracebackType

from jetcluster.errors import JetclusterError


class SentenceFirst(ContextDecorator):
    """Around code that Spark calls in a process of its own: `with`, or a decorator of a function that is no generator.

    Not around `streamReader`: when that fails, Spark's code raises another error, which would be shown alone."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, JetclusterError) and is_worker():
            error.add_note("".join(traceback.format_exception(error)))
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def is_worker() -> bool:
    """Returns whether this process is one that Spark started to run Python."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
