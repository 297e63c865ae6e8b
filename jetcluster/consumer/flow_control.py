"""`FlowControl`: how much a push consumer may send before its client says that it has handled what came.

When more than half of the window is unconfirmed the client is asked, by a status message whose reply subject it is to
publish to; every answer takes what was sent before the question off, and doubles the window up to its limit. Beyond
the window nothing is sent.
"""

from __future__ import annotations

import re
from typing import Final

from jetcluster.clock import Rng

LIMIT: Final = 32 << 20
FIRST: Final = LIMIT // 16
"""Bytes of the window."""
REQUEST: Final = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
_LAST_STREAM: Final = re.compile(rb"\r\nNats-Last-Stream: *([0-9]{1,19})\r\n")
_ID: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class FlowControl:
    __slots__ = ("_asked", "_prefix", "_rng", "_unconfirmed", "_window", "reply")

    def __init__(self, prefix: bytes, rng: Rng) -> None:
        """`prefix`: `$JS.FC.<stream>.<consumer>.`"""
        self._prefix = prefix
        self._rng = rng
        self._window = FIRST
        self._unconfirmed = 0
        self._asked = 0
        self.reply = b""
        """The reply subject of the question that is open; b"" when there is none."""

    def restart(self) -> None:
        """Somebody else listens now, who owes no answer."""
        self._unconfirmed = self._asked = 0
        self.reply = b""

    def sent(self, size: int) -> None:
        self._unconfirmed += size

    @property
    def left(self) -> int:
        """Bytes of the window that are free; below 0 nothing may be sent."""
        return self._window - self._unconfirmed

    def ask(self, *, anyway: bool = False) -> bytes:
        """Reply subject of a question that is now to be sent, or b""; `anyway`: even when much of the window is
        left."""
        if self.reply or (self._unconfirmed <= self._window // 2 and not anyway):
            return b""
        number = self._rng.randrange(len(_ID) ** 4)
        token = bytearray()
        for _ in range(4):
            number, digit = divmod(number, len(_ID))
            token.append(_ID[digit])
        self._asked = self._unconfirmed
        self.reply = self._prefix + token
        return self.reply

    def answered(self, subject: bytes) -> bool:
        """The client published to `subject`; False when that does not answer the open question."""
        if not self.reply or subject != self.reply:
            return False
        self._window = min(2 * self._window, LIMIT)
        self._unconfirmed -= self._asked
        self._asked = 0
        self.reply = b""
        return True


def acknowledged(headers: bytes) -> int:
    """The stream sequence that an answer acknowledges, 0 for none."""
    found = _LAST_STREAM.search(headers)
    return int(found[1]) if found is not None else 0
