"""STREAM.SNAPSHOT: sending a stream's archive in chunks, as fast as the client acknowledges."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any, Final

from jetcluster import errors
from jetcluster.api import models
from jetcluster.api.request import ApiContext, Request
from jetcluster.api.streams import on_leader
from jetcluster.budget import BusyError, Steps
from jetcluster.errors import ApiError, CallerError, by_code
from jetcluster.meta.state import Assignment
from jetcluster.model import subjects
from jetcluster.model.advisory import Transfer, transfer_subjects
from jetcluster.protocol import s2
from jetcluster.protocol.bus import Bus, Origin
from jetcluster.stream.rules import RESTORING

Fields = dict[str, Any]

DEFAULT_CHUNK_BYTES: Final = 128 * 1024
CHUNK_BYTES_RANGE: Final = (1024, 1024 * 1024)
DEFAULT_WINDOW_BYTES: Final = 8 * 1024 * 1024
MAX_WINDOW_BYTES: Final = 32 * 1024 * 1024
INTEREST_SECONDS: Final = 2.0
WILDCARD_SECONDS: Final = 0.5
"""Seconds in which interest by wildcard alone does not count: clients receive all their replies through one wildcard,
and subscribe to the deliver subject once they have read our reply."""
ACK_SECONDS: Final = 5.0
_DONE: Final = b"NATS/1.0 204\r\n\r\n"


class StatusError(CallerError):
    """Ends the transfer with this status instead of the end message."""


async def snapshot(context: ApiContext, request: Request) -> Fields:
    if request.payload.strip() in {b"", b"{}"}:
        raise by_code(errors.BAD_REQUEST)
    wanted = models.SnapshotRequest.from_fields(request.fields, strict=request.strict)
    deliver = wanted.deliver_subject
    if not subjects.is_valid(deliver) or not subjects.is_literal(deliver) or not request.may_deliver_to(deliver):
        raise by_code(errors.SNAPSHOT_DELIVER_SUBJECT)
    assignment, opened = await on_leader(context, request, "snapshot", {"no_consumers": wanted.no_consumers})
    sender = Sender(context, request, assignment, opened, wanted)
    request.follow = sender.run
    config = {key: value for key, value in assignment.config.items() if key != RESTORING}
    return {"config": config, "state": opened["state"], "success": True}


class Sender:
    """A snapshot on its way to a client."""

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        assignment: Assignment,
        opened: Fields,
        wanted: models.SnapshotRequest,
    ) -> None:
        self._context = context
        self._bus: Bus = request.bus
        self._assignment = assignment
        self._opened = opened
        self._client = request.client()
        self._deliver = wanted.deliver_subject.encode()
        low, high = CHUNK_BYTES_RANGE
        self._chunk = min(max(wanted.chunk_size or DEFAULT_CHUNK_BYTES, low), high)
        self._window = min(max(wanted.window_size or DEFAULT_WINDOW_BYTES, self._chunk), MAX_WINDOW_BYTES)
        self._ack_prefix = f"$JS.SNAPSHOT.ACK.{assignment.name}.{context.rng.token(4).hex()}"
        self._unacked = 0
        self._acked = asyncio.Event()
        self._chunks = 0

    async def run(self) -> None:
        context, name = self._context, self._assignment.name
        start = context.clock.time_ns()
        advisories = context.advisories()
        tell_transfer(
            self._bus, name, "snapshot_create", advisories.snapshot_create(name, self._opened["state"], self._client)
        )
        acks = self._bus.subscribe(f"{self._ack_prefix}.*.*".encode(), self._on_ack)
        error = ""
        try:
            await self._wait_for_interest()
            await self._send()
        except (StatusError, ApiError) as failure:
            error = str(failure)
            status = error if isinstance(failure, StatusError) else f"500 {error}"
            self._bus.publish(self._deliver, headers=f"NATS/1.0 {status}\r\n\r\n".encode())
        else:
            self._bus.publish(self._deliver, headers=_DONE if self._chunks else b"")
        finally:
            self._bus.unsubscribe(acks)
        tell_transfer(
            self._bus, name, "snapshot_complete", advisories.snapshot_complete(name, start, self._client, error)
        )
        if error:
            await self._close()

    def _on_ack(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        size = subject.rsplit(b".", 2)[1]
        if size.isdigit() and len(size) < 10:
            self._unacked = max(self._unacked - int(size), 0)
            self._acked.set()

    async def _wait_for_interest(self) -> None:
        start = self._context.clock.monotonic()
        while not self._bus.has_listener(self._deliver):
            waited = self._context.clock.monotonic() - start
            if waited >= WILDCARD_SECONDS and self._bus.has_interest(self._deliver):
                return
            if waited >= INTEREST_SECONDS:
                raise StatusError("408 No Interest")
            await asyncio.sleep(0.01)

    async def _send(self) -> None:
        pending = bytearray(s2.STREAM_ID)
        size = self._chunk
        async for piece in self._pieces():
            pending += await self._framed(piece)
            while len(pending) >= size:
                await self._room()
                self._chunks += 1
                self._unacked += size
                reply = f"{self._ack_prefix}.{size}.{self._chunks}".encode()
                self._bus.publish(self._deliver, bytes(pending[:size]), reply)
                del pending[:size]
        if pending:
            self._bus.publish(self._deliver, bytes(pending))

    async def _framed(self, piece: bytes) -> bytes:
        """Works in steps, as checksums are slow. Raises StatusError when too many other jobs wait."""
        try:
            return await self._context.budget.run(self._assignment.account, _framing(piece))
        except BusyError:
            raise StatusError("503 Busy") from None

    async def _room(self) -> None:
        while self._unacked + self._chunk > self._window:
            self._acked.clear()
            if not self._bus.has_interest(self._deliver):
                raise StatusError("408 No Interest")
            try:
                async with asyncio.timeout(ACK_SECONDS):
                    await self._acked.wait()
            except TimeoutError:
                raise StatusError("408 No Flow Response") from None

    async def _pieces(self) -> AsyncIterator[bytes]:
        number = 0
        while True:
            number += 1
            body = {"id": self._opened["id"], "number": number}
            answer = await self._context.cluster.stream_request(self._assignment, "snapshot_next", body)
            piece = base64.b64decode(answer["data"])
            if not piece:
                break
            yield piece
        await self._close()

    async def _close(self) -> None:
        try:
            await self._context.cluster.stream_request(self._assignment, "snapshot_close", {"id": self._opened["id"]})
        except ApiError as error:
            self._context.log.debug("snapshot is left to time out", error=str(error))


def _framing(piece: bytes) -> Steps[bytes]:
    framed = bytearray()
    for chunk in s2.encode(piece):
        framed += chunk
        yield
    return bytes(framed)


def tell_transfer(bus: Bus, stream: str, kind: Transfer, event: bytes) -> None:
    """Publishes the event on both of its subjects."""
    for subject in transfer_subjects(stream, kind):
        if bus.has_interest(subject):
            bus.publish(subject, event)
