"""`Failures`: what fails on this node in the parts of a replica that the stream does without: logged and counted, and
neither a refusal of a command nor the end of the replica."""

from __future__ import annotations

from typing import Final

from jetcluster.logs import Log

LOGGED: Final = 10
"""Lines per replica and kind; after that every thousandth."""


class Failures:
    """One per replica of a stream."""

    def __init__(self, log: Log, stream: str) -> None:
        self.count = 0
        """Since the start of this process."""
        self._log = log
        self._stream = stream

    def failed(self, event: str, error: Exception, index: int = 0, kind: int = 0) -> None:
        """`index`, `kind`: of the command that it follows from; 0: of none."""
        self.count += 1
        self.tell(event, error, self.count, index, kind)

    def tell(self, event: str, error: Exception | None, so_far: int, index: int, kind: int) -> None:
        """A line in the log, unless there were many of its kind."""
        if so_far <= LOGGED or so_far % 1000 == 0:
            place = {"index": index, "kind": kind} if index else {}
            self._log.error(event, stream=self._stream, **place, error=_told(error), so_far=so_far)


def _told(error: Exception | None) -> str:
    """The error, and where it came from."""
    if error is None:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace is not None else ""
    return repr(error)[:500] + where
