"""`LineLimit`: a bound for the log lines that strangers cause. Each costs them a connection that is refused, and this
machine a line on its disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from jetcluster.clock import Clock

FROM_STRANGERS: Final[Mapping[str, object]] = {"from_strangers": True}
"""`extra` of a call that logs a connection that was not let in, of which there may be any number."""
MAX_LINES: Final = 20
WINDOW_SECONDS: Final = 10.0


class _Text:
    """The lines of one format string: those of the present window, and those left out that nobody was told of."""

    __slots__ = ("left_out", "lines", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = self.left_out = 0


class LineLimit(logging.Filter):
    """Lets `MAX_LINES` of the records marked FROM_STRANGERS with the same format string pass in `WINDOW_SECONDS`. The
    first one after that tells how many were left out."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self._texts: dict[str, _Text] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "from_strangers", False):
            return True
        now = self.clock.monotonic()
        text = self._texts.setdefault(str(record.msg), _Text(now))
        if now - text.since >= WINDOW_SECONDS:
            text.since, text.lines = now, 0
        text.lines += 1
        if text.lines > MAX_LINES:
            text.left_out += 1
            return False
        if text.left_out:
            record.msg = f"{record.getMessage()} (and {text.left_out} more such lines, left out)"
            record.args = None
            text.left_out = 0
        return True
