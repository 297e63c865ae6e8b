"""`PortionParser`: what the parsers of clients and of leaf links have in common.

A command that is not complete stays in a buffer until enough bytes are there, so that a payload in many pieces costs
one copy. A read of short commands takes long to be parsed: a caller that must not stand still takes it in portions.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from jetcluster.errors import PeerError

C = TypeVar("C")


class ProtocolError(PeerError):
    """The other end broke the protocol and is to be closed. `text` is the -ERR to send first, None for a silent close;
    `reason` is the close reason that monitoring shows."""

    def __init__(self, text: str | None, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.text = text
        self.reason = reason


class PortionParser(Generic[C]):
    """Parses one connection into commands `C`.

    After an error `error` is set and nothing more is parsed; the commands before the error are still returned.
    """

    __slots__ = ("_at", "_buffer", "_need", "error", "waiting")

    def __init__(self) -> None:
        self.error: ProtocolError | None = None
        self._buffer = bytearray()
        """A command that is not complete."""
        self._need = 0
        self.waiting = b""
        """Pushed bytes that `take` has yet to look at, from `_at` on, though they may be no whole command; `_buffer` is
        empty then."""
        self._at = 0

    @property
    def buffered(self) -> int:
        """Bytes of the command that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[C]:
        """Takes what was read, returns the commands it completed. Never raises: see `error`."""
        self.push(data)
        return self.take(len(self.waiting))

    def push(self, data: bytes) -> None:
        """Takes what was read, for `take` to look at."""
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._need:
                return
            data = bytes(buffer)
            buffer.clear()
        elif self.waiting:
            data = self.waiting[self._at :] + data
        if self.error is None:
            self.waiting = data
            self._at = 0

    def take(self, size: int) -> list[C]:
        """The commands that begin in the next `size` bytes of what was pushed. Never raises: see `error`."""
        commands: list[C] = []
        data = self.waiting
        try:
            self._at = self._parse(data, self._at, min(self._at + size, len(data)), commands)
        except ProtocolError as error:
            self.error = error
            self._at = len(data)
        if self._at >= len(data):  # `drop`
            self.waiting = b""
            self._at = 0
        return commands

    def drop(self) -> None:
        """Forgets what was pushed and not taken."""
        self.waiting = b""
        self._at = 0

    def _parse(self, data: bytes, position: int, stop: int, commands: list[C]) -> int:
        """Parses the commands that begin from `position` on, before `stop`; returns where the next one does. Raises
        ProtocolError."""
        raise NotImplementedError

    def _keep(self, data: bytes, position: int, need: int) -> int:
        """Buffers data[position:], to be parsed again when `need` bytes of it are there (more than now); returns the
        end of `data`."""
        self._buffer += memoryview(data)[position:]
        self._need = max(need, len(self._buffer) + 1)
        return len(data)
