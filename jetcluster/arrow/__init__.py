"""Streams as Arrow record batches: every message of a range, or an error. Spark's source is built on it.

`read_stream` and `read_bucket` are for programs without Spark. `options`, `planner` and `resolve` say what to read,
`fetch` and `frames` read it from replicas that may lag, `read_task` and `convert` make record batches of it. Spark's
executors import only the module they need, and pyarrow comes with the two functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetcluster.arrow.bucket import read_bucket
    from jetcluster.arrow.reader import read_stream

__all__ = ["read_bucket", "read_stream"]


def __getattr__(name: str) -> Any:
    if name == "read_stream":
        from jetcluster.arrow.reader import read_stream

        return read_stream
    if name == "read_bucket":
        from jetcluster.arrow.bucket import read_bucket

        return read_bucket
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
