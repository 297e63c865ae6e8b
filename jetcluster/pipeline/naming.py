"""Names of Spark's jobs in its UI and event log: of a batch, what it is of, and not the line of code that began it.
Spark Connect, whose server names jobs by their plans, takes tags for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DESCRIPTION: Final = "spark.job.description"
"""The property of a thread that Spark shows as the job's name."""


@contextmanager
def named(session: SparkSession, text: str) -> Iterator[None]:
    """Spark's jobs that begin inside are named `text`; a name that the caller's thread had comes back. Under Spark
    Connect they get `text` as a tag."""
    context: Any = getattr(session, "sparkContext", None)
    if context is None:
        tag = text.replace(",", ";")  # a tag has no comma
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)
        return
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)
