"""`SupervisorLink`: a worker's end of the socket to its supervisor (`cli.supervisor`).

The worker reports its ports, one JSON object on a line, once it serves, and asks for a reload of all workers after its
own one. The supervisor sends nothing; the end of the socket means that it is gone, and so must the worker be.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence


class SupervisorLink(asyncio.Protocol):
    """The link on the inherited file descriptor `descriptor`; `gone` is called when the supervisor has ended."""

    def __init__(self, descriptor: int, gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._gone = gone
        self._transport: asyncio.Transport | None = None

    async def start(self, ports: Mapping[str, Sequence[str]]) -> None:
        """Reports that the worker serves, with the URLs of its ports by kind. Raises OSError."""
        link = socket.socket(fileno=os.dup(self._descriptor))  # the first one is for a process that replaces this
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=link)
        self._say({"ready": {kind: list(urls) for kind, urls in ports.items()}})

    def ask_reload(self) -> None:
        """Asks for a reload of all workers."""
        self._say({"reload": True})

    def _say(self, message: Mapping[str, object]) -> None:
        if self._transport is not None:
            self._transport.write(json.dumps(message).encode() + b"\n")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._gone()
