"""Requests between nodes: calls that wait for an answer, and the handlers that give one.

A request costs a Task and a Future; it is not on the path of a message. Answers arrive in any order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from jetcluster.cancelling import cancelled
from jetcluster.mesh.api import MeshError, MeshRefusedError
from jetcluster.mesh.frames import encode_call, encode_error, encode_reply
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.ordered import OrderedSet
from jetcluster.protocol.connection_states import CLOSED

Handler = Callable[[str, bytes], Awaitable[bytes]]

MAX_METHOD_BYTES = 255
MAX_ERROR_CHARACTERS = 1024
MAX_RUNNING_HANDLERS = 1024
"""Handlers running for one peer; a further request is answered with an error."""
MAX_HANDLER_SECONDS = 60.0
"""Time after which a handler is ended: its caller gave up long ago, and it takes the place of others."""
MAX_WAITING_CALLS = 65_536
"""Calls of this node that wait for an answer."""

LOGGED_FAILURES = 20
_OVERHEAD_BYTES = 512
_ID_MASK = 0xFFFFFFFF


class Rpc:
    """The waiting calls of one node, and its handlers by method. A lost link ends its calls; nothing is sent twice."""

    def __init__(self, me: str, max_frame: int, log: logging.Logger) -> None:
        self._me = me
        self._log = log
        self._max_payload = max_frame - _OVERHEAD_BYTES
        self._handlers: dict[str, Handler] = {}
        self._next_id = 0
        self._failed = 0
        self._waiting: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._running: dict[str, OrderedSet[asyncio.Task[None]]] = {}

    def serve(self, method: str, handler: Handler) -> None:
        if method in self._handlers:
            raise ValueError(f"method {method!r} is served already")
        if not method.isascii() or len(method) > MAX_METHOD_BYTES:
            raise ValueError(f"bad method name {method!r}")
        self._handlers[method] = handler

    async def call(self, link: PeerLink, method: str, payload: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        """Raises MeshError: the link is lost, no answer within `timeout` seconds, refused, or the handler raised."""
        if len(payload) > self._max_payload:
            raise MeshError(f"{method}: request of {len(payload)} bytes is too large")
        if len(self._waiting) >= MAX_WAITING_CALLS:
            raise MeshError(f"{method}: too many requests wait for an answer")
        if link.state is CLOSED:  # lost between the choice of the link and the first step of this coroutine
            raise MeshError(f"lost the connection to {link.peer_id}")
        loop = asyncio.get_running_loop()
        while self._next_id in self._waiting:
            self._next_id = (self._next_id + 1) & _ID_MASK
        call_id = self._next_id
        self._next_id = (call_id + 1) & _ID_MASK
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting[call_id] = (link.peer_id, future)
        timer = loop.call_later(timeout, _expire, future, f"{method}: no answer within {timeout:g} s")
        try:
            link.send(encode_call(call_id, method.encode(), payload))
            return await future
        finally:
            timer.cancel()
            del self._waiting[call_id]

    async def call_self(self, method: str, payload: bytes, timeout: float) -> bytes:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                return await self._invoke(self._me, method, payload)
        except TimeoutError:
            raise MeshError(f"{method}: no answer within {timeout:g} s") from None

    def on_call(self, link: PeerLink, call_id: int, method: str, payload: bytes) -> None:
        running = self._running.setdefault(link.peer_id, OrderedSet())
        if len(running) >= MAX_RUNNING_HANDLERS:
            link.send(encode_error(call_id, f"{method}: too many requests at once"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(link, call_id, method, payload))
        running.add(task)
        task.add_done_callback(running.discard)

    def on_answer(self, peer: str, call_id: int, payload: bytes | None, error: str) -> None:
        """Resolves a call. An answer to an ended call, or from a peer that was not asked, is ignored."""
        asked, future = self._waiting.get(call_id, ("", None))
        if future is None or asked != peer or future.done():
            return
        if payload is None:
            future.set_exception(MeshRefusedError(error))
        else:
            future.set_result(payload)

    def link_lost(self, peer: str) -> None:
        """Fails the calls that wait for `peer`. Its handlers run on, as they may be half done, without an answer."""
        if not self._running.get(peer):
            self._running.pop(peer, None)  # a peer under ever new ids must not fill the table
        for asked, future in self._waiting.values():
            if asked == peer and not future.done():
                future.set_exception(MeshError(f"lost the connection to {peer}"))

    async def stop(self) -> None:
        await cancelled([task for running in self._running.values() for task in running])

    async def _answer(self, link: PeerLink, call_id: int, method: str, payload: bytes) -> None:
        try:
            async with asyncio.timeout(MAX_HANDLER_SECONDS):
                reply = await self._invoke(link.peer_id, method, payload)
        except TimeoutError:
            self._log.error("Request %s of peer %s did not end within %g s", method, link.peer_id, MAX_HANDLER_SECONDS)
            link.send(encode_error(call_id, f"{method}: did not end within {MAX_HANDLER_SECONDS:g} s"))
        except MeshError as error:
            link.send(encode_error(call_id, str(error)[:MAX_ERROR_CHARACTERS]))
        else:
            link.send(encode_reply(call_id, reply))

    async def _invoke(self, peer: str, method: str, payload: bytes) -> bytes:
        handler = self._handlers.get(method)
        if handler is None:
            raise MeshError(f"{method}: no such method")
        try:
            reply = await handler(peer, payload)
        except MeshError:
            raise
        except Exception as error:  # the caller must get any failure
            self._failed += 1
            if self._failed <= LOGGED_FAILURES or self._failed % 1000 == 0:  # a flood of them must not become worse
                self._log.exception("Request %s of peer %s failed (%d so far)", method, peer, self._failed)
            raise MeshError(f"{method}: {error or type(error).__name__}") from error
        if len(reply) > self._max_payload:
            raise MeshError(f"{method}: reply of {len(reply)} bytes is too large")
        return reply


def _expire(future: asyncio.Future[bytes], text: str) -> None:
    if not future.done():
        future.set_exception(MeshError(text))
